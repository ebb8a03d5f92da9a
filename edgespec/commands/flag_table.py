"""Flags as a table: how each is spelt, and what --help says of it."""

import argparse
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

KINDS: dict[str, Callable[[str], float]] = dict.fromkeys(("N", "K", "MB", "MIB", "GIB"), int)
KINDS |= dict.fromkeys(("S", "T", "X", "GB", "SHARE", "MINUTES"), float)
THREADS = {"--threads N": "threads (default: one for each physical performance core)"}


def add_flags(group: argparse._ActionsContainer, table: Mapping[str, str]) -> dict[str, Any]:
    """Adds flags; returns their defaults, by their names in a namespace.

    Each is spelt as in `-n --max-tokens N 512`: its names, what is given, and the default. Without a second
    part it is a switch. `a|b` are choices, of which the first is the default; of `a|b|` none is. `*` in place
    of a default: it may be repeated.
    """
    added: list[argparse.Action] = []
    for spelt, text in table.items():
        words = spelt.split()
        names = [*takewhile(lambda word: word.startswith("-"), words)]
        what, default, *_ = *words[len(names) :], None, None
        if what is None:
            action = group.add_argument(*names, action="store_true", help=text)
        elif default == "*":
            action = group.add_argument(*names, action="append", default=[], metavar=what, help=text)
        elif "|" in what:
            choices = [choice for choice in what.split("|") if choice]
            default = default or (None if what.endswith("|") else choices[0])
            action = group.add_argument(*names, choices=choices, default=default, help=text)
        else:
            kind = KINDS.get(what, str)
            usual = None if default is None else kind(default)
            action = group.add_argument(*names, type=kind, metavar=what, default=usual, help=text)
        added.append(action)
    return {action.dest: action.default for action in added}


def add_for_engine(group: argparse._ActionsContainer, table: Mapping[str, str]) -> None:
    """Adds flags that are passed on to an engine that the command starts (`local/engine_flags.py`)."""
    known = group.get_default("for_engine") or {}
    group.set_defaults(for_engine=known | add_flags(group, table))
