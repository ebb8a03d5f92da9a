"""What an engine has to know of a pair: its files or repositories, its drafter, and the draft length."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.errors import SettingError
from edgespec_models.gguf.header import Header
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueModel, catalogue
from edgespec_models.shelf.installed_pair import InstalledModel

Guesses = Literal["draft", "mtp", "eagle3", "dflash", "dspark"]
LENGTH = 4  # draft length if nothing is known: what engines for many users begin with
_HUB = re.compile(r"https?://huggingface\.co/([\w.-]+/[\w.-]+?)/?$")
_BASES = ("general.source.huggingface.repository", "general.source.repo_url", "general.repo_url")
_QUANT = re.compile(
    r"[-.]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """One model: its file here, or in a repository of the hub."""

    path: Path | None = None
    repo: str = ""  # of the GGUF file
    file: str = ""  # in that repository
    base: str = ""  # the repository of the weights that it was made from; "" if unknown

    @property
    def quant(self) -> str:
        """The number format, as repositories of GGUF files name it; "" if the file's name does not say."""
        found = _QUANT.search(self.path.name if self.path else self.file)
        return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Exported:
    """A pair, described for other engines."""

    name: str
    target: ExportedModel
    draft: ExportedModel | None  # a model, or a head in a file of its own
    guesses: Guesses | None  # what guesses; None: nothing does
    length: int  # guesses at a time
    length_from: str  # where the length comes from, in a clause
    n_ctx: int
    translated: bool = False  # target and draft have different vocabularies


def of_catalogue(entry: CatalogueEntry, *, n_ctx: int, length: int, length_from: str) -> Exported:
    """Returns a pair of the catalogue as it is on the hub."""
    target, draft = _on_the_hub(entry.target), _on_the_hub(entry.draft)
    return Exported(entry.name, target, draft, "draft", length, length_from, n_ctx)


def _on_the_hub(model: CatalogueModel) -> ExportedModel:
    return ExportedModel(repo=model.repo, file=model.file, base=model.base)


def of_file(path: Path, header: Header, installed: InstalledModel | None) -> ExportedModel:
    """Returns a model of this machine. installed: where it came from, if known."""
    repo = installed.repo if installed else ""
    return ExportedModel(path=path, repo=repo, file=path.name, base=_base(path, header, repo))


def _base(path: Path, header: Header, repo: str) -> str:
    """Returns the repository of the weights; "" if neither catalogue nor header names a reliable one.

    A header's `base_model` is often what a model was tuned from, not what the file was made from: it counts
    if it has the file's own name.
    """
    known = {model.repo: model.base for entry in catalogue() for model in (entry.target, entry.draft)}
    if repo in known:
        return known[repo]
    for key in _BASES:
        if (found := _HUB.match(str(header.metadata.get(key, "")))) and not found[1].lower().endswith("gguf"):
            return found[1]
    found = _HUB.match(str(header.metadata.get("general.base_model.0.repo_url", "")))
    return (
        found[1] if found and _plain(found[1].partition("/")[2]) == _plain(_QUANT.sub("", path.name)) else ""
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def base_of(model: ExportedModel, flag: str, engine: str) -> str:
    """Returns the repository that an engine without GGUF loads. Raises SettingError if none is known."""
    if model.base:
        return model.base
    what = model.path.name if model.path else model.file
    raise SettingError(
        f"{engine} does not read GGUF files, and the repository {what} was made from is unknown: name it "
        f"with {flag} OWNER/NAME"
    )
