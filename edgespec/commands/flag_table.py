"""Flags as a table: how each is spelt, and what --help says of it."""

import argparse
from collections.abc import Callable, Mapping
from itertools import takewhile

KINDS: dict[str, Callable[[str], float]] = dict.fromkeys(("N", "K", "MB", "MIB", "GIB"), int)
KINDS |= dict.fromkeys(("S", "T", "X", "GB", "SHARE", "MINUTES"), float)
THREADS = {"--threads N": "threads (default: one for each physical performance core)"}


def add_flags(group: argparse._ActionsContainer, table: Mapping[str, str]) -> None:
    """Adds flags, each spelt as in `-n --max-tokens N 512`: its names, what is given, and the default.

    Without a second part it is a switch. `a|b` are choices, of which the first is the default; of `a|b|` none
    is. `*` in place of a default: it may be repeated.
    """
    for spelt, text in table.items():
        words = spelt.split()
        names = [*takewhile(lambda word: word.startswith("-"), words)]
        what, default, *_ = *words[len(names) :], None, None
        if what is None:
            group.add_argument(*names, action="store_true", help=text)
        elif default == "*":
            group.add_argument(*names, action="append", default=[], metavar=what, help=text)
        elif "|" in what:
            choices = [choice for choice in what.split("|") if choice]
            default = default or (None if what.endswith("|") else choices[0])
            group.add_argument(*names, choices=choices, default=default, help=text)
        else:
            group.add_argument(*names, type=KINDS.get(what, str), metavar=what, default=default, help=text)
