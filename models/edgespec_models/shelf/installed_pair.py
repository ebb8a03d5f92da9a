"""An installed pair as a value, and read from JSON that is not trusted before it was checked."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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


def pair_of(name: str, fields: dict[str, Any]) -> InstalledPair:
    """Returns the pair in a JSON object. Raises KeyError, TypeError or ValueError for none."""
    draft, speed, last_used = fields["draft"], fields.get("speed"), fields.get("last_used")
    projector = fields.get("projector")
    if fields["source"] not in ("pulled", "imported") or fields["name"] != name:
        raise ValueError("not a pair")
    return InstalledPair(
        name=name,
        target=_model(object_of(fields["target"])),
        draft=None if draft is None else _model(object_of(draft)),
        source=fields["source"],
        installed_at=_time(fields["installed_at"]),
        last_used=None if last_used is None else _time(last_used),
        speed=None if speed is None else _speed(object_of(speed)),
        note=_text(fields.get("note", "")),
        projector=None if projector is None else _model(object_of(projector)),
    )


def _model(fields: dict[str, Any]) -> InstalledModel:
    paths = texts_of(fields["paths"])
    if not paths:
        raise ValueError("a model without files")
    return InstalledModel(
        paths,
        int(_number(fields["size"])),
        _text(fields.get("repo", "")),
        _text(fields.get("revision", "")),
        texts_of(fields.get("sha256", [])),
        fields.get("fetched") is True,
    )


def _speed(fields: dict[str, Any]) -> Speed:
    plain = fields.get("plain_tok_per_s")
    at = _time(fields["at"])
    return Speed(_number(fields["tok_per_s"]), None if plain is None else _number(plain), at)


def _time(value: object) -> float:
    seconds = _number(value)
    if not 0 <= seconds < END_OF_CALENDARS:
        raise ValueError("not a time")
    return seconds


def object_of(value: object) -> dict[str, Any]:
    """Returns a JSON object. Raises TypeError for anything else."""
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def texts_of(value: object) -> tuple[str, ...]:
    """Returns a list of texts. Raises TypeError for anything else."""
    if not isinstance(value, list):
        raise TypeError("not a list")
    return tuple(map(_text, value))


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError("not a number")
    return value
