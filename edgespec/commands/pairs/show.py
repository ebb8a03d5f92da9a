"""`edgespec show`: all that is known of a pair."""

import argparse
import json

from edgespec.commands.pairs.words import embedded_pair, entry_lines, pair_json, show_lines
from edgespec.errors import SettingError
from edgespec.pairs.store import open_store, store_errors
from edgespec_models.shelf.catalogue import CatalogueError, find
from edgespec_models.shelf.store import EMBEDDED, Store

DESCRIPTION = """Shows where the files of a pair are, what their headers say, and whether target and draft
fit. For a pair of the catalogue that is not installed, it shows the catalogue's entry."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.add_argument("name", metavar="NAME", help="name of the pair")


def run(arguments: argparse.Namespace) -> int:
    """Prints what is known; returns the exit code."""
    with store_errors():
        return _show(open_store(), arguments.name, as_json=arguments.json)


def _show(store: Store, name: str, *, as_json: bool) -> int:
    if name != EMBEDDED and name not in {pair.name for pair in store.pairs()}:
        try:
            entry = find(name)
        except CatalogueError:
            store.get(name)  # raises, with the installed names
            raise
        if as_json:
            raise SettingError(f"pair {name} is not installed: `edgespec pull {name}` gets it")
        print("\n".join(entry_lines(entry)))
        return 0
    default = store.default()
    pair = embedded_pair() if name == EMBEDDED else store.get(name)
    print(json.dumps(pair_json(pair, default)) if as_json else "\n".join(show_lines(pair, default)))
    return 0
