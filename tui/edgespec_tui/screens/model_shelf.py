"""The pairs to choose from: the installed ones, the shipped one, and the catalogue's.

What fits is judged by this machine's memory alone: a pair takes about its files and `OVERHEAD` more. An
engine that is started measures it exactly, graphics cards included, and reports if it does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import psutil

from edgespec.errors import SettingError
from edgespec.memory.recommended import Recommended
from edgespec.pairs.found import EASY, OVERHEAD, Found, name_of
from edgespec.pairs.planned import planned
from edgespec_models import tiny
from edgespec_models.shelf.catalogue import CatalogueEntry, catalogue
from edgespec_models.shelf.sizes import size_text
from edgespec_models.shelf.store import EMBEDDED, InstalledPair, Store, StoreError

if TYPE_CHECKING:
    from edgespec_models.hub.hub import Hub
    from edgespec_models.hub.model_pull import ModelPull

TIGHT = 0.92  # share of the memory, as EASY: a machine has other things to do
MACHINES = {"tiny": "any machine", "laptop": "a laptop"}
Fit = Literal["fits", "tight", "too large"]
FITS: tuple[Fit, ...] = get_args(Fit)
Kind = Literal["installed", "embedded", "catalogue"]


@dataclass(frozen=True, slots=True)
class ShelfPair:
    """One pair of the list."""

    name: str
    kind: Kind
    size: int  # bytes of its files
    fit: Fit
    use: str = ""
    gain: str = ""  # the expected speed-up, and who says so
    detail: tuple[str, ...] = ()  # more about it, in lines
    target: Path | None = None  # files, if they are on this machine
    draft: Path | None = None
    missing: bool = False  # files that are gone
    best: bool = False  # the one that promises most on this machine

    @property
    def gain_first(self) -> tuple[int, float, int]:
        """The order of what can be pulled: what fits best, then what gains most, then the largest."""
        gain = float(known[0]) if (known := re.match(r"[\d.]+", self.gain)) else 0.0
        return FITS.index(self.fit), -gain, -self.size

    def gone(self) -> str:
        """Says that a file is no longer there; "" if all are."""
        lost = next((file for file in (self.target, self.draft) if file and not file.exists()), None)
        return f"{lost} is gone: {self.name} cannot be used; Ctrl+L lists the others" if lost else ""

    def holds(self, words: str) -> bool:
        """True if every word is in what is known of it."""
        known = " ".join([self.name, self.use, self.kind, *self.detail]).lower()
        return all(word in known for word in words.lower().split())


def fit_of(size: int, memory: int) -> Fit:
    """Returns whether files of this size run well on a machine with so much memory, in bytes."""
    share = (size + OVERHEAD) / memory
    return "fits" if share <= EASY else "tight" if share <= TIGHT else "too large"


def _installed(pair: InstalledPair, memory: int, *, default: bool) -> ShelfPair:
    gain, speed = "", pair.speed
    detail = [f"target {pair.target.path.name}"]
    detail.append(f"draft {pair.draft.path.name}" if pair.draft else "no draft: guesses come from the text")
    if speed:
        speeds = f"{speed.tok_per_s:.1f} tok/s here"
        if speed.plain_tok_per_s:
            gain = f"{speed.tok_per_s / speed.plain_tok_per_s:.2f}x here"
            speeds += f", {speed.plain_tok_per_s:.1f} plain"
        detail.append(speeds)
    if default:
        detail.append("the default")
    if pair.note:
        detail.append(pair.note)
    if pair.missing:
        detail.append(f"{Path(pair.missing[0]).name} is gone: pull it again")
    return ShelfPair(
        pair.name,
        "installed",
        pair.size,
        fit_of(pair.size, memory),
        gain=gain,
        detail=tuple(detail),
        target=pair.target.path,
        draft=pair.draft.path if pair.draft else None,
        missing=bool(pair.missing),
    )


def _embedded(memory: int) -> ShelfPair:
    files = (Path(tiny.target_path()), Path(tiny.draft_path()))
    size = sum(file.stat().st_size for file in files)
    return ShelfPair(
        EMBEDDED,
        "embedded",
        size,
        fit_of(size, memory),
        "demo",
        detail=("ships with EdgeSpec; knows a little about Python's library and nothing else",),
        target=files[0],
        draft=files[1],
    )


def _offered(entry: CatalogueEntry, memory: int) -> ShelfPair:
    detail = [
        *(
            f"{role} {model.repo} ({size_text(model.size)}, {model.licence})"
            for role, model in zip(("target", "draft"), entry.models, strict=False)
        ),
        f"for {MACHINES.get(entry.machine, entry.machine + ' of memory')}",
        *([f"gain: {entry.gain_from}"] if entry.gain_from else []),
        *entry.notes,
    ]
    if any(model.gated for model in entry.models):
        detail.append("gated: accept its terms on the hub first, and log in with `hf auth login`")
    if not entry.verified:
        detail.append("sizes and file names have not been checked against the hub; pulling checks them first")
    gain = f"{entry.gain}x elsewhere" if entry.gain else ""
    if known := planned(entry.name):
        gain = f"{known.gain:.2f}x planned" if known.gain else ""
        detail.insert(0, known.sentence())
    return ShelfPair(
        entry.name, "catalogue", entry.size, fit_of(entry.size, memory), entry.use, gain, tuple(detail)
    )


def offered(found: Found) -> str:
    """Says of a pair that was found here what it is, how large, and what it may bring."""
    draft = f" with {Path(found.draft_label).name} as its draft" if found.draft else ""
    gain = f"{elsewhere}x elsewhere" if (elsewhere := _gain_elsewhere(found)) else ""
    if (known := planned(name_of(found.label))) and known.gain:
        gain = f"{known.gain:.2f}x planned here"
    if not gain:
        gain = "F5 then measures what its draft brings" if found.draft else "guesses come from the text"
    return f"{Path(found.label).name} of {found.program}{draft}: {size_text(found.size)}, fits; {gain}"


def _gain_elsewhere(found: Found) -> str:
    """Returns what the catalogue says of these files, if it has them."""
    files = Path(found.target.path).name, Path(found.draft.path).name if found.draft else ""
    known = (entry for entry in catalogue() if tuple(model.file for model in entry.models) == files)
    return next((entry.gain for entry in known), "")


class Shelf:
    """What the app knows of pairs. pull: the one that runs or ran last, if any; it outlives screens.

    on_end: called with a pull that has ended, from its thread. watched: a screen shows the pull. hub: makes
    the hub to pull from, instead of the usual one.
    """

    def __init__(
        self,
        store: Store,
        *,
        hub: Callable[[], Hub] | None = None,
        memory: int | None = None,
        look: Callable[[int], Found | None] = lambda memory: None,
        recommended: Callable[[], Recommended | None] = lambda: None,
    ) -> None:
        """recommended: finds the pair that is expected to gain most here.

        look: for models of other programs; returns the best that fits so many bytes of memory.
        """
        self._store, self._hub, self._look = store, hub, look
        self.recommended = recommended
        self._memory = memory or int(psutil.virtual_memory().total)
        self.pull: ModelPull | None = None
        self.watched = False
        self.on_end: Callable[[ModelPull], None] = lambda _: None

    def pairs(self) -> list[ShelfPair]:
        """Returns all: the installed by name, the embedded one, then the catalogue's that fit and gain most.

        The best for this machine comes first of its kind, and before all others if it is to be pulled. Raises
        SettingError if the store cannot be read.
        """
        try:
            installed, default = self._store.pairs(), self._store.default()
        except StoreError as error:
            raise SettingError(str(error)) from None
        names = {pair.name for pair in installed}
        offered = [_offered(entry, self._memory) for entry in catalogue() if entry.name not in names]
        pairs = [
            *(_installed(pair, self._memory, default=pair.name == default) for pair in installed),
            _embedded(self._memory),
            *sorted(offered, key=lambda pair: pair.gain_first),
        ]
        if (best := self.recommended()) is not None:
            pairs = [replace(pair, best=pair.name == best.name) for pair in pairs]
        return sorted(pairs, key=lambda pair: not pair.best)

    def begin_pull(self, what: str) -> ModelPull:
        """Starts a pull; raises SettingError while another one runs."""
        from edgespec_models.hub.hub import Hub  # half a second: most chats pull nothing
        from edgespec_models.hub.model_pull import ModelPull

        if self.pull is not None and not self.pull.over:
            raise SettingError(f"{self.pull.what} is being pulled: wait for it, or stop it first")
        self.pull = ModelPull(what, self._store, hub=self._hub or Hub, on_end=self.on_end)
        return self.pull

    def look(self) -> Found | None:
        """Looks for models that other programs have downloaded; takes seconds."""
        return self._look(self._memory)

    def take(self, found: Found) -> ShelfPair:
        """Installs a pair of found models. Raises SettingError, also if its files have gone since."""
        lost = [*found.target.missing, *(found.draft.missing if found.draft else ())]
        if lost:
            raise SettingError(
                f"{lost[0]} is gone since it was found here: Ctrl+L lists the models there are"
            )
        return _installed(found.installed(self._store), self._memory, default=True)

    def note_use(self, pair: ShelfPair) -> None:
        """Notes that a pair was chosen."""
        if pair.kind == "installed":
            with suppress(StoreError):
                self._store.note_use(pair.name)

    def close(self) -> None:
        """Stops a pull; what has come is kept."""
        if self.pull is not None:
            self.pull.cancel()
