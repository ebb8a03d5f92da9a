"""Which files a command runs on, by flags and environment.

Without a file: an installed pair, a grown one, or the embedded one.
"""

import argparse
import sys
from pathlib import Path

from edgespec.chat.well_known import well_known
from edgespec.core.values import FREE
from edgespec.errors import SettingError
from edgespec.pairs.check import find_head
from edgespec.pairs.grown import grown_pair
from edgespec.pairs.store import installed_pair, note_use
from edgespec.system import config
from edgespec.system.named_file import read_text
from edgespec_models import tiny
from edgespec_models.gguf.header import split_names

LONGEST_TEMPLATE = 2**20  # characters; what is longer is some other file


def pair_files(arguments: argparse.Namespace) -> tuple[Path, Path | None]:
    """Returns target and draft as flags and environment name them.

    If they name none: the pair that was pulled or imported last, else the embedded one. Notes the use
    of an installed pair.
    """
    with_draft = wants_draft(arguments)
    for flag, value in (("--target", arguments.target), ("--draft", arguments.draft)):
        if value == "":
            raise SettingError(f"{flag} names no file: give a path, or leave it out")
    target = arguments.target or config.default_target()
    draft = arguments.draft or (config.default_draft() if with_draft else None)
    if arguments.pair is not None and (arguments.target or arguments.draft):
        raise SettingError(
            f"pair {arguments.pair} has a target and a draft of its own: leave out --target and --draft"
        )
    if arguments.grow:
        if arguments.target or arguments.draft:
            raise SettingError("--grow works on the embedded pair: leave out --target and --draft")
        if arguments.pair is not None:
            raise SettingError(f"--grow works on the embedded pair: leave out pair {arguments.pair}")
        target_file, draft_file = _grown(arguments.grow)
        return target_file, draft_file if with_draft else None
    if target and arguments.pair is None:
        return _first_part(target), _first_part(draft) if draft else None
    if arguments.draft:
        raise SettingError(f"--draft {arguments.draft} has no target: name one with --target")
    pair = installed_pair(arguments.pair)
    if pair:
        note_use(pair.name)
        guesses_by = pair.draft.path if pair.draft and with_draft else None
        if arguments.drafter == "mtp" and find_head(pair.target.path, None):
            guesses_by = None  # the head in the target's file is meant, not the pair's draft
        return pair.target.path, guesses_by
    return tiny.target_path(), tiny.draft_path() if with_draft else None


def _first_part(name: str) -> Path:
    """Returns the file that a model is loaded by: the first part of a split one, whichever is named."""
    path = Path(name)
    first = path.with_name(split_names(path.name)[0]) if path.name else path
    return first if first.exists() else path


def wants_draft(arguments: argparse.Namespace) -> bool:
    """Returns whether anything but the text itself may guess."""
    return not arguments.no_draft and arguments.drafter not in ("none", *FREE)


def pair_name(arguments: argparse.Namespace) -> str | None:
    """Returns the name of the installed pair that `pair_files` takes; None if it takes another."""
    if arguments.grow or (arguments.pair is None and (arguments.target or config.default_target())):
        return None
    pair = installed_pair(arguments.pair)
    return pair.name if pair else None


def chat_template(arguments: argparse.Namespace) -> str | None:
    """Returns the chat template that the flags name; None if they name none. Raises SettingError."""
    if arguments.chat_template is not None:
        return well_known(arguments.chat_template)
    if arguments.chat_template_file is None:
        return None
    flag, path = "--chat-template-file", arguments.chat_template_file
    template = read_text(flag, path, most=LONGEST_TEMPLATE)
    if not template.strip():
        raise SettingError(f"{flag} {path} is empty: name another file, or leave it out")
    return template


def _grown(spec: str) -> tuple[Path, Path]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\rgrowing the embedded pair to {spec}: {done / max(total, 1):4.0%}")
            sys.stderr.write("\n" if done >= total else "")

    return grown_pair(spec, show)
