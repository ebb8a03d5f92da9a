"""What a draft of each length is worth: how good guesses have to be, which lengths pay, what may be lost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.worth import (
    LENGTHS,
    LONGEST_PLANNED,
    affordable,
    at_load,
    best_length,
    break_even,
    can_pay,
    cheapest_try,
    round_costs,
)
from edgespec.core.values import LONGEST_DRAFT

TABLES = {
    "even": {1: 2.0, 32: 2.0 + 31 * 0.5},
    "in groups": {1: 1.0, 2: 1.9, 4: 2.0, 5: 3.4, 8: 2.8, 9: 4.5, 32: 14.0},
    "late": {1: 1.0, 2: 3.0, 12: 3.2, 32: 40.0},
    "all at the end": {1: 1.0, 2: 9.0, 17: 9.1, 32: 90.0},
    "flat": {1: 1.0, 32: 1.0},
}
EVERY = pytest.mark.parametrize("table", TABLES)


def costs_of(table: str, guess: float, *, at_once: bool = False) -> Costs:
    points = TABLES[table]
    return Costs(CostTable(points, slope=0.0), CostTable({1: guess}, slope=0.0), at_once=at_once)


def gain(costs: Costs, share: float, length: int, guess: float) -> float:
    """Returns what a draft gains of whose guesses a share is right, in the plainest words."""
    seconds = costs.target.prices(LONGEST_PLANNED + 1)[length + 1]
    seconds += guess if costs.at_once else guess * length
    return sum(share**k for k in range(length + 1)) * costs.target.seconds(1) / seconds


@EVERY
@pytest.mark.parametrize("at_once", [False, True])
def test_guesses_pay_from_the_share_that_is_stated(table: str, at_once: bool) -> None:
    """With a draft, whose guesses take their time, and without."""
    costs = costs_of(table, 0.3, at_once=at_once)
    found = break_even(costs, drafts=True)
    for least, guess in ((found.least, 0.3), (found.least_free, 0.0)):
        best = [max(gain(costs, share, n, guess) for n in range(1, 17)) for share in (least, least - 0.006)]
        assert best[0] > 1 or least == 1.0
        assert best[1] <= 1
    assert found.two == pytest.approx(costs.target.prices(17)[2] / costs.target.seconds(1))
    assert found.guess == pytest.approx(0.3 / costs.target.seconds(1))
    free = break_even(costs, drafts=False)
    assert free.guess == 0 and free.least == free.least_free == found.least_free


@EVERY
def test_the_gain_at_load_is_that_of_the_best_length_with_the_share_that_is_assumed(table: str) -> None:
    costs = costs_of(table, 0.3)
    for share, longest in ((0.7, 16), (0.9, 5), (0.2, 16)):
        best = max(gain(costs, share, n, 0.3) for n in range(1, longest + 1))
        assert at_load(costs, accepted=share, longest=longest) == pytest.approx(best)
    assert at_load(costs) == at_load(costs, accepted=0.7, longest=16)


def test_what_was_spent_before_is_not_counted_again() -> None:
    prices = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    assert best_length((0.9,), prices, 0.5) == (1.0, 0)
    assert best_length((0.9,), prices, 0.5, 0.75) == (pytest.approx(1.9 / 1.75), 1)
    assert best_length((1.0,), prices, 0.0) == (1.0, 0), "what gains nothing is not made"


def test_a_round_takes_its_evaluation_and_its_guesses_in_single_tokens() -> None:
    prices = np.arange(LONGEST_DRAFT + 2) * 2.0
    each, once = round_costs(prices, 0.5, 0.0), round_costs(prices, 0.0, 0.5)
    assert each.size == once.size == LONGEST_DRAFT + 1
    assert each[:3] == pytest.approx([1, 2.25, 3.5]) and once[:3] == pytest.approx([1, 2.25, 3.25])


def test_only_lengths_that_pay_if_all_is_accepted_are_worth_a_try() -> None:
    cost = np.full(LONGEST_DRAFT + 1, 1e9)
    assert cheapest_try(cost) == math.inf
    cost[:5] = 1.0, 2.0, 3.5, 3.25, 3.75
    assert LENGTHS[can_pay(cost)].tolist() == [3, 4]
    assert cheapest_try(cost) == pytest.approx(2.25)


def test_what_is_staked_is_enough_for_the_longest_draft_that_may_fail() -> None:
    cost = np.array([1.0, 2.0, 4.0, 3.0, 9.0])
    for reading, stake, length in (
        (0.0, 0.9, 0), (0.0, 1.0, 1), (0.0, 2.0, 3), (0.0, 99.0, 4), (0.5, 1.0, 0), (0.5, 1.5, 1),
        (5.0, 1.0, 0), (0.0, -1.0, 0),
    ):  # fmt: skip
        assert affordable(cost, reading, stake) == length
