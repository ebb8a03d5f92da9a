"""An installed pair as a value, and read from JSON that is not trusted before it was checked."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec_models.checked_value import checked

END_OF_CALENDARS = 253_402_300_800  # seconds from 1970 to the year 10000


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """One model of a pair: its files, and where they came from."""

    paths: tuple[str, ...]  # all parts in order; llama.cpp is given the first
    size: int  # bytes, all parts
    repo: str = ""  # "" for an imported file
    revision: str = ""  # the commit it was pulled at
    sha256: tuple[str, ...] = ()  # of each part, as verified after the download; () if unknown
    fetched: bool = False  # EdgeSpec downloaded it, so removing the pair may delete it

    @property
    def path(self) -> Path:
        """The file to load."""
        return Path(self.paths[0])

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that are no longer there."""
        return tuple(path for path in self.paths if not os.path.isfile(path))


@dataclass(frozen=True, slots=True)
class Speed:
    """A speed measured on this machine."""

    tok_per_s: float  # decoding with speculation
    plain_tok_per_s: float | None  # decoding without; None if not measured
    at: float  # seconds since 1970


@dataclass(frozen=True, slots=True)
class InstalledPair:
    """A target and, usually, its draft, under the name that commands use."""

    name: str
    target: InstalledModel
    draft: InstalledModel | None
    source: Literal["pulled", "imported"]
    installed_at: float  # seconds since 1970
    last_used: float | None = None
    speed: Speed | None = None
    note: str = ""  # why this draft, in words
    projector: InstalledModel | None = None  # with which the target reads pictures

    @property
    def models(self) -> tuple[InstalledModel, ...]:
        return tuple(model for model in (self.target, self.draft, self.projector) if model)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(model.size for model in self.models)

    @property
    def missing(self) -> tuple[str, ...]:
        """The files that are no longer there."""
        return tuple(path for model in self.models for path in model.missing)


def pair_of(name: str, fields: object) -> InstalledPair:
    """Returns the pair in a JSON object. Raises TypeError or ValueError for none."""
    pair = checked(InstalledPair, fields)
    times = (pair.installed_at, pair.last_used or 0.0, pair.speed.at if pair.speed else 0.0)
    if pair.name != name or not all(model.paths for model in pair.models):
        raise ValueError("not a pair")
    if not all(0 <= seconds < END_OF_CALENDARS for seconds in times):
        raise ValueError("not a time")
    return pair
