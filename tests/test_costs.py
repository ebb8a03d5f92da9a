"""Cost tables: values between measurements, what is learned, and a measurement that keeps to its time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from edgespec.core.pace.cost_table import (
    AGREE,
    BULK,
    FALL,
    FORGET,
    LARGEST,
    MOST_BETWEEN,
    MOST_PATIENCE,
    NOISY,
    RISE,
    SLOPE,
    SURPRISES,
    CostTable,
    Slowness,
)
from edgespec.core.pace.costs import SIZES, Costs, assumed, from_measured, look
from edgespec.core.pace.row_costs import FLOAT, MEASURED, ON_CARD, QUANTISED, Shape, shape_of

POINTS = {1: 1.0, 3: 2.0, 4: 1.6, 8: 3.0}
SHAPES = (ON_CARD, FLOAT, QUANTISED)


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
    table.slowness.level = 2.0
    assert table.seconds(4, 2000) == pytest.approx(2 * (1.6 + 0.05 * 4 * 2))


@pytest.mark.parametrize("n_ctx", [0, 777, 30_000])
def test_the_curve_has_the_seconds_of_each_number_of_tokens(n_ctx: int) -> None:
    for up_to in (1, 5, 8, 30):
        table = CostTable(POINTS, slope=0.02, slowness=Slowness(1.3))
        wanted = [0.0, *(table.seconds(n, n_ctx) for n in range(1, up_to + 1))]
        assert table.curve(up_to, n_ctx).tolist() == pytest.approx(wanted)


def test_prices_are_those_of_the_cheapest_evaluation_with_room_for_the_tokens() -> None:
    assert CostTable(POINTS).prices(8).tolist() == pytest.approx([0, 1, 1.5, 1.6, 1.6, 1.95, 2.3, 2.65, 3])
    groups = CostTable({1: 1.0, 4: 3.0, 5: 4.5, 6: 5.2, 8: 4.0})
    assert groups.prices(8)[4:].tolist() == pytest.approx([3, 4, 4, 4, 4])
    assert groups.prices(6)[5:].tolist() == pytest.approx([4.5, 5.2]), "no more than are allowed"
    assert CostTable({1: 1.0, 2: 0.9, 3: 2.0}).prices(3)[1] == 1, "one token stays alone"


@pytest.mark.parametrize("points", [{}, {2: 1.0}, {1: 0.0}, {1: -1.0}, {1: 1.0, 2: math.nan}, {1: math.inf}])
def test_what_is_no_time_is_refused(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="no seconds"):
        CostTable(points)


@pytest.mark.parametrize("shape", [*SHAPES, *MEASURED.values()])
def test_assumptions_rise_and_say_that_they_are_none(shape: Shape) -> None:
    table = assumed(shape, 0.01)
    assert table.seconds(1) == 0.01 and table.measured == {1}
    assert all(np.diff(table.prices(60)) >= 0)
    assert shape[1] == 1 and max(shape) == 48, "what is larger costs by the token"


def test_what_is_assumed_depends_on_format_and_instructions() -> None:
    q8 = shape_of("7", ["AVX2", "AVX512", "FMA"])
    assert q8 == MEASURED["Q8_0", "AVX512"] and q8[8] < q8[6]
    assert shape_of("15", ["AVX2"]) == shape_of("14", ["AVX2"]) == MEASURED["Q4_K", "AVX2"]
    assert shape_of("18", ["AVX2", "AVX512"]) == MEASURED["Q6_K", "AVX512"], "the best"
    assert shape_of("1", ["NEON"]) == FLOAT and shape_of("7", ["NEON"]) == QUANTISED
    assert shape_of("", []) == shape_of("many", ["AVX2"]) == shape_of("999", ["AVX2"]) == QUANTISED


def test_a_size_that_was_not_timed_follows_the_groups_that_its_format_has() -> None:
    """By a straight line between four and twelve rows, eight would look dearer than six."""
    shape = MEASURED["Q8_0", "AVX512"]
    table = assumed(shape, 0.016)
    table.offsets, table.weights = dict.fromkeys((4, 12), math.log(1.2)), dict.fromkeys((4, 12), 2.0)
    assert table.seconds(8) < table.seconds(6)
    assert table.seconds(8) / table.seconds(12) == pytest.approx(shape[8] / shape[12], rel=0.02)
    assert table.prices(8)[6] == table.prices(8)[8], "six are filled up to eight"


def test_what_was_not_measured_continues_what_was() -> None:
    table = from_measured(FLOAT, {1: 2.0, 4: 3.0, 2: 2.2})
    assert table.seconds(3) == pytest.approx(2.6)
    prior = assumed(FLOAT, 1.0)
    for n in (8, 12, 48):
        assert table.seconds(n) == pytest.approx(3.0 * prior.seconds(n) / prior.seconds(4))


# --- learning: ratios from evaluations between plain steps that agree, the level from plain steps alone


def ratios(table: CostTable, *sizes: int) -> list[float]:
    return [table.seconds(n) / table.seconds(1) for n in sizes]


def bracketed(table: CostTable, n: int, seconds: float, *, one: float, after: float | None = None) -> None:
    """Shows a table n tokens between two single ones."""
    table.learn(1, 0, one, plain=True)
    table.learn(n, 0, seconds)
    table.learn(1, 0, after or one, plain=True)


def taught(table: CostTable, truth: Callable[[int, int], float], times: int, seed: int = 0) -> CostTable:
    """Shows a table sizes and contexts at random, between single tokens, with a quiet machine's noise."""
    rng = np.random.default_rng(seed)
    for _ in range(times):
        n_ctx = int(rng.integers(0, 4000))
        for n in (1, int(rng.choice([2, 4, 5, 8])), 1):
            table.learn(n, n_ctx, truth(n, n_ctx) * math.exp(0.03 * rng.standard_normal()), plain=n == 1)
    return table


def off(table: CostTable, truth: Callable[[int, int], float], n_ctx: int = 500) -> float:
    """Returns the largest error at sizes that are seen, as a factor."""
    return max(abs(math.log(table.seconds(n, n_ctx) / truth(n, n_ctx))) for n in (1, 2, 4, 5, 8))


@pytest.mark.parametrize("times_as_long", [2.0, 1.3, 0.7])
def test_single_tokens_never_change_a_ratio_and_others_never_the_level(times_as_long: float) -> None:
    """A ratchet: each evaluation moved level and ratio together. Three looks at each size at twice the time,
    then 400 single tokens at the true time, left all sizes 1.5 times too dear for good."""
    true = {1: 1.0, 2: 2.0, 4: 2.6, 8: 4.6}
    table = CostTable(dict(true), slope=0.0)
    before = ratios(table, 2, 4, 8)
    for _ in range(50):
        table.learn(1, 0, times_as_long, plain=True)
    assert ratios(table, 2, 4, 8) == pytest.approx(before)
    assert table.seconds(1) == pytest.approx(times_as_long, rel=0.1)
    level = table.level
    for n in (2, 4, 8) * 30:
        table.learn(n, 0, true[n] * 2)
    assert table.level == level and ratios(table, 2, 4, 8) == pytest.approx(before)


def test_evaluations_between_plain_steps_that_disagree_teach_nothing() -> None:
    table = CostTable(dict(POINTS), slope=0.0)
    for _ in range(50):
        bracketed(table, 4, 9.0, one=1.0, after=1.3)
    assert table.measured == {1} and ratios(table, 4) == pytest.approx([1.6])
    assert AGREE < math.log(1.3)
    bracketed(table, 4, 3.2, one=1.0)
    assert table.measured == {1, 4} and ratios(table, 4)[0] > 1.9


def test_next_to_other_programs_next_to_nothing_is_learned() -> None:
    """Single tokens take twice as long; four, five times as long as they should."""
    table = CostTable(dict(POINTS), slope=0.0)
    for _ in range(5):
        bracketed(table, 4, 1.6, one=1.0)
    for _ in range(10):
        bracketed(table, 4, 16.0, one=2.0)
    assert table.slowness.noisy
    assert ratios(table, 4)[0] < 1.6 * 1.25
    for _ in range(2000):
        bracketed(table, 4, 6.4, one=2.0)
    assert not table.slowness.noisy, "what lasts is how the machine is"
    assert ratios(table, 4) == pytest.approx([3.2], rel=0.05)


def test_what_was_found_in_a_noisier_moment_is_forgotten() -> None:
    """A first start beside other programs: their end makes single tokens quicker, so all is tried again."""
    table = CostTable(dict(POINTS), slope=0.0)
    for n in (3, 4, 8):
        for _ in range(4):
            bracketed(table, n, 3 * POINTS[n], one=1.0)
    assert ratios(table, 4)[0] > 4
    for _ in range(6):
        table.learn(1, 0, 0.5, plain=True)
    assert ratios(table, 3, 4, 8) == pytest.approx([POINTS[n] for n in (3, 4, 8)], rel=0.2)
    assert table.measured == {1} and 0.5**FORGET < 0.05
    bracketed(table, 4, 0.9, one=0.5)
    assert ratios(table, 4)[0] == pytest.approx(1.8, rel=0.06), "and one observation says most"


def test_what_is_never_used_is_forgotten_at_last() -> None:
    """One size that was thought dear among many that are known."""
    true, table = (CostTable({1: 1.0, 48: 16.0}, slope=0.0) for _ in range(2))
    for n in SIZES:
        bracketed(table, n, true.seconds(n) * (3 if n == 4 else 1), one=1.0)
    dear = table.seconds(4) - true.seconds(4)
    assert dear > 0.4
    for _ in range(2400):
        table.learn(1, 0, 1.0, plain=True)
    assert table.seconds(4) - true.seconds(4) < dear / 3


def test_evaluations_that_are_not_as_expected_ask_for_a_plain_step() -> None:
    """And less and less often if that explains nothing."""
    table, asked = CostTable(dict(POINTS), slope=0.0), []
    rng = np.random.default_rng(1)
    for i in range(400):
        if table.slowness.asks:
            asked.append(i)
            table.learn(1, 0, float(rng.choice([1.0, 3.0])), plain=True)
        else:
            table.learn(4, 0, 16.0)
    assert asked[0] == SURPRISES
    assert SURPRISES * len(asked) < 200
    quiet = CostTable(dict(POINTS), slope=0.0)
    for _ in range(100):
        quiet.learn(4, 0, 1.6 * math.exp(0.1 * rng.standard_normal()))
        assert not quiet.slowness.asks


def test_streams_that_never_stop_guessing_keep_no_more_than_is_needed() -> None:
    table = CostTable(dict(POINTS), slope=0.0)
    for _ in range(5000):
        table.learn(8, 0, 3.0)
    assert len(table.slowness._between) <= MOST_BETWEEN and len(table.slowness._surprises) <= MOST_PATIENCE


def test_a_draft_is_timed_in_the_pulse_of_its_target() -> None:
    """A step was measured once beside cold caches and believed for good; and when the machine became
    slower, the draft alone seemed to have become dearer or cheaper."""
    costs = Costs(CostTable(dict(POINTS), slope=0.0), CostTable({1: 0.3}, slope=0.0))
    for _ in range(4):
        costs.target.learn(1, 0, 1.0, plain=True)
        for _ in range(3):
            costs.draft.learn(1, 0, 0.1)
    costs.target.learn(1, 0, 1.0, plain=True)
    assert costs.draft.seconds(1) == pytest.approx(0.1, rel=0.1)
    for _ in range(40):
        costs.target.learn(1, 0, 3.0, plain=True)
    assert costs.draft.seconds(1) == pytest.approx(0.3, rel=0.12), "though nobody used it"


def test_streams_together_learn_from_their_own_plain_steps() -> None:
    table = CostTable({1: 1.0, 4: 2.0, 8: 3.0}, slope=0.0)
    for _ in range(40):
        table.learn(4, 0, 4.0, plain=True)
        table.learn(8, 0, 12.0)
    assert table.seconds(4) == pytest.approx(4.0, rel=0.05)
    assert table.seconds(8) / table.seconds(4) == pytest.approx(3.0, rel=0.05)
    assert not table.slowness.noisy, "single tokens alone say that"


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_machine_that_changes_its_pace_is_followed_at_all_sizes(factor: float) -> None:
    true = CostTable(dict(POINTS), slope=0.0, slowness=Slowness(factor))
    table = taught(CostTable(dict(POINTS), slope=0.0), true.seconds, 30)
    assert off(table, true.seconds) < 0.1
    assert abs(math.log(table.seconds(16) / true.seconds(16))) < 0.1, "what was not evaluated follows"


def test_a_size_that_costs_otherwise_than_measured_is_corrected_alone() -> None:
    true = CostTable({**POINTS, 5: 4.0}, slope=0.0)
    table = taught(CostTable(dict(POINTS), slope=0.0), true.seconds, 150)
    assert off(table, true.seconds) < 0.12
    assert ratios(table, 5) == pytest.approx([4.0], rel=0.1)


@pytest.mark.parametrize("slope", [0.0, 0.1, 0.3])
def test_the_price_of_context_is_learned(slope: float) -> None:
    true = CostTable(dict(POINTS), slope=slope)
    table = taught(CostTable(dict(POINTS)), true.seconds, 800)
    for n_ctx in (1000, 2000, 4000):
        assert off(table, true.seconds, n_ctx) < (0.2 if slope < 0.2 else 0.35)
    assert (table.slope < SLOPE) == (slope < SLOPE)


def test_prompts_share_a_point_by_the_token_and_what_lies_between_teaches_nothing() -> None:
    table = CostTable(dict(POINTS), slope=0.0)
    for n in (LARGEST + 1, 100, BULK - 1):
        table.learn(n, 0, 1e3)
    assert table.measured == {1} and table.level == 1
    for _ in range(100):
        table.learn(1000, 0, 50.0)
        table.learn(500, 0, 25.0)
    assert table.measured == {1, BULK}
    assert table.seconds(2000) == pytest.approx(100, rel=0.05)


def test_nonsense_moves_a_table_a_little_at_most() -> None:
    """A laptop that slept in the middle of an evaluation; a clock that stood still."""
    table = taught(CostTable(dict(POINTS)), CostTable(dict(POINTS)).seconds, 200)
    for seconds in (0.0, -1.0, math.inf, math.nan):
        before = table.prices(20)
        for n in (1, 4):
            table.learn(n, 0, seconds, plain=n == 1)
        assert table.prices(20).tolist() == before.tolist()
    for seconds in (1e9, 1e-12):
        for n in (1, 4):
            before = table.prices(20)
            table.learn(n, 3000, seconds, plain=n == 1)
            after = table.prices(20)
            assert np.all(np.isfinite(after)) and np.all(after[1:] > 0)
            assert np.all(np.abs(np.log(after[1:] / before[1:])) < max(FALL, RISE))
            assert 0 <= table.slope < 1
    true = CostTable(dict(POINTS))
    assert off(taught(table, true.seconds, 150), true.seconds) < 0.2, "and it recovers"


def test_nothing_that_is_measured_makes_costs_vanish_or_explode() -> None:
    rng = np.random.default_rng(3)
    table = CostTable(dict(POINTS))
    for _ in range(5000):
        n = int(rng.integers(1, 400))
        plain = bool(rng.integers(2)) and n <= LARGEST
        table.learn(n, int(rng.integers(0, 9000)), float(10 ** rng.uniform(-9, 9)), plain=plain)
    prices = table.curve(49, 5000)
    assert np.all(np.isfinite(prices)) and np.all(prices[1:] > 0) and 0 <= table.slope < math.inf


def test_a_pause_of_the_machine_says_little_and_a_quick_moment_much() -> None:
    """Nothing runs faster than it can. One evaluation of 2.2 times its time made twelve tokens look too dear,
    for good: they were not tried again."""
    paused, quick = (CostTable({1: 1.0, 12: 2.5}, slope=0.0) for _ in range(2))
    for table in (paused, quick):
        for _ in range(3):
            bracketed(table, 12, 2.5, one=1.0)
    bracketed(paused, 12, 2.2 * 2.5, one=1.0)
    assert 2.5 < paused.seconds(12) < 2.5 * 1.25
    bracketed(quick, 12, 2.5 / 2.2, one=1.0)
    assert quick.seconds(12) < 2.5 / 1.15
    for _ in range(30):
        bracketed(paused, 12, 2.2 * 2.5, one=1.0)
    assert paused.seconds(12) == pytest.approx(2.2 * 2.5, rel=0.02), "what stays is believed"
    assert NOISY > 1.2


# --- measuring


class Machine:
    """Evaluations on a clock of their own. change: seconds of another size; disturbed: one in so many is."""

    def __init__(self, table: CostTable, *, disturbed: int = 10**9, change: float = 0.0) -> None:
        self.table, self.disturbed, self.change = table, disturbed, change
        self.now, self.calls = 0.0, list[int]()

    def evaluate(self, n: int) -> float:
        again = self.calls[-1:] == [n]
        self.calls.append(n)
        slow = 3.0 if len(self.calls) % self.disturbed == 0 else 1.0
        seconds = self.table.seconds(n) * slow + (0.0 if again else self.change)
        self.now += seconds
        return seconds


def looked(machine: Machine, shape: Shape, *, turns: int = 3, budget: float = 1.0) -> CostTable:
    """Returns what a first start finds."""
    costs = Costs(assumed(shape, machine.table.seconds(1)), CostTable({1: 1.0}))
    for _ in range(turns):
        budget = look(costs, machine.evaluate, sizes=SIZES, n_ctx=0, budget=budget)
    return costs.target


def test_a_quick_model_is_measured_at_all_sizes() -> None:
    true = CostTable({1: 3e-3, 4: 3.6e-3, 48: 27e-3})
    for disturbed in (10**9, 7):
        machine = Machine(true, disturbed=disturbed)
        table = looked(machine, FLOAT)
        assert table.measured == {1, *SIZES}
        for n in SIZES:
            assert table.seconds(n) == pytest.approx(true.seconds(n), rel=0.6 if disturbed < 10 else 0.06), n
        assert machine.now < 1.1


def test_what_a_change_of_size_costs_is_a_part_of_a_light_models_price() -> None:
    """Rounds with a guess come one by one: on a target of 0.4 ms they took twice what the table said."""
    true = CostTable({1: 4e-4, 4: 6e-4, 48: 4e-3})
    table = looked(Machine(true, change=2e-4), FLOAT, turns=12)
    assert table.seconds(1) == pytest.approx(4e-4, rel=0.02)
    for n in (2, 4, 16):
        assert table.seconds(n) == pytest.approx(true.seconds(n) + 4e-4, rel=0.08)


def test_a_draft_is_timed_at_work_between_evaluations_of_its_target() -> None:
    """What it reads first is no longer in the caches."""
    target, draft = Machine(CostTable({1: 0.02})), Machine(CostTable({1: 0.002, 2: 0.003, 48: 0.02}))
    costs = Costs(assumed(FLOAT, 0.02), assumed(QUANTISED, 0.004))
    look(costs, target.evaluate, draft.evaluate, sizes=SIZES, read=(2, 48), n_ctx=0, budget=2.0)
    for n in (1, 2, 48):
        assert costs.draft.seconds(n) == pytest.approx(draft.table.seconds(n), rel=0.1)


@pytest.mark.parametrize("one", [0.001, 0.01, 0.05, 0.15, 0.4, 60.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_measuring_keeps_to_its_time(one: float, shape: Shape) -> None:
    """About: a size is timed where it is expected to end in time."""
    machine = Machine(assumed(shape, one))
    table = looked(machine, shape)
    assert machine.now < 1.0 + 1.2 * one
    assert len(table.measured) > 1 or one > 0.15
    if one > 1:
        assert not machine.calls


def test_the_sizes_where_groups_end_come_first() -> None:
    machine = Machine(assumed(QUANTISED, 0.05))
    table = looked(machine, QUANTISED)
    timed = [n for n in dict.fromkeys(machine.calls) if n > 1]
    assert timed == [n for n in SIZES if n in timed] and {4, 8} <= table.measured
