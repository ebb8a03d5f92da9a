"""Units run whole, in order, within the budget; nothing is half taken."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgespec.measure.figures import Sample
from edgespec.measure.in_turn import Measured, measure
from edgespec.measure.lines import Line, Unit, lines_for, units_for
from edgespec.measure.prompts import built_in


@dataclass
class Machine:
    """Takes samples in made-up time: `seconds` each. All is cancelled at the n-th."""

    seconds: float = 1.0
    cancelled_at: int | None = None
    now: float = 0.0
    taken: list[tuple[int, str]] = field(default_factory=list)

    def cancelled(self) -> bool:
        return self.cancelled_at is not None and len(self.taken) >= self.cancelled_at

    def take(self, line: Line, unit: Unit) -> Sample | None:
        self.now += self.seconds
        self.taken.append((unit.number, line.name))
        if self.cancelled():
            return None
        values: dict[str, Any] = dict.fromkeys(Sample.__slots__, 0)
        values |= {"unit": unit.number, "mode": line.mode, "line": line.name, "prompt": unit.prompt.name}
        return Sample(**values)

    def run(self, *, budget: float = 1e9, repeats: int = 1) -> Measured:
        lines = lines_for(("greedy", "sampled"), sweep=False)
        units = units_for(built_in()[:4], lines, repeats=repeats, rng=np.random.default_rng(0))
        return measure(
            units,
            self.take,
            budget_s=budget,
            cancelled=self.cancelled,
            clock=lambda: self.now,
            others=lambda: 0.25,
        )


def test_everything_is_taken_when_there_is_time() -> None:
    machine = Machine()
    got = machine.run()
    assert (got.planned, got.finished, got.seconds, len(got.samples)) == (8, 8, 16.0, 16)
    assert got.others == [0.25] * 8
    assert not got.out_of_time and not got.cancelled
    assert [unit for unit, _ in machine.taken] == sorted(unit for unit, _ in machine.taken)


def test_no_unit_is_begun_that_would_end_too_late() -> None:
    got = Machine().run(budget=7.0)  # units of 2 seconds: the fourth would end at 8
    assert (got.finished, got.seconds, got.out_of_time) == (3, 6.0, True)


def test_the_first_unit_is_taken_however_small_the_budget() -> None:
    assert Machine(seconds=50.0).run(budget=0.1).finished == 1


def test_after_ctrl_c_whole_units_are_kept_and_the_broken_one_is_not() -> None:
    got = Machine(cancelled_at=6).run()
    assert (got.finished, len(got.samples), got.cancelled, got.out_of_time) == (2, 4, True, False)


def test_samples_know_their_unit() -> None:
    got = Machine().run()
    assert sorted({sample.unit for sample in got.samples}) == list(range(8))
    assert replace(got.samples[0], unit=5).unit == 5
