"""What a record holds: gains that fade, what drafts may still lose, how often one looks, and whom one trusts.

Figures follow by hand from the constants of `tuning.py`, whatever these are.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgespec.core.pace.record import KEPT_SHARE, QUIETER, Gain, Record, Trust, Watch
from edgespec.core.pace.tuning import TUNING


def test_a_gain_is_tokens_over_time_and_older_rounds_count_for_less() -> None:
    gain, fade, prior = Gain(), TUNING.fade, TUNING.prior_rounds
    assert gain.over(1.7) == pytest.approx(1.7), "nothing is known but what is expected"
    gain.add(3.0, 2.0)
    gain.add(1.0, 1.5)
    assert (gain.tokens, gain.cost) == pytest.approx((3 * fade + 1, 2 * fade + 1.5))
    assert gain.over(2.0) == pytest.approx((3 * fade + 1 + 2 * prior) / (2 * fade + 1.5 + prior))


# --- what may be lost


def test_what_may_be_lost_grows_with_the_tokens_and_shrinks_with_the_losses() -> None:
    record = Record(emitted=1000, lost=2.0, free_lost=0.5, trying=1e9)
    assert record.budget == pytest.approx(TUNING.start + 1000 * TUNING.share - 2)
    assert record.free_budget == pytest.approx(TUNING.free_start + 1000 * TUNING.free_share - 0.5)
    assert record.saved == pytest.approx(TUNING.silent_start + 1000 * TUNING.silent_share - 2)
    record.trying = 0.25
    assert record.saved == 0.25, "no more than may be spent on tries"


def test_what_a_draft_gains_is_kept_up_to_a_limit() -> None:
    record = Record()
    record.charge(2.0)
    record.charge(-0.5)
    assert record.lost == pytest.approx(1.5)
    record.charge(-1e9)
    assert record.lost == -TUNING.credit


def test_a_draft_that_has_paid_lately_owes_no_more_than_it_may_lose() -> None:
    """What it lost beyond that was a slow moment."""
    for gain, capped in ((Gain(11.0, 10.0), True), (Gain(10.0, 10.0), False), (Gain(5.0, 10.0), False)):
        record = Record(model=gain, emitted=100)
        record.charge(1000.0)
        assert record.lost == pytest.approx(TUNING.start + 100 * TUNING.share if capped else 1000)


def test_an_unverified_guess_is_paid_from_both_budgets_and_earlier_rounds_are_older_then() -> None:
    record = Record(model=Gain(4.0, 2.0), lost=1.0, trying=2.5)
    record.guessed_silently(0.5)
    assert (record.lost, record.trying) == (1.5, 2.0)
    assert record.model == Gain(4 * TUNING.fade, 2 * TUNING.fade)


def forgets(*floors: float | None) -> list[bool]:
    """Returns for each floor of slowness whether the record forgets as it takes it up."""
    record, found = Record(), []
    for floor in floors:
        record.model = Gain(8.0, 8.0)
        record.take_up(floor)
        found.append(record.model != Gain(8.0, 8.0))
    return found


def test_a_record_of_a_noisier_machine_is_forgotten_once() -> None:
    less, little = 0.99 * QUIETER, 1.01 * QUIETER
    assert forgets(1.0, 1.0, less, less) == [False, False, True, False]
    assert forgets(1.0, little, less) == [False, False, True], "compared with the highest since then"
    assert forgets(1.0, 2.0, 2 * less, 2 * less * little) == [False, False, True, False]
    assert forgets(None, less, None, 0.1, 0.09) == [False] * 5, "unknown is no noise"
    assert forgets(1.0, QUIETER) == [False, False]
    assert forgets(1.0, less, less * less) == [False, True, True], "and again, where it becomes quieter still"


def test_of_a_forgotten_record_a_part_of_the_gains_stays_and_debts_are_what_may_be_owed() -> None:
    indebted = Record(Gain(8.0, 4.0), Gain(16.0, 2.0), lost=99.0, free_lost=99.0, emitted=200, trying=-50.0)
    credited = Record(lost=-2.0, free_lost=-1.0, emitted=200, trying=TUNING.start + 9)
    for record in (indebted, credited):
        record.take_up(1.0)
        record.take_up(QUIETER / 2)
    assert indebted.model == Gain(8 * KEPT_SHARE, 4 * KEPT_SHARE)
    assert indebted.all == Gain(16 * KEPT_SHARE, 2 * KEPT_SHARE)
    assert indebted.lost == pytest.approx(200 * TUNING.share)
    assert indebted.free_lost == pytest.approx(200 * TUNING.free_share)
    assert indebted.trying == TUNING.start
    assert (credited.lost, credited.free_lost, credited.trying) == (-2.0, -1.0, TUNING.start + 9)


# --- when plain decoding is timed, and when nobody looks


def soonest_stale(record: Record, settling: int = 0) -> int:
    """Returns after how many tokens without plain decoding it is to be timed again."""
    for tokens in range(10_000):
        record.since_plain = tokens
        if record.stale(settling):
            return tokens
    raise AssertionError("never")


def test_plain_decoding_is_timed_again_when_that_costs_a_hundredth() -> None:
    """With 2.5 times the speed, 1.5 tokens are lost by one of plain decoding: a hundredth of 150."""
    of = lambda gain: Record(all=Gain(gain * 1e9, 1e9))  # noqa: E731
    assert soonest_stale(Record()) == soonest_stale(of(1.0)) == TUNING.fresh
    assert soonest_stale(of(2.5)) == pytest.approx(150, abs=1)
    assert soonest_stale(of(50.0)) == TUNING.refresh
    assert soonest_stale(of(2.5), settling=2) == pytest.approx(450, abs=1), "three rounds for one"


def test_a_pause_is_as_long_as_it_may_be_and_a_guess_ends_the_series() -> None:
    watch = Watch()
    for _ in range(TUNING.look):
        assert not watch.left
        watch.note(False, 5)
    assert (watch.looked, watch.left, watch.rest) == (0, 5, 2 * TUNING.rest)
    watch = Watch()
    for _ in range(3):
        for _ in range(TUNING.look - 1):
            watch.note(False)
        watch.note(True)
    assert watch == Watch(), "never two in a row"


# --- trust in free guesses


def test_trust_is_lost_as_far_as_expected_gains_do_not_come_true() -> None:
    trust, prior = Trust(), TUNING.trust_prior
    assert trust.factor == 1
    trust.note(3.0, 1.5)
    assert trust.factor == pytest.approx((1.5 + prior) / (3 + prior))
    trust.note(2.0, 1.0)
    expected, found = 3 * TUNING.trust_fade + 2, 1.5 * TUNING.trust_fade + 1
    assert trust.factor == pytest.approx((found + prior) / (expected + prior))
    for _ in range(10):
        trust.note(1.0, 9.0)
    assert trust.factor == 1, "what was better than expected is no reason to expect more"


def test_one_step_disappoints_by_a_limited_factor_and_trust_returns_while_nothing_is_taken() -> None:
    paused, slow = Trust(), Trust()
    paused.note(4.0, 0.001)
    slow.note(4.0, 4.0 / TUNING.trust_leap)
    assert paused == slow
    factors = []
    for _ in range(400):
        factors.append(paused.factor)
        paused.rest()
    assert all(0 < a < b <= 1 for a, b in pairwise(factors)) and factors[-1] > 0.99
    once = Trust(4.0, 1.0)
    once.rest()
    assert (once.expected, once.found) == pytest.approx((4 * TUNING.trust_rest, TUNING.trust_rest))
