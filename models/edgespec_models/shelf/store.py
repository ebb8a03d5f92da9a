"""The pairs installed on this machine: one small JSON file in the data folder, and where their models are.

Models stay where they are (the hub's own cache, or wherever an imported file was found); the store holds
paths. Invariant: the file is replaced as a whole under a lock, so a reader sees the old or the new one, and
two programs that write lose nothing. An unreadable file is never overwritten.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgespec_models.checked_value import checked
from edgespec_models.kept_file import write_whole
from edgespec_models.shelf.free_files import Removed, delete_file, delete_files
from edgespec_models.shelf.installed_pair import (
    InstalledModel,
    InstalledPair,
    Speed,
    pair_of,
)

__all__ = ["EMBEDDED", "InstalledModel", "InstalledPair", "Speed", "Store", "StoreError", "check_name"]

VERSION = 1
EMBEDDED = "embedded"  # the shipped pair's name
LOCK_WAIT_S = 10.0
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class StoreError(Exception):
    """The store cannot be read or written, or has no such pair; the message is one sentence for a user."""


def check_name(name: str) -> str:
    """Returns a pair's name if it can be one. Raises StoreError."""
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{name!r} cannot name a pair: use up to 64 lower-case letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit"
        )
    if name == EMBEDDED:
        raise StoreError(f"{name!r} is the name of the pair that ships: choose another")
    return name


class Store:
    """The installed pairs, in `folder`/pairs.json. Every call reads the file anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "pairs.json"

    def pairs(self) -> list[InstalledPair]:
        """Returns all pairs by name. Raises StoreError if the file is damaged."""
        return sorted(self._read().pairs.values(), key=lambda pair: pair.name)

    def default(self) -> str | None:
        """Returns the name of the pair that commands use if none is named: the one pulled last."""
        return self._read().default

    def get(self, name: str, *, wanted: bool = True) -> InstalledPair:
        """Returns one pair. Raises StoreError if it is not installed; wanted: with how it would be."""
        pairs = self._read().pairs
        if name not in pairs:
            known = ", ".join(sorted(pairs)) or "none"
            if not wanted:
                raise StoreError(
                    f"no pair {name!r} is installed (installed: {known}): `edgespec list` shows them"
                )
            how = f"`edgespec pull {name}` gets one of the catalogue, and `edgespec pull` lists them"
            if name.lower().endswith(".gguf"):  # a file's
                how = f"`edgespec import {name}` makes one from a file"
            raise StoreError(f"no pair {name!r} is installed (installed: {known}): {how}")
        return pairs[name]

    def add(self, pair: InstalledPair, *, default: bool = True) -> None:
        """Installs a pair, replacing one of the same name, whose speed is forgotten if files differ."""
        check_name(pair.name)
        with self._changing() as state:
            fetched = {p for old in state.pairs.values() for m in old.models if m.fetched for p in m.paths}
            fetched |= state.fetched
            pair = replace(
                pair,
                target=_remember_fetched(pair.target, fetched),
                draft=_remember_fetched(pair.draft, fetched) if pair.draft else None,
            )
            old = state.pairs.get(pair.name)
            if old and [m.paths for m in old.models] == [m.paths for m in pair.models]:
                pair = replace(pair, last_used=old.last_used, speed=old.speed)
            state.pairs[pair.name] = pair
            if old:  # such as of an older version
                state.fetched |= {path for m in old.models if m.fetched for path in m.paths}
            state.fetched -= state.used()
            if default or state.default is None:
                state.default = pair.name

    def check_writable(self) -> None:
        """Raises StoreError if pairs cannot be installed here."""
        with self._changing():
            pass

    def note_use(self, name: str) -> None:
        """Notes that a pair was loaded now."""
        self._change(name, lambda pair: replace(pair, last_used=time.time()))

    def note_speed(self, name: str, tok_per_s: float, plain_tok_per_s: float | None = None) -> None:
        """Notes a pair's measured speed; a plain speed known from before stays."""

        def noted(pair: InstalledPair) -> InstalledPair:
            plain = plain_tok_per_s or (pair.speed.plain_tok_per_s if pair.speed else None)
            return replace(pair, speed=Speed(tok_per_s, plain, time.time()))

        self._change(name, noted)

    def note_fetched(self, paths: Iterable[str]) -> None:
        """Notes that EdgeSpec downloaded these files, though their pair is not complete yet."""
        with self._changing() as state:
            state.fetched |= set(paths) - state.used()

    def leftovers(self) -> dict[str, int]:
        """Returns files that EdgeSpec downloaded and no pair uses, with their sizes."""
        return {path: os.path.getsize(path) for path in sorted(self._read().fetched) if os.path.exists(path)}

    def remove_leftovers(self) -> int:
        """Deletes them; returns the bytes freed."""
        left = self.leftovers()
        try:
            freed = sum(delete_file(Path(path)) for path in left)
        except OSError as error:
            raise StoreError(
                f"{error.filename} cannot be deleted ({error.strerror}): free it, and repeat the command"
            ) from None
        with self._changing() as state:
            state.fetched -= left.keys()
        return freed

    def remove(self, name: str, *, keep_files: bool = False) -> Removed:
        """Forgets a pair and deletes the files that EdgeSpec fetched for it and no other pair uses."""
        self.get(name)
        with self._changing() as state:
            pair = state.pairs.pop(name)
            if state.default == name:
                newest = max(state.pairs.values(), key=lambda p: p.installed_at, default=None)
                state.default = newest.name if newest else None
            used = {path: p.name for p in state.pairs.values() for m in p.models for path in m.paths}
        try:  # the store no longer names them, so a failure here leaves nothing that seems installed
            return delete_files(pair.models, used, keep_files=keep_files)
        except OSError as error:
            raise StoreError(
                f"pair {name} is removed, but {error.filename} could not be deleted ({error.strerror}): "
                "delete it by hand"
            ) from None

    def _change(self, name: str, change: Callable[[InstalledPair], InstalledPair]) -> None:
        self.get(name)
        with self._changing() as state:
            if name in state.pairs:
                state.pairs[name] = change(state.pairs[name])

    @contextmanager
    def _changing(self) -> Iterator[_State]:
        from filelock import FileLock, Timeout  # slow to import, and reading needs none

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / "pairs.lock", timeout=LOCK_WAIT_S):
                state = self._read()
                yield state
                self._write(state)
        except Timeout:
            raise StoreError(f"{self.path} is held by another program: try again in a moment") from None
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written ({error.strerror or error}): check rights and space there"
            ) from None

    def _read(self) -> _State:
        try:
            text = self.path.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return _State({}, None, set())
        except OSError as error:
            if not os.access(self.path.parent, os.X_OK):  # somebody else's home: nothing is ours there
                return _State({}, None, set())
            raise StoreError(f"{self.path} cannot be read ({error.strerror}): check that file") from None
        except UnicodeDecodeError:
            text = ""  # damaged
        try:
            return _state(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreError(
                f"{self.path} is damaged: move it away, then pull or import your pairs again (what was "
                "downloaded is found and not fetched twice)"
            ) from None

    def _write(self, state: _State) -> None:
        content = {
            "version": VERSION,
            "default": state.default,
            "pairs": {name: asdict(pair) for name, pair in sorted(state.pairs.items())},
            "fetched": sorted(path for path in state.fetched if os.path.exists(path)),
        }
        write_whole(self.path, json.dumps(content, indent=1))


@dataclass(slots=True)
class _State:
    """The content of the file."""

    pairs: dict[str, InstalledPair]
    default: str | None
    fetched: set[str]  # downloaded files that belong to no pair, or to none yet

    def used(self) -> set[str]:
        """Returns the files of all pairs."""
        return {path for pair in self.pairs.values() for model in pair.models for path in model.paths}


def _state(content: object) -> _State:
    """Returns a file's content. Raises ValueError, KeyError or TypeError if that is not a store."""
    fields = checked(dict[str, Any], content)
    version = fields["version"]
    if not isinstance(version, int) or version > VERSION:
        raise StoreError(f"pairs.json was written by a newer EdgeSpec (version {version}): upgrade this one")
    pairs = {name: pair_of(name, pair) for name, pair in checked(dict[str, Any], fields["pairs"]).items()}
    default = fields.get("default")
    known = isinstance(default, str) and default in pairs
    return _State(pairs, default if known else None, checked(set[str], fields.get("fetched", [])))


def _remember_fetched(model: InstalledModel, fetched: set[str]) -> InstalledModel:
    return replace(model, fetched=True) if set(model.paths) <= fetched else model
