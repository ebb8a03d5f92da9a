"""One session of `edgespec distill`: what is made, from what, in which folder."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.engine.text_log import name_of
from edgespec.errors import DoesNotFitError, SettingError
from edgespec.memory.free import free_memory
from edgespec.pairs.check import check_pair
from edgespec.system import config
from edgespec.system.cores import threads_wanted
from edgespec_models.fit.formulas import cache_bytes
from edgespec_models.gguf.head_check import shows_layers
from edgespec_models.gguf.header import Header, split_names
from edgespec_models.gguf.vocabulary import vocabulary_of
from edgespec_models.shelf.sizes import size_text
from edgespec_train.current_pair import CurrentPair
from edgespec_train.kept_texts import kept_texts_of
from edgespec_train.prompts import CONTEXT, TrainingPrompts, passages_in, prompts_for

if TYPE_CHECKING:
    from edgespec_train.training_run import Kind, TrainingRun

WIDEST, NARROWEST = 96, 2  # texts side by side
EACH_MINUTE = 2  # of them at most: their prompts are read before any of them continues
AROUND = 3 << 30  # bytes of torch, of scores and of texts in memory at once
MADE_FOR = "made-for"  # says in a folder which target it is for


@dataclass(frozen=True, slots=True)
class Session:
    """The folder where a draft is trained, its target, and the target's prompts."""

    target: str  # its name and a mark of its header
    folder: Path
    run: TrainingRun
    prompts: TrainingPrompts


def prepare(arguments: argparse.Namespace, pair: CurrentPair, headers: list[Header]) -> Session:
    """Returns what the flags ask for. Raises SettingError, DoesNotFitError, ModelFileError."""
    from edgespec.llama.thread_count import Threads
    from edgespec_train.hidden import can_tap
    from edgespec_train.target_file import open_target
    from edgespec_train.training_run import TrainingRun

    named = name_of(pair.target, headers[0])
    own = kept_texts_of(config.data_folder(), named).read()
    prompts = prompts_for(headers[0], passages_in(arguments.texts) if arguments.texts else (), own)
    parts = tuple(pair.target.with_name(name) for name in split_names(pair.target.name))
    begin_with = Path(arguments.begin_with) if arguments.begin_with else None
    if begin_with:
        _check_draft(begin_with, pair.target)
    reads_layers = open_target(*parts).block_is_plain and shows_layers(headers[0]) and can_tap()
    kind = choose_kind(arguments.kind, reads_layers=reads_layers, begin_with=begin_with)
    default = config.data_folder() / "distilled" / named
    folder = Path(os.path.expanduser(arguments.folder)) if arguments.folder else default
    threads = arguments.threads or threads_wanted()
    run = TrainingRun(
        parts,
        folder / (kind if not begin_with else f"draft-from-{begin_with.stem[:40]}"),
        kind,
        CONTEXT,
        choose_width(
            headers,
            sum(part.stat().st_size for part in parts),
            kind,
            CONTEXT,
            arguments.minutes,
            free_memory()[0],
        ),
        threads,
        int(arguments.disk * 1e9),
        begin_with,
        lambda handle: Threads(handle, arguments.threads, fixed=False),
    )
    return Session(named, folder, run, prompts)


def choose_kind(asked: Kind | None, *, reads_layers: bool, begin_with: Path | None) -> Kind:
    """Returns what is trained. reads_layers: llama.cpp shows the layers. Raises SettingError."""
    if begin_with and asked not in (None, "draft"):
        raise SettingError(f"--from {begin_with}: it is a draft, so leave --kind {asked} out")
    if asked == "eagle3" and not reads_layers:
        raise SettingError(
            "--kind eagle3: llama.cpp does not show the layers of this target here: leave --kind out, or "
            "name --kind medusa"
        )
    return asked or ("eagle3" if reads_layers and not begin_with else "draft")


def _check_draft(draft: Path, target: Path) -> None:
    """Refuses what cannot be tuned as a draft. Raises SettingError, PairMismatchError, ModelFileError."""
    from edgespec_train.target_file import open_target

    if check_pair(target, draft) is not None:
        raise SettingError(f"--from {draft}: its vocabulary is not the target's, so it cannot be fine-tuned")
    opened = open_target(draft)
    if not opened.block_is_plain or opened.architecture != "llama" or opened.has("output"):
        raise SettingError(f"--from {draft}: only llama drafts with tied embeddings can be fine-tuned")


def claim(session: Session) -> None:
    """Notes in the folder which target it is for. Raises SettingError for another one's."""
    note = session.folder / MADE_FOR
    if not note.exists():
        note.write_text(session.target, encoding="utf-8")
    elif (other := note.read_text(encoding="utf-8", errors="replace")) != session.target:
        raise SettingError(
            f"{session.folder} holds output of {other}, but the target is {session.target}: name another "
            "folder with --folder"
        )


def choose_width(
    headers: Sequence[Header], model: int, kind: str, context: int, minutes: float, free: int
) -> int:
    """Returns how many texts the target writes side by side. model, free: bytes. Raises DoesNotFitError."""
    text = cache_bytes(headers[0], context)
    learning = _learning(headers[0], kind)
    needed = max(model + NARROWEST * text, learning) + AROUND // 3
    if needed > free:
        raise DoesNotFitError(
            f"making a draft for {headers[0].name} takes about {size_text(needed)} of memory, and "
            f"{size_text(free)} are free: close other programs, or use a machine with more"
        )
    in_time = max(4, int(EACH_MINUTE * minutes))
    return max(NARROWEST, min(WIDEST, in_time, (free - model) // 4 // max(text, 1)))


def _learning(header: Header, kind: str) -> int:
    """Returns bytes of a draft's weights, gradients and averages, and of the target's embedding."""
    width = header.of_architecture("embedding_length", 1) or 1
    wide = header.of_architecture("feed_forward_length", 4 * width) or 4 * width
    rows = len(vocabulary_of(header).texts)
    if kind == "medusa":
        return 4 * (2 * rows * width + 4 * 4 * width * width)
    if kind == "eagle3":
        block = 3 * width * width + 6 * width * width + 3 * width * wide
        return 4 * (rows * width + 2 * rows * width // 4 + 4 * block)
    return 4 * (rows * width + 4 * (rows * 256 + 2_000_000))
