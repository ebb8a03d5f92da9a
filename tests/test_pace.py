"""A fixed pace grants what it was told to, a controller what pays; neither sees a drafted token.

`test_controller.py` tests the controller over whole texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from pacing import MEMORY_BOUND, TOKENS, controller_of, costs_of

from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.pace import FixedLength
from edgespec.core.pace.record import Gain, Record
from edgespec.core.pace.tuning import TUNING
from edgespec.core.pace.worth import best_length
from edgespec.core.values import LONGEST_DRAFT, Ask, Round
from edgespec.errors import SettingError


@pytest.mark.parametrize("length", [0, 1, 4, LONGEST_DRAFT])
def test_as_many_steps_and_rows_are_granted_as_drafts_may_have_tokens(length: int) -> None:
    pace = FixedLength(length)
    for n in range(LONGEST_DRAFT + 3):
        for rows in (1, 0):
            assert pace.grants_step(Ask("draft", TOKENS, (1,) * n, rows, (0.5,)), 1) == (n < length)
        assert pace.offer(Ask("target", TOKENS, (1,) * n, n + 1)) == (min(n, length), ())


def test_what_is_granted_depends_on_the_number_of_guesses_alone() -> None:
    """Exactness: a decision that looked at a drawn token would bias the text."""
    pace = FixedLength(3)
    for tail in [(0, 0), (9, 9), (5, 1)]:
        for reach in (0.0, 0.5, 1.0):
            assert pace.grants_step(Ask("draft", TOKENS, tail, 1, (reach,)), 1)
            assert pace.offer(Ask("target", TOKENS, tail, 3, (reach, reach))) == (2, ())


def test_a_likelier_free_guess_goes_before_a_fixed_number_of_the_models() -> None:
    pace = FixedLength(3)
    for free, granted in ((0.6, True), (0.7, False), (0.8, False)):
        ask = Ask("draft", TOKENS, (), 1, (0.7, 0.5), otherwise=(free, 0.1))
        assert pace.grants_step(ask, 1) == granted


def test_a_fixed_pace_learns_nothing_and_lets_the_draft_read_everything() -> None:
    pace = FixedLength(2)
    for accepted in (0, 2):
        assert pace.observe(Round((1,), "a", 2, accepted, ("target",)), 1.0) == 1
    assert pace == FixedLength(2)
    assert pace.window(3000) == 3000


@pytest.mark.parametrize("length", [-1, LONGEST_DRAFT + 1, 1.5, "4", None])
def test_a_length_that_makes_no_sense_is_refused(length: object) -> None:
    with pytest.raises(SettingError, match=f"length is {length!r}: it must be a whole number"):
        FixedLength(length)  # type: ignore[arg-type]


# --- the arithmetic of what pays


def verified(controller: Controller, ask: Ask) -> int:
    """Returns how many guesses of a free offer are verified with nothing beside them."""
    taken, weighed = controller.offer(ask)
    return taken or controller._batch.allot({0: weighed})[0][0]


def brute_force(reach: Sequence[float], prices: Sequence[float], step: float) -> dict[int, float]:
    """Returns draft length -> gain over plain decoding, in the plainest words."""
    found = {0: 1.0}
    for k in range(1, len(reach) + 1):
        found[k] = (1 + sum(reach[:k])) * prices[1] / (prices[k + 1] + k * step)
    return found


def random_economy(rng: np.random.Generator) -> tuple[list[float], NDArray[np.float64], float]:
    """Returns a reach that falls, prices that need not even rise, and what a guess costs."""
    reach = np.cumprod(rng.uniform(0.2, 1, rng.integers(1, 20))).tolist()
    prices = np.append(0.0, rng.uniform(0.5, 1 + rng.uniform(0, 4), LONGEST_DRAFT + 1))
    return reach, prices, rng.uniform(0, 0.5)


def test_the_best_length_is_that_of_all_lengths_tried() -> None:
    rng, plain = np.random.default_rng(1), 0
    for _ in range(2000):
        reach, prices, step = random_economy(rng)
        gain, length = best_length(tuple(reach), prices, step)
        wanted = brute_force(reach, prices, step)
        assert gain == pytest.approx(max(wanted.values()))
        assert wanted[length] == pytest.approx(gain)
        plain += length == 0
    assert 20 < plain < 1000
    assert best_length((), np.ones(3), 0.1) == (1.0, 0)


def test_a_free_guess_is_cut_where_it_pays_best_and_left_out_where_it_does_not() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        reach, prices, _ = random_economy(rng)
        prices = np.maximum.accumulate(prices)  # a table in which every size is known
        points = {n: float(seconds) for n, seconds in enumerate(prices) if n}
        controller = controller_of(costs_of(points, 0.1), Record(free_lost=-1e9))
        ask = Ask("target", TOKENS, (1,) * len(reach), len(reach) + 1, tuple(reach))
        assert verified(controller, ask) == best_length(tuple(reach), prices, 0.0)[1]


def test_free_guesses_have_a_budget_too() -> None:
    """They were offered and lost for as long as it took to learn what they are worth."""
    costs = costs_of({1: 1.0, 2: 1.5, 4: 3.0, 16: 8.0}, 0.1)
    ask = Ask("target", TOKENS, (1,) * 15, 16, (0.95,) * 15)
    fresh, spent, ahead = (
        verified(controller_of(costs, Record(free_lost=lost)), ask)
        for lost in (0.0, TUNING.free_start, -TUNING.credit)
    )
    assert 0 == spent < fresh < ahead
    later = Record(free_lost=TUNING.free_start, emitted=1000)
    assert verified(controller_of(costs, later), ask) > 0


def test_nearly_certain_guesses_need_no_budget() -> None:
    """One text whose guesses failed shut all out for 600 tokens: even those of a text that is repeated."""
    costs = costs_of({1: 1.0, 2: 1.5, 4: 3.0, 16: 8.0}, 0.1)
    ask = Ask("target", TOKENS, (1,) * 15, 16, (0.99,) * 12 + (0.9,) * 3)
    indebted = controller_of(costs, Record(free_lost=TUNING.free_start + TUNING.credit))
    assert verified(indebted, ask) == 12


def test_a_record_holds_plain_numbers_where_a_try_is_dear_too() -> None:
    """Beyond the budget numpy scalars got into it, and what came back from its file was another."""
    record = Record()
    controller = controller_of(costs_of({1: 1.0, 2: 3.0, 49: 20.0}, 0.1), record)
    controller.grants_step(Ask("draft", TOKENS, (), 1, (0.9,) * 9), 200)
    controller.observe(Round((1,), "a", 0, 0, ("target",)), 1.0)
    assert record.saving > TUNING.start
    assert {type(value) for value in (record.saving, record.trying, record.lost)} == {float}


def test_a_guess_pays_where_it_brings_more_than_its_time_is_worth_elsewhere() -> None:
    """Dinkelbach's rule, with prices that rise evenly: nothing is gained by looking further ahead."""
    even = {1: 1.0, 49: 1.0 + 48 * 0.3}
    for elsewhere in (1.0, 1.5, 2.0):
        record = Record(all=Gain(1e9 * elsewhere, 1e9), model=Gain(1e9 * elsewhere, 1e9))
        controller = controller_of(costs_of(even, 0.1), record)
        first = Ask("draft", TOKENS, (), 1, (0.9, 0.8, 0.7))
        assert controller.grants_step(first, 1)
        controller._trial = 0  # where elsewhere is no better than plain decoding this was a try
        for reach in np.linspace(0.052, 1, 96):  # none stands exactly on the edge
            ask = Ask("draft", TOKENS, (1,), 1, (float(reach),))
            assert controller.grants_step(ask, 1) == (reach >= elsewhere * 0.4 - 1e-9)
            drawn = Ask("draft", TOKENS, (1,), 0, (float(reach),))  # evaluated: that is paid for
            assert controller.grants_step(drawn, 0) == (reach >= elsewhere * 0.3 - 1e-9)


def test_a_step_in_the_prices_is_passed_together() -> None:
    """Three tokens may cost more than four: then a second guess is made for the sake of the third."""
    points = {1: 1.0, 2: 1.1, 3: 2.0, 4: 1.3, 5: 9.0, 49: 90.0}
    record = Record(all=Gain(1.5e9, 1e9), model=Gain(1.5e9, 1e9))
    controller = controller_of(costs_of(points, 0.05), record)
    assert controller.grants_step(Ask("draft", TOKENS, (), 1, (0.9, 0.8, 0.7)), 1)
    assert controller.grants_step(Ask("draft", TOKENS, (1,), 1, (0.8, 0.7)), 1)
    assert controller.grants_step(Ask("draft", TOKENS, (1, 1), 1, (0.7, 0.6)), 1)
    assert not controller.grants_step(Ask("draft", TOKENS, (1, 1, 1), 1, (0.7,)), 1)


def test_the_better_of_model_and_free_guess_is_chosen() -> None:
    """A draft that is better than nothing used to be preferred to a free guess that was better still: on
    copies, where lookup alone is 5 times as fast as plain decoding, that left 1.4 times."""
    record = Record(all=Gain(2e9, 1e9), model=Gain(2e9, 1e9))
    for free, granted in (((0.5,), True), ((0.99,) * 3, False)):
        controller = controller_of(costs_of(MEMORY_BOUND, 0.05), record)
        ask = Ask("draft", TOKENS, (), 1, (0.9, 0.8), otherwise=free)
        assert controller.grants_step(ask, 1) == granted


def test_no_budget_no_draft() -> None:
    record = Record(lost=TUNING.start)
    controller = controller_of(costs_of(MEMORY_BOUND, 0.05), record)
    assert not controller.grants_step(Ask("draft", TOKENS, (), 1, (0.9, 0.8)), 1)
    record.emitted = 1000
    assert record.budget == pytest.approx(TUNING.share * 1000)
    assert controller.grants_step(Ask("draft", TOKENS, (), 1, (0.9, 0.8)), 1)


def test_the_reading_of_a_prompt_is_paid_from_what_it_can_bring() -> None:
    """A draft that has shown nothing reads as much as may be lost; one that has shown what it saves, all."""
    reading = costs_of(MEMORY_BOUND, 0.05)
    reading.draft.points.update({100: 1.0})
    new = controller_of(reading, Record(), max_tokens=256)
    assert TUNING.trial <= new.window(1000) < 1000
    assert new.window(1000) <= max(TUNING.trial, TUNING.start / 0.01)
    assert new.window(TUNING.trial) == TUNING.trial, "a short one is no matter"
    proven = Record(all=Gain(2e9, 1e9), model=Gain(2e9, 1e9))
    assert controller_of(reading, proven, max_tokens=256).window(1000) == 1000
    assert controller_of(reading, proven, max_tokens=4).window(1000) < 1000, "too few tokens to save time on"


@pytest.mark.parametrize("seed", range(3))
def test_no_decision_depends_on_a_token_that_is_not_kept(seed: int) -> None:
    """The same asks with other guesses in the tail are answered alike."""

    def answers(tails: np.random.Generator) -> list[object]:
        rng = np.random.default_rng(seed)
        costs, record = costs_of(MEMORY_BOUND, 0.05, 0.03), Record()
        controller = controller_of(costs, record, max_tokens=2000)
        said: list[object] = []
        for n in range(10, 400):
            tokens = np.zeros(n, np.int32)
            guess = lambda k: tuple(tails.integers(0, 99, k).tolist())  # noqa: E731
            k, reach = 0, rng.uniform(0.3, 1)
            plan = tuple(np.cumprod(rng.uniform(0.5, 1, 8)).tolist())
            batch = BatchPlan(costs, {0: 1}, LONGEST_DRAFT + 1, n)
            controller.enter(batch, 0)
            while controller.grants_step(Ask("draft", tokens, guess(k), 1, plan if not k else (reach,)), 1):
                controller.drafted()
                if not controller.grants_step(Ask("draft", tokens, guess(k), 0, (reach,)), 0):
                    break
                k, reach = k + 1, reach * rng.uniform(0.5, 1)
            rows = k or verified(controller, Ask("target", tokens, guess(len(plan)), 9, plan))
            controller.took(0 if k else rows, 1.1)
            batch.take(0, rows)
            accepted, seconds = int(rng.integers(0, rows + 1)), rng.uniform(0.9, 2)
            said.append((k, rows, controller.observe(Round((0,), "", rows, accepted, ()), seconds)))
        return said

    first, second = (answers(np.random.default_rng(tails)) for tails in (1, 2))
    assert first == second
    assert len({k for k, _, _ in first}) > 2  # type: ignore[misc]


def test_a_head_that_makes_all_guesses_at_once_is_paid_once() -> None:
    """Two token times for a guess are too many, for seven guesses they are not."""
    points, reach = {1: 1.0, 8: 1.2, 49: 9.0}, tuple(0.9**n for n in range(1, 8))
    for at_once in (True, False):
        costs = replace(costs_of(points, 2.0), at_once=at_once)
        pace = controller_of(costs, Record(emitted=10_000), max_tokens=1000)
        assert pace.grants_step(Ask("draft", TOKENS, (), 1, reach), 1) == at_once
        if at_once:
            assert pace.grants_step(Ask("draft", TOKENS, (1,) * 5, 1, (0.3,)), 1), "the others cost nothing"


def test_what_a_head_reads_again_each_round_counts_and_is_no_reading_of_old_tokens() -> None:
    """Four tokens came of the last round, so four are read: where that is dear, drafting does not pay."""
    points, ask = {1: 1.0, 8: 1.2, 49: 9.0}, Ask("draft", TOKENS, (), 1, (0.9, 0.8, 0.7, 0.6))
    for dear in (False, True):
        costs = replace(costs_of(points, 0.05), rereads=True)
        costs.draft.points[4] = 4.0 if dear else 0.1
        record = Record(emitted=10_000, since_plain=1)
        pace = controller_of(costs, record, max_tokens=1000)
        pace.observe(Round((1, 2, 3, 4), "", 3, 3, ()), 0.0)
        record.since_plain = 1
        assert pace.usual == 4
        assert pace.grants_step(ask, 4) != dear


def test_guesses_beyond_the_limit_of_an_evaluation_have_their_price() -> None:
    """Drawn before the evaluation was interrupted, they were more than the next one had prices for."""
    batch = BatchPlan(costs_of(MEMORY_BOUND, 0.05, 0.03), {0: 70}, 63, 70)
    batch.weigh()
    one = batch.prices[70]
    batch.take(0, 5)
    assert batch.parts(1.0, [0])[0] > 0 and batch.prices[75] > one and not batch.allot({0: (0.9,)})[0]
