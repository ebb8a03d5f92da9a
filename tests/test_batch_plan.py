"""What an evaluation of several streams costs each of them, and where its rows are worth most."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.cost_table import LARGEST, CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import LONGEST_DRAFT, Reach

EVEN = {1: 1.0, 63: 1.0 + 62 * 0.25}  # each further row costs a quarter of the first
GROUPS = {1: 1.0, 2: 1.9, 4: 2.0, 5: 3.4, 7: 3.8, 8: 2.8, 63: 30.0}  # rows cost in groups of four


def costs_of(points: dict[int, float], *, at_once: bool = False) -> Costs:
    return Costs(CostTable(points, slope=0.0), CostTable({1: 0.1, 4: 0.2}, slope=0.0), at_once=at_once)


def plan(points: dict[int, float], streams: int, most: int = 63, *, fills: bool = False) -> BatchPlan:
    found = BatchPlan(costs_of(points), dict.fromkeys(range(streams), 1), most, 0, fills=fills)
    found.weigh()
    return found


# --- prices


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_the_prices_of_one_stream_are_those_of_a_larger_evaluation(streams: int) -> None:
    load = plan({1: 1.0, 4: 1.2, 8: 3.0, 63: 60.0}, streams)
    prices, seconds = load.prices_for(0), load.costs.target.seconds
    assert prices[0] == 0 and prices[1] == pytest.approx(load.one)
    assert load.one == seconds(streams) / streams
    for n in range(2, 50):
        assert prices[n] - prices[1] == pytest.approx(seconds(streams + n - 1) - seconds(streams))


def test_a_stream_pays_what_it_adds_to_what_the_others_hold_by_now() -> None:
    load = plan({1: 1.0, 3: 1.2, 4: 3.0, 63: 70.0}, 2)
    assert load.prices_for(0)[:4] == pytest.approx([0, load.one, load.one + 0.1, load.one + 1.9])
    load.granted(1, 0.5)
    assert load.prices_for(0)[:3] == pytest.approx([0, load.one, load.one + 1.8]), "the third row was taken"
    assert load.prices_for(1)[2] == pytest.approx(load.one + 0.1), "its own guess is not one of the others'"


def test_rows_past_the_limit_of_an_evaluation_have_no_price() -> None:
    load = plan(EVEN, 2, most=4)
    assert np.isfinite(load.prices_for(0)).tolist() == [True] * 4 + [False] * (LONGEST_DRAFT - 2)
    load.take(1, 2)
    assert np.isfinite(load.prices_for(0)).tolist() == [True] * 2 + [False] * LONGEST_DRAFT
    alone = plan(EVEN, 1, most=3)
    assert np.isfinite(alone.prices_for(0)).sum() == 4 and alone.room == 2
    for most in (LONGEST_DRAFT - 1, LONGEST_DRAFT, LONGEST_DRAFT + 1, 63):
        prices = plan(EVEN, 1, most).prices_for(0)
        assert prices.size == LONGEST_DRAFT + 2
        assert np.isfinite(prices).sum() == min(most + 1, LONGEST_DRAFT + 2)


def test_prompts_that_are_read_along_are_a_part_of_the_evaluation() -> None:
    costs = costs_of({1: 1.0, 9: 5.0, 12: 8.0})
    load = BatchPlan(costs, {0: 1, 1: 3}, 63, 0, reading=5)
    load.weigh()
    assert load.one == pytest.approx(5.0 / 2)
    assert load.prices_for(0)[:3] == pytest.approx([0, 2.5, 3.5])
    nobody = BatchPlan(costs, {}, 63, 0)
    nobody.weigh()
    assert nobody.one == 0


def test_context_is_a_part_of_what_rows_cost_and_of_what_a_guess_takes() -> None:
    costs = Costs(CostTable({1: 1.0}, slope=0.1), CostTable({1: 0.1}, slope=0.1))
    load = BatchPlan(costs, {0: 1}, 63, 2000)
    load.weigh()
    assert load.one == pytest.approx(1.2) and load.prices_for(0)[3] == pytest.approx(3.6)
    assert load.evaluation() == pytest.approx(0.12)


def test_a_guess_takes_a_streams_part_of_what_they_draft_together_or_all_take_one_step() -> None:
    load = plan(EVEN, 4)
    assert (load.step(), load.once()) == (pytest.approx(0.1), 0.0)
    load.together = 4
    assert load.step() == load.evaluation() == pytest.approx(0.05)
    load.together = 1
    assert load.step() == pytest.approx(0.1)
    at_once = BatchPlan(costs_of(EVEN, at_once=True), {0: 1}, 63, 0)
    assert (at_once.step(), at_once.once()) == (0.0, pytest.approx(0.1))


def test_what_a_token_costs_is_looked_up_once_and_for_those_who_ask() -> None:
    load = BatchPlan(costs_of(EVEN), {0: 1}, 63, 0)
    assert not load.weighed and load.one == 0 and load.filling() == 0
    load.weigh()
    load.costs.target.slowness.level = 2.0
    load.weigh()
    assert load.weighed and load.one == 1.0, "one evaluation has one unit"


# --- rows that are thrown away


def test_rows_are_added_where_a_larger_evaluation_is_cheaper() -> None:
    def filling(streams: int, guesses: int, *, most: int = 63, fills: bool = True) -> int:
        load = plan(GROUPS, streams, most, fills=fills)
        load.take(0, guesses)
        return load.filling()

    assert [filling(1, k) for k in range(8)] == [0, 0, 0, 0, 3, 2, 1, 0]
    assert filling(6, 0) == 2, "those of plain decoding, too"
    assert filling(1, 5, most=7) == 0 and filling(1, 5, fills=False) == 0
    two_dear = plan({1: 1.0, 2: 1.9, 3: 1.5, 63: 40.0}, 2, fills=True)
    assert two_dear.filling() == 1 and two_dear.one == pytest.approx(1.5 / 2)


def test_rows_are_added_where_that_is_asked_for() -> None:
    load = BatchPlan(costs_of(GROUPS), {0: 5}, 63, 0)
    load.weigh()
    assert load.filling() == 0 and load.one == pytest.approx(3.4)


def test_a_draft_goes_on_where_rows_would_be_added_anyway() -> None:
    lengths, _ = plan(GROUPS, 1, fills=True).allot({0: (0.9, 0.9, 0.9, 0.9, 0.8, 0.1, 0.1, 0.1)})
    assert lengths == {0: 7}, "the last two cost nothing"


def test_a_token_of_streams_that_are_filled_up_costs_a_part_of_the_larger_evaluation() -> None:
    assert plan(GROUPS, 6, fills=True).one == pytest.approx(2.8 / 6)
    assert plan(GROUPS, 6).one == pytest.approx(3.6 / 6)
    dear = {1: 1.0, LARGEST: 90.0, LARGEST + 1: 80.0}
    largest = plan(dear, LARGEST, 200, fills=True)
    assert largest.one == pytest.approx(80 / LARGEST) and largest.filling() == 1
    many = plan(dear, LARGEST + 1, 200, fills=True)
    assert many.one == pytest.approx(80 / (LARGEST + 1)) and many.filling() == 0
    alone = plan({1: 1.0, 2: 0.5, 63: 40.0}, 1, fills=True)
    assert alone.one == 1.0 and alone.filling() == 0, "one token alone stays alone"


# --- free offers


def test_rows_go_where_they_are_worth_most() -> None:
    def allotted(streams: int, most: int, *offers: Reach) -> tuple[Counter[int], float]:
        load = plan({1: 1.0, 4: 1.2, 5: 3.0, 63: 60.0}, streams, most)
        return load.allot(dict(enumerate(offers)))

    lengths, gain = allotted(2, 63, (0.9, 0.3, 0.2), (0.8, 0.7))
    assert lengths == {0: 1, 1: 1}  # four tokens are cheap, the fifth is not
    assert gain == pytest.approx((2 + 0.9 + 0.8) * (1 + 0.2 / 3) / 2 / 1.2)
    assert allotted(4, 63, (0.5,), (0.4,))[0] == {}
    assert allotted(2, 3, (0.9, 0.8), (0.85,))[0] == {0: 1}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_allotted_has_the_best_gain_of_all_that_could_be(seed: int) -> None:
    """Of every number of guesses for each, next to guesses that the draft model has made already."""
    rng = np.random.default_rng(seed)
    prices = np.cumsum(rng.uniform(0.05, 0.6, 13))
    load = plan({n + 1: float(1 + seconds) for n, seconds in enumerate(prices)}, 3, most=9)
    load.granted(2, 0.7)
    load.drafting = 0.1
    trust = float(rng.uniform(0.7, 1))
    offers = {slot: tuple(np.cumprod(rng.uniform(0.4, 1, 5)).tolist()) for slot in range(2)}

    def gain(lengths: tuple[int, int]) -> float:
        expected = 3 + 0.7 + sum(sum(offers[slot][:n]) for slot, n in enumerate(lengths))
        seconds = 0.1 + load.costs.target.seconds(4 + sum(lengths))
        return expected * load.one / seconds * (trust if any(lengths) else 1.0)

    found, expected = load.allot(offers, trust)
    best = max((n for n in product(range(6), repeat=2) if sum(n) <= 5), key=gain)
    assert (found[0], found[1]) == best and expected == pytest.approx(gain(best))
    assert type(expected) is float


def test_offers_have_no_row_where_there_is_no_room() -> None:
    load = plan(EVEN, 2, most=2)
    assert load.allot({0: (1.0,)}) == (Counter(), pytest.approx(2 * load.one / 1.25))
    load.take(0, 3)
    assert load.room < 0 and load.allot({0: (1.0,), 1: (1.0,)})[0] == Counter()


def test_of_equal_guesses_those_of_the_first_slots_are_taken() -> None:
    assert plan(EVEN, 3, most=5).allot({2: (0.9,), 0: (0.9,), 1: (0.9,)})[0] == {0: 1, 1: 1}


# --- who caused what


def test_each_stream_is_charged_with_what_it_added() -> None:
    """Three guesses and two steps of the draft by one of two streams; all took a tenth longer."""
    load = plan(EVEN, 2)
    load.take(1, 3)
    for _ in range(2):
        load.drafted(1, 0.1)
    first, second = load.one, load.one + 3 * 0.25 + 0.2
    parts = load.parts(1.1 * (first + second), [0, 1])
    assert parts == {0: pytest.approx(1.1 * first), 1: pytest.approx(1.1 * second)}


def test_a_pause_of_the_machine_is_charged_to_nobody() -> None:
    load = plan(EVEN, 2)
    load.take(0, 1)
    assert load.parts(1000.0, [0, 1]) == {
        0: pytest.approx(TUNING.leap * (load.one + 0.25)),
        1: pytest.approx(TUNING.leap * load.one),
    }
    assert load.parts(load.one, [1]) == {1: pytest.approx(load.one)}, "of those whose rounds ended"


def test_what_is_granted_and_taken_is_counted() -> None:
    load = plan(EVEN, 2, most=9)
    load.granted(0, 0.75)
    load.granted(0, 0.5)
    load.take(1, 2)
    load.take(1, 1)
    assert load.guesses == {0: 2, 1: 3} and load.total == 7 and load.room == 2
    assert load.expected == pytest.approx(2 + 1.25), "rows that are verified in any case are not weighed"
