"""`edgespec list`: the pairs on this machine."""

import argparse
import json
import time

from edgespec.commands.pairs.words import list_lines, pair_json
from edgespec.pairs.store import open_store, store_errors
from edgespec_models.shelf.found import unfinished_downloads
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import Store

DESCRIPTION = """Lists the installed pairs with their size, last use and measured speed. The pair marked * is
the default: the one pulled or imported last."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; returns the exit code."""
    with store_errors():
        store = open_store()
        pairs, default = store.pairs(), store.default()
        if arguments.json:
            print(json.dumps({"pairs": [pair_json(pair, default) for pair in pairs]}))
        else:
            print("\n".join(list_lines(pairs, default, now=time.time())))
            print("\n".join(_left_lines(store)), end="")
        return 0


def _left_lines(store: Store) -> list[str]:
    """Says which files on the disk belong to no pair."""
    lines = [
        f"unfinished: {size_text(path.stat().st_size)} of {repo}, left by a download that was killed"
        for repo, path in unfinished_downloads()
    ]
    lines += [f"no pair uses {path} ({size_text(size)})" for path, size in store.leftovers().items()]
    return [*lines, "`edgespec rm --unfinished` deletes that", ""] if lines else []
