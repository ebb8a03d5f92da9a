"""The one pair of the catalogue to try next: it fits this machine, and its guesses are expected to pay here.

What `edgespec plan` has estimated here comes first, then what others measured, then what is possible: a
token of a model takes as long as reading its weights, and a row more takes nothing. That is the most a pair
can gain. llama.cpp is not asked.
"""

import os
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from edgespec.memory.free import free_memory
from edgespec.pairs.found import EASY, OVERHEAD
from edgespec.pairs.planned import PlannedSpeed, planned
from edgespec.system.cores import performance_cores
from edgespec_models.shelf.catalogue import CatalogueEntry, catalogue
from edgespec_models.shelf.found import hub_folder
from edgespec_models.shelf.sizes import SPARE, free_bytes, size_text
from edgespec_models.shelf.store import EMBEDDED

CORE_READS = 5e9  # bytes a second, about, of quantised weights
SLOWEST = 5.0  # tokens a second, as people read
PAYS = 1.1  # a smaller gain than this is not worth a download
ACCEPTED = {"chat": 0.6, "code": 0.75, "fim": 0.7}  # of one guess, assumed if nothing is known
EMBEDDED_ACCEPTED = 0.61  # measured on held-out prompts, greedy, four at a time (its model card)


@dataclass(frozen=True, slots=True)
class Recommended:
    """A pair and what to expect of it."""

    entry: CatalogueEntry
    gain: float  # about, over plain decoding
    expectation: str  # the gain in words, and who says so

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def sentence(self) -> str:
        """Names it with its size and what to expect."""
        return f"{self.name} ({size_text(self.entry.size)}): {self.expectation}"


def recommended(memory: int, disk: int, cores: int, *, here: Container[str] = ()) -> Recommended | None:
    """Returns the pair for chats that promises most on a machine like this; None if none fits.

    memory: bytes of the machine; disk: bytes that are free; cores: that evaluate. here: pairs that need no
    download.
    """
    found = []
    for entry in catalogue():
        speed = planned(entry.name)
        fits = entry.size + OVERHEAD <= EASY * memory
        room = entry.name in here or entry.size + SPARE <= disk
        if not (fits and room) or entry.use != "chat" or entry.draft is None:
            continue
        if _readable(entry, speed, cores) and (one := _expected(entry, speed)).gain >= PAYS:
            found.append((speed is not None, one.gain, one))
    return max(found, key=lambda one: one[:2], default=(False, 0.0, None))[2]


def recommended_here(here: Container[str] = ()) -> Recommended | None:
    """Returns the pair that promises most on this machine; None if none fits. here: those installed."""
    disk = free_bytes(hub_folder(os.environ, Path.home()))
    return recommended(free_memory()[1], disk, performance_cores(), here=here)


def _readable(entry: CatalogueEntry, speed: PlannedSpeed | None, cores: int) -> bool:
    """Returns whether its answers come about as fast as they are read."""
    if speed:
        return speed.plain_tok_per_s >= SLOWEST
    usual = entry.target.memory != "hybrid" and not entry.target.experts  # in both, a check costs more
    return usual and entry.target.size * SLOWEST <= CORE_READS * cores


def _expected(entry: CatalogueEntry, speed: PlannedSpeed | None) -> Recommended:
    if speed:
        return Recommended(entry, speed.gain or 1.0, speed.sentence())
    assert entry.draft
    if entry.gain:
        return Recommended(entry, float(entry.gain.split()[0]), f"{entry.gain} times as fast elsewhere")
    accepted, _ = acceptance_of(entry.name)
    gain = most_gain(accepted, entry.draft.size / entry.target.size)
    sentence = f"up to {gain:.1f} times as fast where {accepted:.0%} of the guesses are right"
    return Recommended(entry, gain, sentence)


def acceptance_of(name: str) -> tuple[float, bool]:
    """Returns what is known of a pair's guesses, and whether it is only assumed."""
    if name == EMBEDDED:
        return EMBEDDED_ACCEPTED, False
    entry = next((one for one in catalogue() if one.name == name.lower()), None)
    if entry and entry.acceptance is not None:
        return entry.acceptance, False
    return ACCEPTED[entry.use if entry else "chat"], True


def most_gain(accepted: float, cost: float) -> float:
    """Returns the best speed-up by guesses that are each accepted so often, and cost so much of a token."""
    return max((1 - accepted ** (k + 1)) / (1 - accepted) / (1 + k * cost) for k in range(17))
