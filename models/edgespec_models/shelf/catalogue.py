"""The catalogue: pairs worth trying, read from pairs.toml, which explains its fields."""

import difflib
import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

MachineClass = Literal["tiny", "laptop", "8 GB", "12-16 GB", "24 GB"]
Use = Literal["chat", "code", "fim"]
STARTER = "smollm2-135m"  # what a first `make chat` answers with
UNVERIFIABLE = {"repo", "file", "size_gb", "gated"}


class CatalogueError(Exception):
    """The catalogue has no such pair, or is itself wrong; the message is one sentence for a user."""


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model of a pair on the hub."""

    repo: str
    file: str  # the first part, of a split model
    revision: str
    size: int  # bytes, about
    licence: str
    unverified: frozenset[str]  # which of these were never checked on the hub
    memory: str = "attention"  # or "sliding window", "hybrid"
    experts: bool = False  # a mixture of experts
    gated: bool = False  # the hub requires accepting terms
    sha256: str = ""  # of the file, if only that very one is wanted
    package: str = ""  # NAME==VERSION in pip's index that holds it too
    base: str = ""  # the repository of the weights that it was made from


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A pair, what it is for, and what is known of its gain."""

    name: str
    machine: MachineClass
    use: Use
    context: int  # tokens
    target: CatalogueModel
    draft: CatalogueModel | None
    gain: str  # "" if unknown
    gain_from: str
    acceptance: float | None  # measured share of single guesses that are accepted
    notes: tuple[str, ...]

    @property
    def models(self) -> tuple[CatalogueModel, ...]:
        return (self.target, self.draft) if self.draft else (self.target,)

    @property
    def size(self) -> int:
        """Bytes to download, about."""
        return sum(model.size for model in self.models)

    @property
    def verified(self) -> bool:
        """Whether all of it was checked on the hub."""
        return not any(model.unverified for model in self.models)


@lru_cache(maxsize=1)
def catalogue() -> tuple[CatalogueEntry, ...]:
    """Returns the pairs of the shipped catalogue, in the order of the file."""
    return read_catalogue(Path(__file__).with_name("pairs.toml"))


def read_catalogue(path: Path) -> tuple[CatalogueEntry, ...]:
    """Reads a catalogue. Raises CatalogueError if a field is missing, unknown or has a wrong value."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        entries = tuple(_entry(table) for table in content["pair"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CatalogueError(f"the catalogue {path} is wrong: {error}") from None
    names = [entry.name for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise CatalogueError(f"the catalogue {path} has {name!r} twice")
    return entries


def find(name: str) -> CatalogueEntry:
    """Returns the pair of that name. Raises CatalogueError that names similar ones."""
    for entry in catalogue():
        if entry.name == name.lower():
            return entry
    near = difflib.get_close_matches(name.lower(), [entry.name for entry in catalogue()], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`edgespec pull` lists them"
    raise CatalogueError(f"the catalogue has no pair {name!r}: {hint}")


def _entry(table: dict[str, Any]) -> CatalogueEntry:
    given = {"draft": None, "acceptance": None, **table}
    machine, draft = given.pop("class"), given["draft"]
    if machine not in get_args(MachineClass) or given["use"] not in get_args(Use):
        raise ValueError(f"{given['name']}: class {machine!r} or use {given['use']!r} is not known")
    given |= {"machine": machine, "target": _model(given["target"]), "draft": draft and _model(draft)}
    if unknown := given.keys() - {field.name for field in fields(CatalogueEntry)}:
        raise ValueError(f"{given['name']}: unknown fields {sorted(unknown)}")
    return CatalogueEntry(**{**given, "notes": tuple(given["notes"])})


def _model(table: dict[str, Any]) -> CatalogueModel:
    given = {**table, "unverified": frozenset(table["unverified"])}
    given["size"] = round(given.pop("size_gb") * 1e9)
    unknown = given.keys() - {field.name for field in fields(CatalogueModel)}
    if unknown or not given["unverified"] <= UNVERIFIABLE:
        raise ValueError(
            f"{given['repo']}: unknown fields {sorted(unknown)} or {sorted(given['unverified'])}"
        )
    return CatalogueModel(**given)
