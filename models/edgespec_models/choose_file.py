"""Which file of a repository is meant: by name, by quantisation, or the usual one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgespec_models.gguf_header import split_names
from edgespec_models.hub import HubFile, Repository
from edgespec_models.hub_errors import HubError

USUAL_TARGET = ("Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "MXFP4", "Q5_K_M", "Q6_K", "Q8_0", "F16", "BF16")
USUAL_DRAFT = ("Q8_0", "Q4_K_M", "Q4_0", "Q6_K", "Q5_K_M", "F16", "BF16")  # small, so precision is cheap
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q\d(?:_[A-Za-z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"(^|/)(mmproj|mtp|imatrix|eagle3|dflash|dspark)[-_.]|imatrix", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user names: owner/name, and which of its files."""

    repo: str
    which: str  # a quantisation, a file name, or "" for the usual
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo + (f":{self.which}" if self.which else "")


@dataclass(frozen=True, slots=True)
class Chosen:
    """One model on the hub: its parts in order."""

    parts: tuple[HubFile, ...]
    quantisation: str  # as the file's name has it; "" where it has none

    @property
    def first(self) -> HubFile:
        """The part with the header that counts."""
        return self.parts[0]

    @property
    def size(self) -> int:
        """Bytes of all parts, as far as the hub says."""
        return sum(part.size or 0 for part in self.parts)


def parse_wanted(text: str) -> Wanted:
    """Reads repo[:quant] or repo[:file.gguf], also as an address. Raises HubError."""
    text = re.sub(r"^(https?://[^/]+/|hf\.co/|hf://)", "", text.strip()).rstrip("/")
    repo, _, which = text.partition(":")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise HubError(
            f"{text!r} is neither a pair of the catalogue nor a repository: write owner/name or "
            "owner/name:Q4_K_M; `edgespec pull` lists the catalogue"
        )
    return Wanted(repo, which)


def quantisation_of(name: str) -> str:
    """Returns the quantisation that a file name tells, as "Q4_K_M"; "" where it tells none."""
    found = _QUANT.findall(name)
    return found[-1].upper() if found else ""


def choose(repository: Repository, which: str, *, draft: bool) -> Chosen:
    """Returns the model that is meant. Raises HubError that says what there is instead."""
    models = _models(repository)
    if not models:
        raise HubError(
            f"{repository.repo} holds no GGUF model: look for a repository whose name ends in -GGUF"
        )
    if which.lower().endswith(".gguf"):
        found = [model for model in models if which in (part.name for part in model.parts)]
    elif which:
        found = [model for model in models if model.quantisation == which.upper()]
    else:
        found = _usual(models, USUAL_DRAFT if draft else USUAL_TARGET)
    if not found:
        raise HubError(f"{repository.repo} has no {which}: it has {_listed(models)}")
    if len(found) > 1:
        names = " or ".join(model.first.name for model in found[:4])
        raise HubError(
            f"{repository.repo} has several models that could be meant: say which, as "
            f"{repository.repo}:{found[0].first.name} ({names})"
        )
    return found[0]


def _models(repository: Repository) -> list[Chosen]:
    """Returns the models of a repository, parts gathered; one that lacks a part is left out."""
    models = []
    for name in sorted(repository.files):
        if not name.lower().endswith(".gguf") or _NO_MODEL.search(name):
            continue
        folder, _, base = name.rpartition("/")
        parts = [f"{folder}/{part}" if folder else part for part in split_names(base)]
        if name == parts[0] and all(part in repository.files for part in parts):
            models.append(Chosen(tuple(repository.files[part] for part in parts), quantisation_of(name)))
    return models


def _usual(models: list[Chosen], order: tuple[str, ...]) -> list[Chosen]:
    for quantisation in order:
        found = [model for model in models if model.quantisation == quantisation]
        if found:
            return found
    return models[:1] if len(models) == 1 else []


def _listed(models: list[Chosen]) -> str:
    return ", ".join(sorted({model.quantisation or model.first.name for model in models}))
