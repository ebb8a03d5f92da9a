"""Odds: counted by how sure a drafter was, faded, and never outside what is possible."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgespec.core.pace.odds import (
    BINS,
    FADE,
    FADE_RESTING,
    FADE_SILENT,
    MOST_SHIFT,
    PRIOR_WEIGHT,
    STIFFNESS,
    Odds,
    bin_of,
    proportional,
)


def test_confidence_falls_into_equal_bins() -> None:
    assert [bin_of(c) for c in (0.0, 0.05, 0.1, 0.55, 0.99, 1.0)] == [0, 0, 1, 5, 9, 9]
    assert {bin_of(c) for c in np.linspace(0, 1, 1001)} == set(range(BINS))


def test_at_first_odds_are_what_is_assumed() -> None:
    odds = proportional(0.2, 0.95)
    said = [odds.of((i + 0.5) / BINS) for i in range(BINS)]
    assert said == pytest.approx([0.2 + 0.75 * (i + 0.5) / BINS for i in range(BINS)])
    assert Odds((0.3,) * BINS).of(0.99) == 0.3


def test_the_first_observations_weigh_against_the_assumption() -> None:
    odds = Odds((0.5,) * BINS)
    odds.note(0.33, True)
    assert odds.of(0.35) == pytest.approx((1 + PRIOR_WEIGHT * 0.5) / (1 + PRIOR_WEIGHT))
    assert 0.5 < odds.of(0.45) < 0.6, "other bins take it as a hint"


def test_what_some_bins_show_shifts_what_is_assumed_of_the_others() -> None:
    """At temperature 1 a draft as good as the target is seldom sure of a token, and yet mostly right. Its
    unsure guesses were never made, since unsure guesses were thought bad until some had been made."""
    right, wrong = proportional(0.2, 0.95), proportional(0.2, 0.95)
    before = [right.of_bin(i) for i in range(BINS)]
    for i in (7, 8, 9) * 7:
        right.note_bin(i, True)
        wrong.note_bin(i, False)
    after, worse = [right.of_bin(i) for i in range(BINS)], [wrong.of_bin(i) for i in range(BINS)]
    assert all(high > middle > low for high, middle, low in zip(after, before, worse, strict=True))
    assert after[:7] == sorted(after[:7]) and worse[:7] == sorted(worse[:7]), "the surer, the likelier"
    assert before[4] < 0.55 and after[4] > 0.65 and worse[4] < 0.2
    for _ in range(20):
        right.note_bin(4, False)
    assert right.of_bin(4) < 0.15, "what a bin has shown itself counts for more"


def test_a_bin_is_not_shifted_by_itself() -> None:
    """It would count its own observations twice."""
    alone = Odds((0.6,) * BINS)
    alone.note_bin(8, True)
    assert alone.of_bin(8) == pytest.approx((1 + PRIOR_WEIGHT * 0.6) / (1 + PRIOR_WEIGHT))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_odds_find_the_rate_of_acceptance(rate: float) -> None:
    rng, odds, said = np.random.default_rng(1), Odds((0.5,) * BINS), []
    for _ in range(2000):
        odds.note(0.7, bool(rng.random() < rate))
        said.append(odds.of(0.7))
    assert np.mean(said[200:]) == pytest.approx(rate, abs=0.03)
    assert all(0 <= p <= 1 for p in said)


def test_odds_follow_a_change_within_some_hundred_observations() -> None:
    odds = Odds((0.5,) * BINS)
    for i in range(1000):
        odds.note_bin(9, i < 800)
    assert odds.of(1.0) < 0.1
    assert odds.seen[9] <= 1 / (1 - FADE)


def test_a_place_is_thought_like_the_others_until_it_is_known() -> None:
    """A draft that was stopped at 7 guesses believed that an eighth would fail, and never made it."""
    odds = Odds((0.7,) * BINS)
    odds.note_bin(0, True)
    after_one = odds.onward(3)
    assert after_one[0] > after_one[1] == after_one[2] > 0.7
    odds = Odds((0.7,) * BINS)
    assert odds.onward(4) == pytest.approx([0.7] * 4) and odds.onward(0) == []
    for _ in range(200):
        for i in range(3):
            odds.note_bin(i, i < 2)
    first, second, third, *rest = odds.onward(20)
    assert first == pytest.approx(second, abs=0.02) and second > 0.95 > 0.1 > third > 0
    assert rest == pytest.approx([2 / 3] * 17, abs=0.01)
    for _ in range(200):
        odds.note_bin(BINS - 1, True)
    assert odds.onward(30)[BINS - 1 :] == pytest.approx([odds.onward(BINS)[-1]] * (30 - BINS + 1))


def shifted(assumed: float, shift: float) -> float:
    """Returns a probability moved by so many units of log-odds."""
    odds = math.exp(shift) * assumed / (1 - assumed)
    return odds / (1 + odds)


def test_a_bin_is_shifted_by_what_all_others_have_shown_together() -> None:
    """By hand: two failed and one was accepted elsewhere, of which six tenths each were expected."""
    odds = Odds((0.6,) * BINS)
    for i, accepted in ((8, 1.0), (3, 0.0), (5, 0.0), (6, 1.0)):
        odds.note_bin(i, accepted)
    assumed = shifted(0.6, (1 - 3 * 0.6) / (STIFFNESS + 3 * 0.6 * 0.4))
    assert odds.of_bin(8) == odds.of(0.85) == pytest.approx((1 + PRIOR_WEIGHT * assumed) / (1 + PRIOR_WEIGHT))
    assert odds.of_bin(0) == pytest.approx(shifted(0.6, (2 - 4 * 0.6) / (STIFFNESS + 4 * 0.6 * 0.4)))


def test_a_shift_is_limited_and_certainty_is_not_shifted() -> None:
    for assumed, accepted, shift in ((0.2, 40.0, MOST_SHIFT), (0.8, 0.0, -MOST_SHIFT)):
        odds = Odds((assumed, 1.0, 0.0, *[assumed] * 7), [0.0] * 3 + [accepted] * 7, [0.0] * 3 + [40.0] * 7)
        assert [odds.of_bin(i) for i in range(3)] == [pytest.approx(shifted(assumed, shift)), 1.0, 0.0]


def test_what_was_known_before_counts_from_the_start() -> None:
    noted = Odds((0.5,) * BINS)
    for i in (2, 2, 7):
        noted.note_bin(i, 1.0)
    again = Odds(noted.assumed, list(noted.accepted), list(noted.seen))
    assert [again.of_bin(i) for i in range(BINS)] == [noted.of_bin(i) for i in range(BINS)]


def test_what_is_known_of_a_bin_fades_with_each_that_follows() -> None:
    for fade in (FADE, FADE_SILENT):
        odds = Odds((0.5,) * BINS)
        before = odds.of(0.75)
        odds.note(0.75, 1.0, fade=fade)
        odds.note(0.75, 0.25, fade=fade)
        assert (odds.accepted[7], odds.seen[7]) == pytest.approx((fade + 0.25, fade + 1))
        assert odds.of(0.75) > before, "nothing is remembered from before"


def test_places_that_were_not_tried_are_forgotten() -> None:
    odds = Odds((0.5,) * BINS, accepted=[4.0] * BINS, seen=[5.0] * BINS)
    before = [odds.of_bin(i) for i in range(BINS)]
    odds.rest(6)
    assert odds.accepted == pytest.approx([4.0] * 6 + [4 * FADE_RESTING] * 4)
    assert odds.seen == pytest.approx([5.0] * 6 + [5 * FADE_RESTING] * 4)
    assert all(odds.of(i / BINS + 0.05) < was for i, was in enumerate(before)), "and shift the others less"
