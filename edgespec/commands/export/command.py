"""`edgespec export`: a pair, by its name or its files -> the command or file of another engine."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace

from edgespec.errors import SettingError

DESCRIPTION = """Prints the command or file that runs the same pair on another engine, with the draft length
measured here if the pair has run; and, on stderr, what will differ. It starts, downloads and changes
nothing."""
_REPO = re.compile(r"[\w.-]+/[\w.-]+")


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument(
        "pair",
        metavar="PAIR",
        nargs="?",
        help="an installed pair, one of the catalogue, or embedded (default: the pair pulled last)",
    )
    command.add_argument(
        "--to", choices=("llama-server", "vllm", "sglang", "ollama"), required=True, help="the other engine"
    )
    command.add_argument("--target", metavar="FILE", help="a GGUF file instead of a PAIR")
    command.add_argument("--draft", metavar="FILE", help="the draft or head for --target")
    command.add_argument("--no-draft", action="store_true", help="the target alone")
    command.add_argument(
        "--ctx", type=int, metavar="N", help="tokens of context (8192, or the model's limit)"
    )
    command.add_argument(
        "--draft-length", type=int, metavar="K", help="tokens guessed per round (default: as measured here)"
    )
    command.add_argument(
        "--target-repo", metavar="OWNER/NAME", help="hub repository of the target's original weights"
    )
    command.add_argument(
        "--draft-repo", metavar="OWNER/NAME", help="hub repository of the draft's original weights"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the command or the file. Raises SettingError, or an error of the pair's files."""
    from edgespec.commands.export.engines import EXPORTS
    from edgespec.commands.export.wanted import exported  # it loads llama.cpp

    _check(arguments)
    pair = exported(arguments)
    if arguments.target_repo:
        pair = replace(pair, target=replace(pair.target, base=arguments.target_repo))
    if arguments.draft_repo and pair.draft:
        pair = replace(pair, draft=replace(pair.draft, base=arguments.draft_repo))
    made = EXPORTS[arguments.to](pair)
    print(made.text)
    notes = [*made.notes, *([f"{pair.length} is {pair.length_from}"] if pair.guesses else [])]
    for note in notes:
        print(f"edgespec: {note}", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raises SettingError for flags that make no sense."""
    if arguments.pair and (arguments.target or arguments.draft):
        raise SettingError(f"pair {arguments.pair} has files of its own: leave out --target and --draft")
    for flag, value, most in (
        ("--ctx", arguments.ctx, 2**31 - 1),
        ("--draft-length", arguments.draft_length, 48),
    ):
        if value is not None and not 1 <= value <= most:
            raise SettingError(f"{flag} is {value}: it must be from 1 to {most:,}")
    for flag, repo in (("--target-repo", arguments.target_repo), ("--draft-repo", arguments.draft_repo)):
        if repo is not None and not _REPO.fullmatch(repo):
            raise SettingError(f"{flag} {repo!r} is no repository: write OWNER/NAME")
