"""What a controller grants in a round: how far to read, whether to guess or to try, which offers.

Figures follow by hand from the constants. Whole texts are in `test_controller.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pacing import MEMORY_BOUND, TOKENS, controller_of, costs_of, drawn, next_round, proven, round_of, wanted

from edgespec.core.pace.controller import Controller
from edgespec.core.pace.record import Gain, Record
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import LONGEST_DRAFT, Ask

LIKELY = (0.9, 0.8, 0.7)
DEAR = {1: 1.0, 2: 3.0, 3: 3.2, 49: 20.0}  # no draft of one guess can pay, and the cheapest loses over 1
HOPELESS = {1: 1.0, 49: 49.0}  # none can pay


# --- what the draft reads


@pytest.mark.parametrize(("gain", "max_tokens", "window"), [
    (0.0, 256, int(TUNING.start / 4 / 0.01)),  # as much as a quarter of what may be lost
    (2.0, 20, 500),  # half of what 20 tokens save, which would take 10 more: five token times
    (2.0, None, int(TUNING.horizon / 4 / 0.01)),
    (4.0, 20, 750),
    (1.0, 256, int(TUNING.start / 4 / 0.01)),
])  # fmt: skip
def test_a_draft_reads_what_should_be_saved_or_may_be_lost(
    gain: float, max_tokens: int | None, window: int
) -> None:
    costs = costs_of(MEMORY_BOUND, 0.05)
    costs.draft.points[100] = 1.0
    record = proven(gain) if gain else Record()
    controller = controller_of(costs, record, max_tokens)
    assert controller.window(20_000) == pytest.approx(window, abs=1)
    assert controller.window(TUNING.trial + 1) == TUNING.trial + 1


def test_the_fewer_tokens_are_left_the_less_is_worth_reading() -> None:
    costs = costs_of(MEMORY_BOUND, 0.05)
    costs.draft.points[100] = 1.0
    controller = controller_of(costs, proven(2.0), max_tokens=120)
    controller.observe(round_of(100), 0.0)
    assert controller.window(20_000) == pytest.approx(500, abs=1)


def test_where_a_try_is_dear_the_end_of_the_text_is_read_alone() -> None:
    costs = costs_of(DEAR, 0.05)
    costs.draft.points[100] = 1.0
    assert controller_of(costs, Record()).window(20_000) == TUNING.trial


# --- whether the draft is asked


def test_a_draft_that_cannot_pay_is_not_asked_for_some_rounds() -> None:
    costs = costs_of(HOPELESS, 0.1)
    controller = controller_of(costs, Record())
    assert controller.drafts() and not controller.grants_step(wanted(LIKELY), 1)
    asked = [controller.drafts() for _ in range(TUNING.longest_idle + 1)]
    assert asked == [False] * TUNING.longest_idle + [True]
    controller.grants_step(wanted(LIKELY), 1)
    controller._records = lambda streams: Record()
    next_round(controller, costs, streams=2)
    assert controller.drafts(), "with more streams it may pay"


def test_where_a_try_is_dear_one_token_is_guessed_that_is_not_verified() -> None:
    """For what that may cost: at first for half a token time."""
    record = Record()
    costs = costs_of(DEAR, 0.11)
    controller = controller_of(costs, record)
    silent = 0
    while controller.grants_step(wanted(LIKELY), 1):
        assert not controller.grants_step(drawn(0.99, 0), 0), "it is not verified"
        controller.drafted()
        assert controller.observe(round_of(1), 0.0) == 1.0
        record.emitted = 0
        silent += 1
        assert record.lost == pytest.approx(0.11 * silent)
    assert silent == int(TUNING.silent_start / 0.11)
    waits = 0
    while not controller.drafts():
        waits += 1
    assert waits == int((0.11 - record.saved) / TUNING.silent_share), "until that is saved up"


@pytest.mark.parametrize(("lag", "tries", "lost", "granted"), [
    (1, 0, 0.39, True), (1, 0, 0.41, False), (1, 1, 0.29, True), (1, 1, 0.31, False),
    (20, 0, -2.01, True), (20, 0, -1.99, False),
])  # fmt: skip
def test_a_silent_guess_has_to_be_saved_up_for(lag: int, tries: int, lost: float, granted: bool) -> None:
    """A tenth of a token time, also for others that were granted one. Where 20 tokens are read before, 1.9
    more, and that for six guesses: 2.5 of what is saved, 0.5 at first."""
    costs = costs_of(DEAR, 0.1)
    controller = controller_of(costs, Record(lost=lost))
    controller._batch.tries = tries
    assert controller.grants_step(wanted(LIKELY), lag) == granted


def test_while_plain_decoding_is_timed_nobody_guesses_silently() -> None:
    record = Record(since_plain=10_000)
    assert not controller_of(costs_of(DEAR, 0.1), record).grants_step(wanted(LIKELY), 1)


# --- whether the draft is tried


def tried(record: Record, *, tries: int = 0, lag: int = 1, step: float = 0.05) -> int:
    """Returns how many guesses are granted that nobody expects to count."""
    controller = controller_of(costs_of(MEMORY_BOUND, step), record)
    controller._batch.tries = tries
    n = 0
    while controller.grants_step(wanted((1e-9,) * 3, n), lag if n == 0 else 1):
        n += 1
    return n


def test_a_try_is_as_long_as_what_it_may_lose_allows() -> None:
    """Where the draft says that no guess will count, the shortest is the best of those that could pay."""
    assert tried(Record()) == 1
    assert tried(Record(lost=TUNING.start)) == tried(Record(trying=0.0)) == 0
    assert tried(Record(since_plain=1)) == 0, "plain decoding is timed before"
    sure = wanted((0.35,) * 9)
    for budget, tries, length in ((3.0, 0, 7), (0.61, 0, 5), (0.61, 1, 2), (0.11, 0, 0)):
        record = Record(trying=budget, model=Gain(0.0, 99.0))
        controller = controller_of(costs_of(MEMORY_BOUND, 0.05), record)
        controller._batch.tries = tries
        granted = controller.grants_step(sure, 1)
        while granted and controller.grants_step(drawn(0.0, length), 0):
            raise AssertionError(f"more than {length}")
        assert granted == (length > 0)
        assert not length or controller.grants_step(drawn(0.0, length - 1), 0), length


def test_what_the_cheapest_try_takes_is_known_from_then_on() -> None:
    record = Record()
    controller_of(costs_of(MEMORY_BOUND, 0.05), record).grants_step(wanted((0.1,)), 1)
    assert record.try_costs == pytest.approx(0.2 / 3 + 0.05) and record.saving == TUNING.start
    behind = Record()
    controller_of(costs_of(MEMORY_BOUND, 0.05), behind).grants_step(wanted((0.1,)), 101)
    assert behind.try_costs == pytest.approx(0.2 / 3 + 0.05 + 100 * 0.05), "the reading, too"
    assert behind.saving == behind.try_costs


def test_nothing_is_looked_at_closer_where_that_shows_and_no_try_can_be_afforded() -> None:
    one = TUNING.light_s / 2
    points = {n: seconds * one for n, seconds in MEMORY_BOUND.items()}
    for try_costs, granted in ((2.0, True), (2.1, False)):
        record = Record(trying=2.0, try_costs=try_costs)
        controller = controller_of(costs_of(points, 0.05 * one), record)
        controller.looks()
        assert controller.grants_step(wanted((0.1,)), 1) == granted
        heavy = Record(trying=2.0, try_costs=try_costs)
        assert controller_of(costs_of(MEMORY_BOUND, 0.05), heavy).grants_step(wanted((0.1,)), 1)


def test_a_guess_that_was_evaluated_before_costs_nothing_now() -> None:
    costs = costs_of(MEMORY_BOUND, 0.85)
    for lag, granted in ((1, False), (0, True)):
        record = Record(since_plain=1)
        assert controller_of(costs, record).grants_step(wanted(LIKELY), lag) == granted


def test_a_trial_that_is_not_expected_to_pay_does_not_read_for_it() -> None:
    """A draft that pays reads what the tokens to come will save; beyond that, it costs as a try does."""
    costs = costs_of(MEMORY_BOUND, 0.01)
    for max_tokens, lag, length in ((100, 1000, LONGEST_DRAFT), (10, 1000, 0), (10, 200, LONGEST_DRAFT)):
        controller = controller_of(costs, proven(2.0), max_tokens)
        assert controller.grants_step(wanted(LIKELY), lag) == (length > 0)


def test_streams_share_what_they_read_together() -> None:
    """Four streams have 26 tokens to read: in one evaluation, each a quarter of 104."""
    costs = costs_of(MEMORY_BOUND, 0.01)
    costs.draft.points.update({4: 0.04, 104: 0.14})
    record = Record()
    controller = Controller(lambda streams: record, max_tokens=None)
    batch = next_round(controller, costs, streams=4)
    batch.together = 4
    controller.grants_step(wanted((0.1,)), 26)
    prices = batch.prices_for(0)
    cheapest = min((prices[n + 1] + n * 0.01) / prices[1] for n in range(1, 9)) - 1
    assert record.try_costs == pytest.approx(cheapest + (0.14 - 0.04) / 4 / batch.one)


# --- free offers


def test_an_offer_is_cut_where_twice_the_budget_ends_or_sure_guesses_do() -> None:
    costs = costs_of({1: 1.0, 49: 49.0}, 0.1)
    reach = (TUNING.sure,) * 2 + (0.9,) * 9
    for lost, length in ((0.0, 3), (TUNING.free_start - 2.0, 4), (TUNING.free_start, 2), (99.0, 2)):
        controller = controller_of(costs, Record(free_lost=lost))
        assert controller.offer(Ask("target", TOKENS, (1,) * 11, 12, reach)) == (0, reach[:length])


def test_a_head_reads_what_came_of_the_last_round_and_a_model_two_tokens() -> None:
    for rereads, usual in ((False, [2, 2, 2]), (True, [2, 2, 5])):
        controller = controller_of(replace(costs_of({1: 1.0}, 0.1), rereads=rereads), Record())
        found = [controller.usual]
        for tokens in (1, 5):
            controller.observe(round_of(tokens), 1.0)
            found.append(controller.usual)
        assert found == usual


def test_looking_ahead_ends_where_no_draft_is_longer() -> None:
    """The last guess is worth its own time, with nothing behind it."""
    controller = controller_of(costs_of({1: 1.0, 49: 1.0 + 48 * 0.3}, 0.1), proven(2.0, lost=-99.0))
    assert controller.grants_step(wanted(LIKELY), 1)
    last = LONGEST_DRAFT - 1
    assert controller.grants_step(Ask("draft", TOKENS, (1,) * last, 1, (1.0,) * 9), 1)
    assert not controller.grants_step(Ask("draft", TOKENS, (1,) * last, 1, (0.7,) + (1.0,) * 8), 1)
    assert not controller.grants_step(Ask("draft", TOKENS, (1,) * LONGEST_DRAFT, 1, (1.0,)), 1)
    assert isinstance(controller.record.lost, float) and np.isfinite(controller.record.budget)
