"""Takes the measurements: runs units until they are done, the time is up, or the user stops it.

Invariant: figures rest on whole units. An interrupted one is dropped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgespec.measure.figures import Sample
from edgespec.measure.lines import Line, Unit
from edgespec.system.other_programs import Others

Cancelled = Callable[[], bool]
Take = Callable[[Line, Unit], Sample | None]  # None: cancelled before there was a sample
OnProgress = Callable[[Unit, Line], None]


@dataclass(slots=True)
class Measured:
    """The results. others: for each finished unit the cores that other programs kept busy during it.

    samples holds only finished units: a line without its partners would shift the medians.
    """

    planned: int
    samples: list[Sample] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    finished: int = 0
    seconds: float = 0.0
    cancelled: bool = False

    @property
    def out_of_time(self) -> bool:
        return self.finished < self.planned and not self.cancelled


def measure(
    units: Sequence[Unit],
    take: Take,
    *,
    budget_s: float,
    cancelled: Cancelled = lambda: False,
    on_progress: OnProgress = lambda unit, line: None,
    clock: Callable[[], float] = time.perf_counter,
    others: Callable[[], float] | None = None,
) -> Measured:
    """Takes the units in order; begins none that, going by those before, would end past the budget."""
    others = others or Others().cores
    result = Measured(len(units))
    started, longest = clock(), 0.0
    for unit in units:
        began = clock()
        if result.finished and began - started + longest > budget_s:
            break
        taken: list[Sample] = []
        for line in unit.lines:
            on_progress(unit, line)
            sample = take(line, unit)
            if sample is None or cancelled():
                break
            taken.append(sample)
        if cancelled():
            result.cancelled = True
            break
        result.samples += taken
        result.others.append(others())
        result.finished += 1
        longest = max(longest, clock() - began)
    result.seconds = clock() - started
    return result
