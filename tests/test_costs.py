"""Cost tables: values between measurements, what is learned, and a measurement that keeps to its time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from edgespec.core.pace.costs import (
    BULK,
    FALL,
    LARGEST,
    PRIORS,
    REPEATS,
    SIZES,
    SLOPE,
    CostTable,
    Hardware,
    assumed,
    from_measured,
    measure,
)

POINTS = {1: 1.0, 3: 2.0, 4: 1.6, 8: 3.0}
HARDWARE: tuple[Hardware, ...] = ("gpu", "cpu-float", "cpu-quantised")


# --- reading the table


def test_between_points_costs_lie_on_straight_lines() -> None:
    table = CostTable(POINTS)
    assert [table.seconds(n) for n in (1, 2, 3, 4, 5, 6, 8)] == pytest.approx([1, 1.5, 2, 1.6, 1.95, 2.3, 3])


def test_past_the_largest_each_token_costs_as_there() -> None:
    table = CostTable(POINTS)
    assert table.seconds(16) == pytest.approx(6) and table.seconds(80) == pytest.approx(30)


def test_context_costs_by_token_and_length() -> None:
    table = CostTable(POINTS, slope=0.05)
    assert table.seconds(4, 2000) == pytest.approx(1.6 + 0.05 * 4 * 2)
    table.level = 2.0
    assert table.seconds(4, 2000) == pytest.approx(2 * (1.6 + 0.05 * 4 * 2))


@pytest.mark.parametrize("n_ctx", [0, 777, 30_000])
def test_prices_are_the_seconds_of_each_number_of_tokens(n_ctx: int) -> None:
    for up_to in (1, 5, 8, 30):
        table = CostTable(POINTS, slope=0.02, level=1.3)
        wanted = [0.0, *(table.seconds(n, n_ctx) for n in range(1, up_to + 1))]
        assert table.prices(up_to, n_ctx).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("points", [{}, {2: 1.0}, {1: 0.0}, {1: -1.0}, {1: 1.0, 2: math.nan}, {1: math.inf}])
def test_what_is_no_time_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no seconds"):
        CostTable(points)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_assumptions_rise_and_say_that_they_are_none(hardware: Hardware) -> None:
    table = assumed(hardware, 0.01)
    assert table.seconds(1) == 0.01 and not table.measured
    assert all(np.diff(table.prices(60)) > 0)
    assert PRIORS[hardware][0] == (1, 1.0)


def test_what_was_not_measured_continues_what_was() -> None:
    table = from_measured("cpu-float", {1: 2.0, 4: 3.0, 2: 2.2})
    assert table.measured == {1, 2, 4}
    assert table.seconds(3) == pytest.approx(2.6)
    prior = assumed("cpu-float", 1.0)
    for n in (8, 12, 48):
        assert table.seconds(n) == pytest.approx(3.0 * prior.seconds(n) / prior.seconds(4))


# --- learning


def taught(table: CostTable, truth: Callable[[int, int], float], times: int, seed: int = 0) -> CostTable:
    """Shows a table sizes and contexts at random, with the noise of a quiet machine."""
    rng = np.random.default_rng(seed)
    for _ in range(times):
        n, n_ctx = int(rng.choice([1, 2, 4, 5, 8])), int(rng.integers(0, 4000))
        table.learn(n, n_ctx, truth(n, n_ctx) * math.exp(0.03 * rng.standard_normal()))
    return table


def off(table: CostTable, truth: Callable[[int, int], float], n_ctx: int = 500) -> float:
    """Returns the largest error at sizes that are seen, as a factor."""
    return max(
        abs(math.log(table.seconds(n, n_ctx) / truth(n, n_ctx))) for n in (1, 2, 4, 5, 8)
    )  # fmt: skip


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_machine_that_changes_its_pace_is_followed_at_all_sizes(factor: float) -> None:
    """Within 60 evaluations; what was not evaluated follows by about as much as the others."""
    before = CostTable(dict(POINTS), slope=0.0)
    true = CostTable(dict(POINTS), slope=0.0, level=factor)
    table = taught(before, true.seconds, 60)
    assert off(table, true.seconds) < 0.1
    assert abs(math.log(table.seconds(16) / true.seconds(16))) < 0.7 * abs(math.log(factor))


def test_a_size_that_costs_otherwise_than_measured_is_corrected_alone() -> None:
    true = CostTable({**POINTS, 5: 4.0}, slope=0.0)
    table = taught(CostTable(dict(POINTS), slope=0.0), true.seconds, 150)
    assert off(table, true.seconds) < 0.12
    assert table.points[5] / table.points[1] == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize("slope", [0.0, 0.1, 0.3])
def test_the_price_of_context_is_learned(slope: float) -> None:
    true = CostTable(dict(POINTS), slope=slope)
    table = taught(CostTable(dict(POINTS)), true.seconds, 1500)
    for n_ctx in (1000, 2000, 4000):
        assert off(table, true.seconds, n_ctx) < (0.2 if slope < 0.2 else 0.35)
    assert (table.slope < SLOPE) == (slope < SLOPE)


def test_prompts_share_a_point_by_the_token_and_what_lies_between_teaches_nothing() -> None:
    table = CostTable(dict(POINTS), slope=0.0)
    before = dict(table.points)
    for n in (LARGEST + 1, 100, BULK - 1):
        table.learn(n, 0, 1e3)
    assert table.points == before and table.level == 1
    for _ in range(100):
        table.learn(1000, 0, 50.0)
        table.learn(500, 0, 25.0)
    assert set(table.points) == {*before, BULK}
    assert table.seconds(2000) == pytest.approx(100, rel=0.05)


def test_nonsense_moves_a_table_a_little_at_most() -> None:
    """A laptop that slept in the middle of an evaluation; a clock that stood still."""
    table = taught(CostTable(dict(POINTS)), CostTable(dict(POINTS)).seconds, 200)
    before = table.prices(20)
    for seconds in (0.0, -1.0):
        table.learn(1, 0, seconds)
    assert table.prices(20).tolist() == before.tolist()
    for seconds in (1e9, 1e-12, math.inf):
        for n in (1, 4):
            table.learn(n, 3000, seconds)
            after = table.prices(20)
            assert np.all(np.isfinite(after)) and np.all(after[1:] > 0)
            assert np.all(np.abs(np.log(after[1:] / before[1:])) < math.log(FALL))
            assert 0 <= table.slope < 1
    true = CostTable(dict(POINTS))
    assert off(taught(table, true.seconds, 150), true.seconds) < 0.2, "and it recovers"


def test_nothing_that_is_measured_makes_costs_vanish_or_explode() -> None:
    rng = np.random.default_rng(3)
    table = CostTable(dict(POINTS))
    for _ in range(5000):
        table.learn(int(rng.integers(1, 400)), int(rng.integers(0, 9000)), float(10 ** rng.uniform(-9, 9)))
    prices = table.prices(49, 5000)
    assert np.all(np.isfinite(prices)) and np.all(prices[1:] > 0) and 0 <= table.slope < math.inf


def test_a_pause_of_the_machine_says_little_and_a_quick_moment_much() -> None:
    """Nothing runs faster than it can. One evaluation of 2.2 times its time made twelve tokens look too dear,
    for good: they were not tried again."""
    paused, quick = (CostTable({1: 1.0, 12: 2.5}, slope=0.0) for _ in range(2))
    paused.learn(12, 0, 2.2 * 2.5)
    assert 2.5 < paused.points[12] < 2.5 * 1.25
    quick.learn(12, 0, 2.5 / 2.2)
    assert quick.points[12] < 2.5 / 1.45
    for _ in range(30):
        paused.learn(12, 0, 2.2 * 2.5)
    assert paused.seconds(12) == pytest.approx(2.2 * 2.5, rel=0.02), "what stays is believed"


# --- measuring


class Machine:
    """Evaluations on a clock of their own: the first is slow, and now and then one is disturbed."""

    def __init__(self, table: CostTable, *, warm_up: float = 5.0, disturbed: int = 4) -> None:
        self.table, self.disturbed = table, disturbed
        self.now, self.calls, self.extra = 0.0, [], warm_up

    def __call__(self) -> float:
        return self.now

    def evaluate(self, n: int) -> None:
        self.calls.append(n)
        slow = 2.0 if len(self.calls) % self.disturbed == 0 else 1.0
        self.now += self.table.seconds(n) * slow + self.extra
        self.extra = 0.0


def test_a_quick_model_is_measured_at_all_sizes_and_not_disturbed_by_the_warm_up() -> None:
    true = CostTable({1: 1e-3, 4: 1.2e-3, 48: 9e-3})
    machine = Machine(true)
    found = measure(machine.evaluate, "cpu-float", clock=machine)
    assert set(found) == {1, *SIZES}
    for n in found:
        assert found[n] == pytest.approx(true.seconds(n)), "what disturbs is left out"
    assert machine.now - 5 < 1.1


def test_what_a_change_of_size_costs_is_a_part_of_a_light_models_price() -> None:
    """Rounds with a guess come one by one: on a target of 0.4 ms they took twice what the table said."""
    true, last = CostTable({1: 4e-4, 4: 6e-4, 48: 4e-3}), [1]
    now = [0.0]

    def evaluate(n: int) -> None:
        now[0] += true.seconds(n) + (2e-4 if n != last[0] else 0.0)
        last[0] = n

    found = measure(evaluate, "cpu-float", clock=lambda: now[0])
    assert found[1] == pytest.approx(4e-4)
    for n in (2, 4, 16):
        assert found[n] == pytest.approx(true.seconds(n) + 4e-4)


def test_a_slow_moment_is_not_believed() -> None:
    """Seen: one token took twice its time before the others were measured, twelve nine times one token's."""
    for slow in (range(1, 3), range(6, 9)):
        machine = Machine(assumed("cpu-float", 0.03), disturbed=10**9)

        def evaluate(n: int, machine: Machine = machine, slow: range = slow) -> None:
            machine.evaluate(n)
            machine.now += 4 * machine.table.seconds(n) * (len(machine.calls) - 1 in slow)

        found = measure(evaluate, "cpu-float", clock=machine, budget=0.65)
        table = from_measured("cpu-float", found)
        for n in (1, 2, 4, 8, 16):
            assert table.seconds(n) < 1.6 * machine.table.seconds(n), (n, found)


@pytest.mark.parametrize("one", [0.001, 0.01, 0.05, 0.15, 0.4])
@pytest.mark.parametrize("hardware", HARDWARE)
def test_measuring_keeps_to_its_time(one: float, hardware: Hardware) -> None:
    """About: an evaluation is begun where it is expected to end in time."""
    machine = Machine(assumed(hardware, one), disturbed=10**9)
    found = measure(machine.evaluate, hardware, clock=machine, budget=1.0)
    assert 1 in found and found[1] == pytest.approx(one)
    assert machine.now - 5 - one < max(1.1, REPEATS * one + 1e-6)
    if one <= 0.15:
        assert len(found) > 1, "and there is time for something"


@pytest.mark.parametrize("one", [2.0, 60.0])
def test_one_token_is_measured_however_slow_the_model_is(one: float) -> None:
    machine = Machine(assumed("cpu-quantised", one))
    found = measure(machine.evaluate, "cpu-quantised", clock=machine, budget=1.0)
    assert set(found) == {1} and machine.calls == [1, 1]
    table = from_measured("cpu-quantised", found)
    assert table.measured == {1} and table.seconds(4) == pytest.approx(2.1 * one)


def test_the_sizes_most_likely_to_pay_come_first() -> None:
    machine = Machine(assumed("cpu-quantised", 0.05), disturbed=10**9)
    found = measure(machine.evaluate, "cpu-quantised", clock=machine, budget=1.0)
    assert set(found) < {1, *SIZES} and list(found) == [1, *(n for n in SIZES if n in found)]
    assert {1, 4, 2} <= set(found)
