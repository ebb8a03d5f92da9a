"""How slow a machine is now, by its plain steps, and in which moments one learns what rows cost there.

Figures follow by hand from the constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from edgespec.core.pace.cost_table import (
    AGREE,
    CREEP,
    DRIFT,
    FALL,
    FOLLOW,
    FORGET,
    MOST_PATIENCE,
    NOISY,
    NOISY_SHARE,
    PRIOR,
    RISE,
    RISING,
    SURE,
    SURPRISE,
    SURPRISES,
    CostTable,
    Slowness,
)
from edgespec.core.pace.costs import Costs

FIRST = 1 / (1 + PRIOR)  # of its way, that a first observation moves a size


def table_of() -> CostTable:
    return CostTable({1: 1.0, 4: 2.0, 8: 4.0}, slope=0.0)


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
    table = CostTable({1: 1.0, 4: 2.0}, offsets={4: 0.5}, weights={4: 4.0})
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
