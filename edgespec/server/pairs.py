"""The pairs that clients may name: the one the server was started with, and the installed ones.

Names come from the store of installed pairs, and paths only from there or from the command line, so no
request can name a file.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.pairs.projector import AUTO, NONE
from edgespec.protocol.messages import LoadRequest
from edgespec.server.refusal import Refusal
from edgespec_models import tiny
from edgespec_models.shelf.store import EMBEDDED, InstalledPair, Store, StoreError


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A pair under its name. size: bytes of the files, 0 if they are missing."""

    name: str
    load: LoadRequest
    size: int

    @property
    def target(self) -> str:
        """Returns the target's name, without its folder."""
        return Path(self.load.target).stem

    @property
    def draft(self) -> str | None:
        return Path(self.load.draft).stem if self.load.draft else None

    @property
    def embedded(self) -> bool:
        """True for the shipped pair."""
        return Path(self.load.target) == tiny.target_path()


class Pairs:
    """The pairs that may be loaded. Reads the store each time: a pair may be pulled while the server runs."""

    def __init__(
        self, first: LoadRequest, store: Store, *, alias: str | None = None, drafts: bool = True
    ) -> None:
        """first: the pair that the server was started with; others are loaded the same way. alias: its name.
        drafts: False loads targets alone."""
        self._first, self.store, self._alias, self._drafts = first, store, alias, drafts
        self._names: dict[LoadRequest, str] = {}

    def is_first(self, load: LoadRequest) -> bool:
        """True for what the server was started with."""
        return load == self._first

    def known(self) -> list[KnownPair]:
        """Returns all pairs whose files exist, the first pair first, the others by name."""
        others = [
            KnownPair(pair.name, self._load(pair), pair.size)
            for pair in self._installed()
            if not pair.missing
        ]
        others.append(KnownPair(EMBEDDED, self._embedded(), _size(self._embedded())))
        name = self.name_of(self._first)
        first = KnownPair(name, self._first, _size(self._first))
        same = _files(self._first)
        return [first, *(pair for pair in others if pair.name != name and _files(pair.load) != same)]

    def called(self, name: str | None) -> LoadRequest | None:
        """Returns how to load the pair that a request names; None for others: the current pair answers."""
        if not name:
            return None
        if name in (self.name_of(self._first), Path(self._first.target).stem):
            return self._first
        found = next((pair for pair in self._installed() if pair.name == name and not pair.missing), None)
        if found:
            return self._load(found)
        return self._embedded() if name == EMBEDDED else None

    def named(self, name: str) -> LoadRequest:
        """Returns how to load a pair; raises Refusal if none has that name, or its files are gone."""
        if load := self.called(name):
            return load
        gone = next((pair for pair in self._installed() if pair.name == name), None)
        if gone:
            sentence = f"{gone.missing[0]} of pair {name} is gone: `edgespec pull {name}` fetches it again"
            raise Refusal(409, sentence, param="model", code="model_files_missing")
        there = ", ".join(pair.name for pair in self.known())
        sentence = f"no pair {name!r} is installed here (there are: {there}): `edgespec pull` gets more"
        raise Refusal(404, sentence, param="model", code="model_not_found")

    def name_of(self, load: LoadRequest) -> str:
        """Returns a pair's name for clients: its name in the store, or else that of its target.

        The shipped pair is `embedded` wherever it lies: its file's name says nothing.
        """
        if load not in self._names:
            files = _files(load)
            found = next((p.name for p in self._installed() if _files(self._load(p)) == files), None)
            alias = self._alias if load == self._first else None
            embedded = EMBEDDED if Path(load.target).resolve() == tiny.target_path().resolve() else None
            self._names[load] = alias or found or embedded or Path(load.target).stem
        return self._names[load]

    def _installed(self) -> list[InstalledPair]:
        try:
            return self.store.pairs()
        except StoreError:  # `edgespec list` says what is wrong with it; the loaded pair still answers
            return []

    def _load(self, pair: InstalledPair) -> LoadRequest:
        draft = str(pair.draft.path) if pair.draft and self._drafts else None
        return self._other(str(pair.target.path), draft, str(pair.projector.path) if pair.projector else AUTO)

    def _embedded(self) -> LoadRequest:
        draft = str(tiny.draft_path()) if self._drafts else None
        return self._other(str(tiny.target_path()), draft)

    def _other(self, target: str, draft: str | None, projector: str = AUTO) -> LoadRequest:
        """Returns another pair, loaded like the first; its projector is one of its own."""
        settings = self._first.settings
        mmproj = NONE if settings.mmproj == NONE else projector
        return replace(self._first, target=target, draft=draft, settings=replace(settings, mmproj=mmproj))


def _files(load: LoadRequest) -> tuple[Path, Path | None]:
    return Path(load.target).resolve(), Path(load.draft).resolve() if load.draft else None


def _size(load: LoadRequest) -> int:
    files = [Path(file) for file in (load.target, load.draft) if file]
    return sum(file.stat().st_size for file in files if file.exists())
