"""What one observation changes in a cost table, to the figure.

How tables do over many observations is in `test_costs.py`. Figures follow by hand from the constants.
"""

from __future__ import annotations

import math

import pytest

from edgespec.core.pace.cost_table import (
    AGED,
    AGEING,
    BULK,
    FALL,
    HEAVIEST,
    LARGEST,
    NOISY_SHARE,
    POINT_GAIN,
    PRIOR,
    RISE,
    RISING,
    SLOPE,
    SLOPE_GAIN,
    SURPRISE,
    CostTable,
    Slowness,
)
from edgespec.core.pace.costs import Costs

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
