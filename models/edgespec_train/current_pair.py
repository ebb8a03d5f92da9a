"""Which pair a new draft is for, and making it that pair's draft."""

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec.errors import ModelFileError
from edgespec.pairs.store import installed_pair, open_store, store_errors
from edgespec_models import tiny
from edgespec_models.gguf.header import split_names
from edgespec_models.shelf.store import EMBEDDED, InstalledModel, InstalledPair

_NAME = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class CurrentPair:
    """A target, its current draft, and the installed pair that both are, if so."""

    target: Path
    draft: Path | None
    pair: InstalledPair | None


def current_pair(named: str) -> CurrentPair:
    """Returns what a name or a file stands for. Raises ModelFileError, SettingError."""
    if named == EMBEDDED:
        return CurrentPair(tiny.target_path(), tiny.draft_path(), None)
    path = Path(os.path.expanduser(named))
    if not path.is_file():
        if os.sep in named or named.endswith(".gguf"):
            raise ModelFileError(f"there is no file {named}: name a GGUF file, or an installed pair")
        pair = installed_pair(named)
        assert pair is not None  # a name that is not installed was refused
        return CurrentPair(pair.target.path, pair.draft.path if pair.draft else None, pair)
    path = path.absolute()
    with store_errors():
        for pair in open_store().pairs():
            if pair.target.path.absolute() == path:
                return CurrentPair(path, pair.draft.path if pair.draft and not pair.missing else None, pair)
    return CurrentPair(path, None, None)


def install(found: CurrentPair, draft: Path, named: str) -> str:
    """Makes a new file the draft of a pair, under a name that tries do not write; returns the pair's."""
    place = draft.with_name(draft.name.removeprefix("new-"))
    os.replace(draft, place)
    model = InstalledModel((str(place.absolute()),), place.stat().st_size)
    with store_errors():
        if found.pair:
            note = f"made by edgespec distill, in place of {found.draft.name if found.draft else 'none'}"
            open_store().add(replace(found.pair, draft=model, note=note))
            return found.pair.name
        parts = [found.target.with_name(name) for name in split_names(found.target.name)]
        target = InstalledModel(tuple(map(str, parts)), sum(part.stat().st_size for part in parts))
        name = "embedded-distilled" if named == EMBEDDED else _NAME.sub("-", found.target.stem.lower())
        name = name.strip("._-")[:64] or "distilled"
        note = "made by edgespec distill"
        open_store().add(InstalledPair(name, target, model, "imported", time.time(), note=note))
    return name
