"""Opens the pair that a worker's owner asks for, tells how far that is, and describes it."""

import sys
import time
from dataclasses import asdict

from edgespec.core.pace.worth import break_even
from edgespec.engine.engine import Engine
from edgespec.engine.outbox import Outbox
from edgespec.engine.pair import Pair
from edgespec.engine.prompt_files import PromptFiles
from edgespec.engine.state_keys import state_keys
from edgespec.memory.free import free_memory
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.messages import Loaded, Loading, LoadRequest, Stage
from edgespec.sampling.settings import IN_FILE
from edgespec.system.config import cache_folder

MOST_CACHE_RAM = 8 * 2**30
LAST_STAGE = 0.95  # of loading is done when measuring begins
LAST_S = 10.0  # how long a worker that ends may write prompts to disk: its owner waits for 12 s
FAR = 1000  # tokens; how much longer a token takes after so many is reported per token


class ProgressReports:
    """Reports loading to the owner: each new stage, and every hundredth of the whole."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._last = outbox, ("", -1)

    def __call__(self, stage: Stage, progress: float) -> None:
        if (stage, round(100 * progress)) != self._last:
            self._last = stage, round(100 * progress)
            self._outbox.send(Loading(stage, progress))


def open_pair(load: LoadRequest, outbox: Outbox) -> Pair:
    """Loads what the owner asks for, and measures it if its costs are unknown."""
    progress = ProgressReports(outbox)
    pair = Pair(load.target, load.draft, load.settings, on_progress=progress)
    progress("measuring", LAST_STAGE)
    pair.costs()
    return pair


def cache_ram(settings: PairSettings) -> int:
    """Returns how many bytes of host memory may keep prompts that are in no slot."""
    if settings.cache_ram is not None:
        return settings.cache_ram
    free, _ = free_memory()
    return min(free // 4, MOST_CACHE_RAM)


def prompt_files(pair: Pair) -> PromptFiles | None:
    """Returns the prompts on disk, if they are wanted."""
    if not pair.settings.cache_disk:
        return None
    folder = cache_folder() / "prompts"
    try:
        return PromptFiles(folder, pair.settings.cache_disk, state_keys(pair.contexts))
    except OSError as error:
        print(f"no prompts are kept in {folder}: {error.strerror}", file=sys.stderr)
        return None


def write_down(engine: Engine, files: PromptFiles) -> None:
    """Writes what has not been written of idle texts, before the worker ends."""
    until = time.monotonic() + LAST_S
    while time.monotonic() < until and engine.prefixes.write_some():
        time.sleep(0.002)
    files.close(max(0.0, until - time.monotonic()))


def about(pair: Pair) -> Loaded:
    """Returns what the owner has to know of a pair."""
    target = pair.target
    plain = pair.costs().target
    guesses = break_even(pair.costs(), drafts=pair.draft_name is not None)
    return Loaded(
        name=target.path.stem,
        draft_name=pair.draft_name,
        n_ctx=pair.n_ctx,
        n_vocab=target.n_vocab,
        n_bytes=target.path.stat().st_size,
        chat_template=target.chat_template,
        tool_template=target.tool_template,
        bos=target.bos_text,
        eos=target.eos_text,
        sampling={k: v for k, v in target.metadata.items() if k.startswith(IN_FILE)},
        plain_s=plain.seconds(1),
        plain_growth_s=(plain.seconds(1, FAR) - plain.seconds(1)) / FAR,
        path=str(target.path),
        end_tokens=tuple(sorted(target.end_tokens)),
        slots=pair.slots,
        bos_token=target.vocabulary.bos if target.vocabulary.add_bos else None,
        fill=target.fill_tokens,
        place=pair.place,
        adapters=pair.settings.adapters,
        beyond_trained=pair.beyond_trained or "",
        reads=pair.reads,
        no_media=pair.no_media,
        meta={
            "n_ctx_train": target.n_ctx_train,
            "break_even": guesses and asdict(guesses),
            "exact": "bytes" if pair.settings.byte_identical else "distribution",
        },
    )
