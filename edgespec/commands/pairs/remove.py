"""`edgespec rm`: removes a pair, and its files that no other uses."""

import argparse
import sys

from edgespec.commands.flag_table import add_flags
from edgespec.errors import SettingError
from edgespec.pairs.store import open_store, store_errors
from edgespec_models.shelf.found import unfinished_downloads
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import Store

DESCRIPTION = """Removes pairs and deletes the files that EdgeSpec downloaded for them, unless another pair
uses them. Imported files stay where they are."""
FLAGS = {
    "--unfinished": "delete interrupted downloads, and files that no pair uses any more",
    "--keep-files": "forget the pair but keep its files",
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("names", nargs="*", metavar="NAME", help="names of pairs")
    add_flags(command, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Removes what was named; returns the exit code. Raises SettingError if nothing was."""
    with store_errors():
        store = open_store()
        if not arguments.names and not arguments.unfinished:
            raise SettingError("there is nothing to remove: name a pair, or say --unfinished")
        _remove(store, arguments.names, keep_files=arguments.keep_files)
        return _remove_unfinished(store) if arguments.unfinished else 0


def _remove(store: Store, names: list[str], *, keep_files: bool) -> None:
    for name in names:
        store.get(name, wanted=False)  # a wrong name is reported before anything is removed
    for name in dict.fromkeys(names):
        removed = store.remove(name, keep_files=keep_files)
        freed = f"{size_text(removed.freed)} are free" if removed.freed else "no file was deleted"
        print(f"removed {name}, {freed}")
        for path, why in removed.kept.items():
            print(f"  kept {path}: {why}", file=sys.stderr)


def _remove_unfinished(store: Store) -> int:
    freed = store.remove_leftovers()
    for _, path in unfinished_downloads():
        freed += path.stat().st_size
        path.unlink()
    print(f"removed what was left over, {size_text(freed)} are free")
    return 0
