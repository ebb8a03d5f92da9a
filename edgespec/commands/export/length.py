"""Which draft length pays, by what this machine knows of a pair: its costs, and its acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgespec.core.pace.worth import best_length
from edgespec.core.values import LONGEST_DRAFT
from edgespec.engine.experience import Knowledge, load
from edgespec.engine.measuring import costs_path_of
from edgespec.engine.placing import Place
from edgespec.llama.devices import cards
from edgespec.pairs.settings import PairSettings
from edgespec_models.gguf.heads import HeadKind

ENOUGH = 30.0  # guesses


@dataclass(frozen=True, slots=True)
class MeasuredLength:
    """A length, and the acceptance rate that it rests on."""

    length: int
    accepted: float


def measured_length(
    target: Path, draft: Path | None, head: HeadKind | None, settings: PairSettings
) -> MeasuredLength | None:
    """Returns the one draft length that would pay best; None if the pair has not run here enough.

    head: the kind that the draft's or the target's file holds.
    """
    there = cards()
    moved = Place(target, None if head else draft, settings, there).known() == 0  # it was worth more there
    beside = bool(there) and not moved
    kept_in = costs_path_of(target, draft, head, settings, on_gpu=bool(there), draft_on_gpu=beside)
    return by_what_is_known(load(kept_in))


def by_what_is_known(known: Knowledge) -> MeasuredLength | None:
    """Returns the same, by costs and experience; at least 1, because an engine is told to guess."""
    odds = [held.model for held in known.kinds.values()]
    seen = sum(sum(of.seen) for of in odds)
    if known.costs is None or seen < ENOUGH:
        return None
    accepted = sum(sum(of.accepted) for of in odds) / seen
    reach = tuple(accepted**k for k in range(1, LONGEST_DRAFT + 1))
    step = 0.0 if known.costs.at_once else known.costs.draft.seconds(1)
    _, length = best_length(reach, known.costs.target.prices(LONGEST_DRAFT + 1), step)
    return MeasuredLength(max(1, length), accepted)
