"""`edgespec list`, `show`, `rm` and `import`."""

from __future__ import annotations

import argparse
import json
import sys
import time

from edgespec.commands.pairs.import_files import import_pair, list_found
from edgespec.commands.pairs.words import embedded_json, entry_lines, list_lines, pair_json, show_lines
from edgespec.errors import SettingError
from edgespec.pairs.store import open_store, store_told
from edgespec_models.shelf.catalogue import CatalogueError, find
from edgespec_models.shelf.found import unfinished_downloads
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import EMBEDDED, Store


def installed(arguments: argparse.Namespace) -> int:
    """Runs one of the four commands; returns its exit code."""
    with store_told():
        store = open_store()
        if arguments.command == "list":
            return _list(store, as_json=arguments.json)
        if arguments.command == "show":
            return _show(store, arguments.name, as_json=arguments.json)
        if arguments.command == "rm":
            if not arguments.names and not arguments.unfinished:
                raise SettingError("there is nothing to remove: name a pair, or say --unfinished")
            _remove(store, arguments.names, keep_files=arguments.keep_files)
            return _remove_unfinished(store) if arguments.unfinished else 0
        if arguments.target is None:
            return list_found()
        return import_pair(store, arguments)


def _list(store: Store, *, as_json: bool) -> int:
    pairs, default = store.pairs(), store.default()
    if as_json:
        print(json.dumps({"pairs": [pair_json(pair, default) for pair in pairs]}))
    else:
        print("\n".join(list_lines(pairs, default, now=time.time())))
        print("\n".join(_left_lines(store)), end="")
    return 0


def _left_lines(store: Store) -> list[str]:
    """Says what lies on the disk and belongs to no pair."""
    lines = [
        f"unfinished: {size_text(path.stat().st_size)} of {repo}; the same `edgespec pull` goes on with it"
        for repo, path in unfinished_downloads()
    ]
    lines += [f"no pair uses {path} ({size_text(size)})" for path, size in store.leftovers().items()]
    return [*lines, "`edgespec rm --unfinished` deletes that", ""] if lines else []


def _show(store: Store, name: str, *, as_json: bool) -> int:
    if name == EMBEDDED:
        said = "embedded: the pair that ships with EdgeSpec; it knows Python and its library, and little else"
        print(json.dumps(embedded_json(store.default())) if as_json else said)
        return 0
    if name not in {pair.name for pair in store.pairs()}:
        try:
            entry = find(name)
        except CatalogueError:
            store.get(name)  # says what is installed
            raise
        if as_json:
            raise SettingError(f"pair {name} is not installed: `edgespec pull {name}` gets it")
        print("\n".join(entry_lines(entry)))
        return 0
    pair, default = store.get(name), store.default()
    print(json.dumps(pair_json(pair, default)) if as_json else "\n".join(show_lines(pair, default)))
    return 0


def _remove(store: Store, names: list[str], *, keep_files: bool) -> None:
    for name in names:
        store.get(name)  # a wrong name is told before anything is removed
    for name in dict.fromkeys(names):
        removed = store.remove(name, keep_files=keep_files)
        print(f"removed {name}, {size_text(removed.freed)} are free")
        for path, why in removed.kept.items():
            print(f"  kept {path}: {why}", file=sys.stderr)


def _remove_unfinished(store: Store) -> int:
    freed = store.remove_leftovers()
    for _, path in unfinished_downloads():
        freed += path.stat().st_size
        path.unlink()
    print(f"removed what was left over, {size_text(freed)} are free")
    return 0
