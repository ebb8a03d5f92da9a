"""What one observation changes in a cost table, to the figure, and what a look at a pair evaluates.

How tables do over many observations is in `test_costs.py`. Figures follow by hand from the constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from edgespec.core.pace.cost_table import (
    AGED,
    AGEING,
    AGREE,
    BULK,
    CREEP,
    DRIFT,
    FALL,
    FOLLOW,
    FORGET,
    HEAVIEST,
    LARGEST,
    MOST_PATIENCE,
    NOISY,
    NOISY_SHARE,
    POINT_GAIN,
    PRIOR,
    RISE,
    RISING,
    SLOPE,
    SLOPE_GAIN,
    SURE,
    SURPRISE,
    SURPRISES,
    CostTable,
    Slowness,
)
from edgespec.core.pace.costs import Costs, look
from edgespec.core.pace.tuning import TUNING

A_LITTLE = 0.5 * SURPRISE
FIRST = 1 / (1 + PRIOR)  # of its way, that a first observation moves a size


def table_of(offsets: dict[int, float] | None = None, weight: float = 0.0, **fields: object) -> CostTable:
    known = offsets or {}
    weights = dict.fromkeys(known, weight)
    table = CostTable({1: 1.0, 4: 2.0, 8: 4.0}, slope=0.0, offsets=known, weights=weights)
    for name, value in fields.items():
        setattr(table, name, value)
    return table


# --- one observation of a size


@pytest.mark.parametrize(
    ("off", "moved"),
    [(-A_LITTLE, -A_LITTLE * FIRST), (A_LITTLE, A_LITTLE * FIRST * RISING), (9.0, RISE * FIRST * RISING),
     (-9.0, -FALL * FIRST)],
)  # fmt: skip
def test_a_first_observation_counts_against_the_assumption_and_dearer_ones_for_less(
    off: float, moved: float
) -> None:
    table = table_of()
    table.correct(4, off, 0.0)
    assert table.offsets == {4: pytest.approx(moved)} and table.weights == {4: 1.0}
    assert table.seconds(4) == pytest.approx(2.0 * math.exp(moved))


def test_the_more_is_known_the_less_an_observation_moves_down_to_a_limit() -> None:
    for weight, gain in ((2.0, 1 / (3 + PRIOR)), (1000.0, POINT_GAIN)):
        table = table_of({4: 0.5}, weight)
        table.correct(4, -A_LITTLE, 0.0)
        assert table.offsets[4] == pytest.approx(0.5 - gain * A_LITTLE)
        assert table.weights[4] == min(weight + 1, HEAVIEST)


def test_what_surprises_is_believed_more_quickly_but_not_in_a_noisy_moment() -> None:
    """What was known may have been seen in a moment like no other."""
    off = -2 * SURPRISE
    quiet, noisy = table_of({4: 0.5}, 4.0), table_of({4: 0.5}, 4.0)
    quiet.correct(4, off, 0.0)
    noisy.correct(4, off, 0.0, noisy=True)
    assert quiet.offsets[4] < 0.5 + off / (1 + 4 + PRIOR) and quiet.weights[4] < 5
    assert noisy.offsets[4] == pytest.approx(0.5 + NOISY_SHARE * off / (1 + 4 + PRIOR))
    assert noisy.weights[4] == pytest.approx(4 + NOISY_SHARE)
    edge = table_of({4: 0.5}, 4.0)
    edge.correct(4, -SURPRISE, 0.0)
    assert edge.weights[4] == 5


def test_several_observations_at_once_weigh_as_many() -> None:
    table = table_of({4: 0.5}, 2.0)
    table.correct(4, -A_LITTLE, 0.0, times=3)
    assert table.offsets[4] == pytest.approx(0.5 - A_LITTLE * 3 / (3 + 2 + PRIOR)) and table.weights[4] == 5
    known = table_of({4: 0.5}, 1000.0)
    known.correct(4, -A_LITTLE, 0.0, times=3)
    assert known.offsets[4] == pytest.approx(0.5 - A_LITTLE * (1 - (1 - POINT_GAIN) ** 3))


def test_a_size_seen_for_the_first_time_starts_from_what_its_neighbours_have_shown() -> None:
    table = table_of({3: 0.2, 7: 0.6}, 2.0)
    table.correct(5, 0.0, 0.0)
    assert table.offsets[5] == pytest.approx(0.4)
    table.correct(2, 0.0, 0.0)
    assert table.offsets[2] == pytest.approx(0.1), "one token is the unit: never off"
    table.correct(9, 0.0, 0.0)
    assert table.offsets[9] == pytest.approx(0.6)


def test_what_is_found_is_in_the_next_price() -> None:
    table = table_of()
    before = table.seconds(4), table.seconds(6)
    table.correct(4, A_LITTLE, 0.0)
    assert table.seconds(4) > before[0] and table.seconds(6) > before[1], "neighbours follow"
    table.age(0.0)
    assert (table.seconds(4), table.seconds(6)) == pytest.approx(before)


def test_a_size_is_measured_once_more_is_seen_of_it_than_is_assumed() -> None:
    table = table_of({4: 0.0, 8: 0.0, 16: 0.0})
    table.weights = {4: PRIOR, 8: 0.99 * PRIOR, 16: HEAVIEST}
    assert table.measured == {1, 4, 16}


# --- what was once known


def test_of_what_ages_a_share_stays_and_the_rest_is_off_as_all_are() -> None:
    table = table_of({2: 0.1, 4: 0.5, BULK: 0.9}, 3.0)
    table.weights[2] = 1.0
    table.age(0.25)
    common = (0.25 * 0.1 + 0.75 * 0.5) / (1 + 0.25 + 0.75)
    assert table.weights == {2: 0.25, 4: 0.75, BULK: 3.0}
    assert table.offsets == {
        2: pytest.approx(common + 0.25 * (0.1 - common)),
        4: pytest.approx(common + 0.25 * (0.5 - common)),
        BULK: 0.9,
    }, "what a prompt costs says nothing of rows"


def test_all_tables_of_a_pair_age_with_the_plain_steps() -> None:
    costs = Costs(table_of({4: 0.5}, 4.0), table_of({4: 0.5}, 4.0))
    assert costs.target.slowness is costs.draft.slowness and len(costs.target.slowness.tables) == 2
    costs.draft.follow(costs.target.slowness)
    assert len(costs.target.slowness.tables) == 2, "nobody ages twice"
    for _ in range(2 * AGEING - 1):
        costs.target.learn(1, 0, 1.0, plain=True)
    assert costs.target.weights[4] == costs.draft.weights[4] == pytest.approx(4 * AGED)
    costs.target.learn(1, 0, 1.0, plain=True)
    assert costs.draft.weights[4] == pytest.approx(4 * AGED**2)


# --- the price of context


def test_the_slope_gets_the_part_of_an_error_that_context_has_in_what_was_expected() -> None:
    for off, taken in ((0.1, 0.1), (-0.1, -0.1), (9.0, RISE), (-9.0, -FALL)):
        for context, part in ((0.5, 0.5), (1.0, 1.0), (7.0, 1.0), (0.0, 0.0)):
            table = table_of(slope=0.2)
            table.correct(4, off, context)
            assert table.slope == pytest.approx(0.2 + SLOPE_GAIN * taken * part * 0.2)
    flat = table_of(slope=0.0)
    flat.correct(4, 0.1, 1.0)
    assert flat.slope == pytest.approx(SLOPE_GAIN * 0.1 * SLOPE / 4), "what was thought free can cost"
    flat.slope = 1e-9
    flat.correct(4, -0.1, 1.0)
    assert flat.slope == 0.0


def test_what_context_adds_is_told_from_what_rows_cost() -> None:
    """Behind 2,000 tokens, four rows take 0.4 more at a slope of 0.05: no error, whatever the level."""
    for plain in (True, False):
        table = CostTable({1: 1.0, 4: 2.0}, slope=0.05)
        table.slowness.level = 3.0
        if plain:
            table.learn(4, 2000, 3 * 2.4, plain=True)
        else:
            for n, seconds in ((1, 3.3), (4, 3 * 2.4), (1, 3.3)):
                table.learn(n, 2000, seconds, plain=n == 1)
            assert table.offsets == {4: pytest.approx(0.0, abs=1e-12)}
        assert table.slope == pytest.approx(0.05) and table.level == pytest.approx(3.0)


@pytest.mark.parametrize("plain", [True, False])
def test_an_error_behind_context_is_the_slopes_too(plain: bool) -> None:
    """Rows behind 10,000 tokens, with ten times their number in what was expected, over the slope."""
    table = CostTable({1: 1.0}, slope=0.1)
    if plain:
        table.learn(1, 500, 1.05 * 1.2, plain=True)
    else:
        for n in (1, 2, 1):
            table.learn(n, 0 if n == 1 else 500, 1.0 if n == 1 else 2.1 * 1.2, plain=n == 1)
    assert table.slope == pytest.approx(0.1 + SLOPE_GAIN * math.log(1.2) * 0.5 * 0.1)


# --- prompts


def test_prompts_of_any_length_correct_one_point_by_the_token() -> None:
    table = table_of(slope=0.02)
    table.slowness.level = 2.0
    expected = table.seconds(2 * BULK, 100)
    assert expected == pytest.approx(2 * table.seconds(BULK, 100))
    table.learn(2 * BULK, 100, expected * math.exp(-A_LITTLE))
    assert table.offsets == {BULK: pytest.approx(-A_LITTLE * FIRST)} and table.slope == 0.02
    noisy = table_of(slowness=Slowness(level=2.0, floor=1.0))
    noisy.learn(BULK, 0, noisy.seconds(BULK) * math.exp(-A_LITTLE))
    assert noisy.offsets == {BULK: pytest.approx(-A_LITTLE * FIRST * NOISY_SHARE)}


def test_sizes_at_the_edges_are_learned_and_those_between_are_not() -> None:
    for n, taught in ((LARGEST, True), (LARGEST + 1, False), (BULK - 1, False), (BULK, True)):
        table = table_of()
        for size in (1, n, 1):
            table.learn(size, 0, table.seconds(size) * (1 if size == 1 else 0.9), plain=size == 1)
        assert (n in table.measured) == taught


# --- how slow the machine is


def plain(slowness: Slowness, *factors: float, n: int = 1) -> Slowness:
    for factor in factors:
        slowness.plain_step(n, math.log(factor))
    return slowness


def test_one_plain_step_moves_the_level_a_little_and_two_that_say_the_same_most_of_the_way() -> None:
    assert plain(Slowness(), 1.2).level == pytest.approx(1.2**DRIFT)
    level = 1.2**DRIFT
    assert plain(Slowness(), 1.2, 1.2).level == pytest.approx(level * (1.2 / level) ** FOLLOW)
    assert plain(Slowness(), 100.0).level == pytest.approx(math.exp(RISE * DRIFT))
    assert plain(Slowness(), 0.01).level == pytest.approx(math.exp(-FALL * DRIFT))


def test_two_steps_on_two_sides_or_next_to_the_level_or_of_other_streams_say_nothing_together() -> None:
    level = 1.2**DRIFT
    assert plain(Slowness(), 1.2, 0.8).level == pytest.approx(level * (0.8 / level) ** DRIFT)
    near = math.exp(0.9 * SURE)
    assert plain(Slowness(), near, near).level < math.exp(2 * DRIFT * SURE)
    assert plain(plain(Slowness(), 1.2), 1.2, n=4).level == pytest.approx(level * (1.2 / level) ** DRIFT)


def test_the_floor_falls_at_once_and_rises_slowly() -> None:
    slowness = plain(Slowness(), 1.0)
    assert slowness.floor == 1.0
    plain(slowness, 0.9)
    assert slowness.floor == 1.0, "one quick step says nothing"
    plain(slowness, 0.8)
    assert slowness.floor == pytest.approx(0.9), "the slower of two"
    slowness = Slowness(level=2.0, floor=1.0)
    plain(slowness, 2.0)
    assert slowness.floor == pytest.approx(2.0**CREEP)
    streams = plain(Slowness(), 0.5, 0.5, n=4)
    assert streams.floor is None, "it is that of single tokens"


def test_what_was_found_before_a_quieter_moment_is_forgotten_by_how_much_quieter_it_is() -> None:
    table = table_of({4: 0.5}, 4.0)
    plain(table.slowness, 1.0, 0.9, 0.9)
    assert table.weights[4] == pytest.approx(4 * 0.9**FORGET)


def test_a_machine_is_noisy_above_its_floor_by_single_tokens_alone() -> None:
    assert not Slowness(level=9.0).noisy, "no floor is known"
    assert Slowness(level=1.01 * NOISY, floor=1.0).noisy
    assert not Slowness(level=NOISY, floor=1.0).noisy
    assert not plain(Slowness(level=9.0, floor=1.0), 9.0, n=4).noisy
    assert plain(Slowness(level=9.0, floor=1.0), 9.0).noisy


def test_a_plain_step_far_below_the_level_asks_for_another() -> None:
    below = math.exp(-1.01 * SURPRISE)
    assert plain(Slowness(), below).asks
    assert not plain(Slowness(), below, below).asks, "that was it"
    assert not plain(Slowness(), math.exp(-0.99 * SURPRISE)).asks
    assert not plain(Slowness(), 1 / below).asks


def seen(table: CostTable, *factors: float, n: int = 4) -> None:
    for factor in factors:
        table.learn(n, 0, 2.0 * factor)


def test_evaluations_that_are_off_by_their_middle_ask_for_a_plain_step() -> None:
    much = math.exp(1.01 * SURPRISE)
    for factors, asks in (
        ((much,) * (SURPRISES - 1), False),
        ((much,) * SURPRISES, True),
        ((1 / much,) * SURPRISES, True),
        ((99.0, 1.0, 1.0), False),
        ((1.0, much, much), True),
        ((much, much, much, 1.0, 1.0), False),
        ((1.0,) * 9 + (much, much), True),
        ((math.exp(0.99 * SURPRISE),) * SURPRISES, False),
    ):
        table = table_of()
        seen(table, *factors)
        assert table.slowness.asks == asks, factors
    slower = table_of()
    slower.slowness.level = much
    seen(slower, *(much,) * SURPRISES)
    assert not slower.slowness.asks, "as slow as the machine is known to be"


def test_what_the_draft_takes_is_no_surprise_of_the_target() -> None:
    costs = Costs(table_of(), table_of())
    seen(costs.draft, *(9.0,) * 9)
    assert not costs.target.slowness.asks


def test_each_time_that_asking_taught_nothing_twice_as_many_surprises_are_waited_for() -> None:
    table = table_of()

    def asked_after() -> int:
        for n in range(1, 99):
            seen(table, 9.0)
            if table.slowness.asks:
                return n
        return 0

    waits = []
    for factor in (1.0, 3.0, 1.0, 3.0, 1.0, 3.0):
        table.learn(1, 0, factor, plain=True)
        waits.append(asked_after())
    assert waits == [min(SURPRISES * 2**i, MOST_PATIENCE) for i in range(6)]
    table.learn(1, 0, 3.0, plain=True)
    table.slowness.level = 1.0
    assert asked_after() == SURPRISES, "two that agree taught something"


@pytest.mark.parametrize("noise", [1.0, 1.1])
@pytest.mark.parametrize(
    ("factors", "times"), [((5.0, 0.8, 0.9), 3), ((0.95, 0.9), 2), ((0.9,) * 9, SURPRISES), ((0.9,), 1)]
)
def test_the_middle_of_what_was_seen_is_learned_over_the_moment_of_two_plain_steps(
    noise: float, factors: Sequence[float], times: int
) -> None:
    """The smaller of two, and no more than count as surprises, however many there were."""
    table = table_of()
    table.learn(1, 0, 1.0, plain=True)
    seen(table, *factors)
    table.learn(1, 0, noise, plain=True)
    off = math.log(0.9) - math.log(noise) / 2
    assert table.weights == {4: times}
    assert table.offsets[4] == pytest.approx(off * times / (times + PRIOR))
    table.learn(1, 0, noise, plain=True)
    assert table.weights == {4: times}, "once"


def test_a_size_of_the_draft_is_not_the_same_size_of_the_target() -> None:
    costs = Costs(table_of(), table_of())
    costs.target.learn(1, 0, 1.0, plain=True)
    seen(costs.target, 1.1)
    seen(costs.draft, 0.9)
    costs.target.learn(1, 0, 1.0, plain=True)
    assert costs.target.offsets == {4: pytest.approx(math.log(1.1) * FIRST * RISING)}
    assert costs.draft.offsets == {4: pytest.approx(math.log(0.9) * FIRST)}


def test_steps_agree_below_a_limit_and_those_far_above_the_floor_are_noisy() -> None:
    for apart, weight in ((0.99 * AGREE, 1.0), (1.01 * AGREE, None)):
        table = table_of()
        table.learn(1, 0, 1.0, plain=True)
        table.learn(4, 0, 2.0)
        table.learn(1, 0, math.exp(apart), plain=True)
        assert table.weights.get(4) == weight
    for slower, weight in ((0.99 * NOISY, 1.0), (1.01 * NOISY, NOISY_SHARE)):
        table = table_of()
        table.slowness.floor = 1.0
        for n, seconds in ((1, slower), (4, 2.0 * slower), (1, slower)):
            table.learn(n, 0, seconds, plain=n == 1)
        assert table.weights[4] == pytest.approx(weight)


# --- a look at a pair


class Script:
    """Evaluates in the seconds of a table, and notes who was asked for how many tokens."""

    def __init__(self, target: CostTable, draft: CostTable | None = None) -> None:
        self.target, self.draft = target, draft
        self.calls: list[str] = []
        self.seconds = 0.0

    def _evaluate(self, who: str, table: CostTable) -> Callable[[int], float]:
        def evaluate(n: int) -> float:
            self.calls.append(f"{who}{n}")
            self.seconds += table.seconds(n)
            return table.seconds(n)

        return evaluate

    def look(
        self, costs: Costs, sizes: Sequence[int], read: Sequence[int] = (), budget: float = 100.0
    ) -> str:
        """Returns who was asked for how many tokens, and checks that the seconds are counted."""
        step = self._evaluate("d", self.draft) if self.draft else None
        verify = self._evaluate("t", self.target)
        left = look(costs, verify, step, sizes=sizes, read=read, n_ctx=0, budget=budget)
        assert budget - left == pytest.approx(self.seconds)
        return " ".join(self.calls)


def heavy() -> Costs:
    return Costs(table_of(), CostTable({1: 0.25}, slope=0.0))


def test_each_size_is_timed_between_single_tokens_and_behind_the_work_of_the_draft() -> None:
    assert Script(table_of()).look(heavy(), (4, 2)) == "t1 t4 t1 t2 t1"
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    found = both.look(heavy(), (4, 2, 8), read=(16,))
    assert found == "t1 d1 d1 t4 t1 d1 d1 d16 t2 t1 d1 d1 t8 t1"


def test_where_a_new_size_is_dearer_at_first_single_tokens_are_timed_behind_some() -> None:
    costs = heavy()
    costs.target.settling, costs.draft.settling = 2, 3
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    found = both.look(costs, (4, 2), read=(16,))
    assert found == "t1 t1 t1 d1 d1 t4 t1 t1 t1 d1 d1 d16 d1 d1 d1 t2 t1 t1 t1"


def test_a_light_target_pays_for_both_changes_of_a_size() -> None:
    one = TUNING.light_s / 2
    points = {1: one, 4: 2 * one}
    costs = Costs(CostTable(dict(points), slope=0.0), CostTable({1: 1.0}))
    script = Script(CostTable(points, slope=0.0))
    assert script.look(costs, (4,)) == "t1 t1 t4 t1 t1 t1"
    assert costs.target.seconds(4) == pytest.approx(2 * one), "it costs nothing here"


def test_what_has_no_time_is_left_out_and_what_has_is_timed() -> None:
    """By hand: four tokens in two, behind a single one, and a first one before both."""
    for budget, found in ((2.9, ""), (3.1, "t1 t4 t1"), (1.0, "")):
        assert Script(table_of()).look(heavy(), (4,), budget=budget) == found
    assert Script(table_of()).look(heavy(), (8, 4), budget=4.5) == "t1 t4 t1", "the next may be smaller"
    both = Script(table_of(), CostTable({1: 0.25}, slope=0.0))
    assert both.look(heavy(), (4,), budget=3.4) == "", "two guesses take time, too"


def test_a_size_thought_dearer_than_smaller_ones_in_turn_is_timed_all_the_same() -> None:
    """Eight in 100: no more than twice four in two can be."""
    costs = Costs(CostTable({1: 1.0, 4: 2.0, 7: 90.0, 8: 100.0}, slope=0.0), CostTable({1: 1.0}))
    for budget, found in ((4.9, ""), (5.1, "t1 t8 t1")):
        assert Script(table_of()).look(costs, (8,), budget=budget) == found
    assert Script(table_of()).look(costs, (8,), budget=5.1) == "t1 t8 t1", "one token tells"
