"""The figures of `bench` match their definitions, on hand-made samples."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from edgespec.measure.figures import (
    RoundRecord,
    Sample,
    against_best,
    combine,
    speedup,
    student,
    summary,
    tpot_percentiles,
)


def sample(line: str, speed: float, *, unit: int = 0, prompt: str = "p", **changes: Any) -> Sample:
    """A sample of 20 tokens after the first at a given speed."""
    values: dict[str, Any] = {
        "unit": unit, "mode": "greedy", "line": line, "prompt": prompt, "kind": "code", "seed": 1,
        "n_tokens": 21, "prompt_tokens": 5, "ttft_s": 0.5, "steps": 20, "decode_s": 20 / speed, "wall_s": 1.0,
        "drafted": 0, "accepted": 0, "seconds": None, "rounds": (), "finish_reason": "length", "text": "",
    }  # fmt: skip
    return Sample(**{**values, **changes})


def round_(tokens: int, seconds: float, drafted: int = 0, accepted: int = 0, *sources: str) -> RoundRecord:
    return RoundRecord(seconds, tokens, drafted, accepted, sources, 1.0)


# ---- one line ---------------------------------------------------------------------------------------------


def test_every_token_after_the_first_counts_once_in_the_percentiles() -> None:
    """Nine tokens at 10 ms and one at 100 ms: a round's seconds are shared among its tokens."""
    rounds = (round_(1, 5.0), *[round_(3, 0.03)] * 3, round_(1, 0.1), round_(0, 9.0))
    p50, p90, p99 = tpot_percentiles([sample("edgespec", 1, rounds=rounds)]) or (0, 0, 0)
    assert p50 == pytest.approx(0.01)
    assert p90 == pytest.approx(np.percentile([0.01] * 9 + [0.1], 90))
    assert 0.09 < p99 <= 0.1
    assert tpot_percentiles([sample("edgespec", 1, rounds=rounds[:1])]) is None


def test_acceptance_counts_positions_that_were_reached() -> None:
    rounds = (
        round_(1, 1.0),
        round_(5, 1.0, 4, 4),
        round_(1, 1.0, 4, 0),
        round_(3, 1.0, 3, 2),
        round_(1, 1.0),
    )
    got = summary(
        [sample("edgespec", 1, rounds=rounds, drafted=11, accepted=6)], "greedy", "edgespec", "plain"
    )
    assert got.acceptance_by_position == (2 / 3, 2 / 2, 1 / 2, 1 / 1)
    assert got.reached_by_position == (3, 2, 2, 1)
    assert got.acceptance_rate == 6 / 11
    assert got.mean_accepted_length == 9 / 3


def test_where_the_time_went_and_who_guessed_are_added_up() -> None:
    seconds = {"draft": 1.0, "verify": 2.0, "other": 0.5}
    rounds = (round_(2, 1.0, 1, 1, "model", "target"), round_(1, 1.0, 0, 0, "target"))
    mine = [sample("edgespec", 1, seconds=seconds, rounds=rounds) for _ in range(2)]
    got = summary(mine, "greedy", "edgespec", "plain")
    assert got.seconds == {"draft": 2.0, "verify": 4.0, "other": 1.0}
    assert got.sources == {"model": 2, "target": 4}


def test_a_line_without_samples_or_rounds_has_no_figures_and_fails_nowhere() -> None:
    for samples in ([], [sample("edgespec", 10, steps=0, ttft_s=None)]):
        got = summary(samples, "greedy", "edgespec", "plain")
        assert (got.tok_per_s, got.ttft_s, got.tpot_s, got.speedup) == (None, None, None, None)
        assert (got.acceptance_rate, got.mean_accepted_length, got.seconds) == (None, None, None)


def test_few_tokens_make_no_speed() -> None:
    assert sample("plain", 10, steps=3).tok_per_s is None
    assert sample("plain", 10, steps=4).tok_per_s == pytest.approx(2.0)
    assert sample("plain", 10, decode_s=0.0).tok_per_s is None


# ---- ratios -----------------------------------------------------------------------------------------------


def test_speeds_are_compared_on_the_same_unit_alone() -> None:
    samples = [
        sample("plain", 10, unit=0, prompt="a"), sample("edgespec", 20, unit=0, prompt="a"),
        sample("plain", 100, unit=1, prompt="b"), sample("edgespec", 800, unit=1, prompt="b"),
        sample("plain", 1, unit=2, prompt="c"), sample("edgespec", 7, unit=3, prompt="d"),
        sample("edgespec", 99, unit=0, prompt="a", mode="sampled"),
    ]  # fmt: skip
    got = speedup(samples, "edgespec", "plain")
    assert got and got.n == 2
    assert got.value == pytest.approx(4.0)  # the geometric mean of 2 and 8
    assert speedup(samples, "edgespec", "plain", kind="chat") is None


def test_the_speeds_of_two_lines_divide_to_their_speedup() -> None:
    rng = np.random.default_rng(0)
    samples = [
        sample(line, speed, unit=unit, prompt=str(unit))
        for unit in range(7)
        for line, speed in (("plain", rng.uniform(5, 50)), ("edgespec", rng.uniform(5, 90)))
    ]
    ours, plain = (summary(samples, "greedy", line, "plain") for line in ("edgespec", "plain"))
    assert ours.speedup and ours.tok_per_s and plain.tok_per_s
    assert ours.tok_per_s / plain.tok_per_s == pytest.approx(ours.speedup.value)
    assert plain.speedup is None


def test_repeats_of_a_prompt_are_one_value_their_median() -> None:
    pairs = [("a", 2.0), ("a", 2.1), ("a", 90.0), ("b", 2.0), ("c", 2.2)]
    got = combine(pairs)
    assert got and got.n == 3
    assert got.value == pytest.approx(statistics.geometric_mean([2.1, 2.0, 2.2]))


def test_a_single_prompt_is_judged_by_its_repeats() -> None:
    got = combine([("a", 2.0), ("a", 2.2), ("a", 1.9)])
    assert got and got.n == 3 and got.low is not None


def test_too_few_values_have_no_interval_and_none_no_ratio() -> None:
    for n in (1, 2):
        got = combine([(str(i), 2.0 + i) for i in range(n)])
        assert got and (got.low, got.high, got.n) == (None, None, n)
    assert combine([]) is None


def test_the_interval_covers_as_often_as_it_says() -> None:
    """95 % of 2,000 intervals: between 93 % and 97 % (4.1 standard errors; a false alarm in 24,000 runs)."""
    rng = np.random.default_rng(7)
    truth, covered = math.log(1.5), 0
    for _ in range(2000):
        logs = rng.normal(truth, 0.4, 8)
        got = combine([(str(i), math.exp(x)) for i, x in enumerate(logs)])
        assert got and got.low and got.high
        covered += got.low <= 1.5 <= got.high
    assert 0.93 < covered / 2000 < 0.97


@pytest.mark.parametrize("freedom, t", [(1, 12.706), (15, 2.131), (16, 2.120), (20, 2.086), (100, 1.984)])
def test_students_t_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert student(freedom) == pytest.approx(t, abs=1e-3)


# ---- the best of several ----------------------------------------------------------------------------------


def test_the_best_is_chosen_on_one_half_and_compared_on_the_other() -> None:
    """Noise alone: the winner of a sweep looks faster than the rest on the rounds it won, and is not."""
    rng = np.random.default_rng(3)
    names = [f"edgespec n={n}" for n in range(8)]
    ratios = []
    for _ in range(60):
        samples = [
            sample(name, math.exp(rng.normal(0, 0.3)), unit=unit, prompt=str(unit))
            for unit in range(8)
            for name in ["edgespec", *names]
        ]
        contest = against_best(samples, "greedy", "edgespec", names)
        assert contest
        ratios.append(math.log(contest.ratio.value))
    assert abs(statistics.fmean(ratios)) < 0.1  # in its own half the winner is ahead by about 0.2


def test_the_best_is_found_and_named() -> None:
    samples = [
        sample(name, speed, unit=unit, prompt=str(unit))
        for unit in range(4)
        for name, speed in (("edgespec", 30.0), ("n=1", 10.0), ("n=4", 20.0), ("n=8", 15.0))
    ]
    contest = against_best(samples, "greedy", "edgespec", ["n=1", "n=4", "n=8"])
    assert contest and contest.chosen == ("n=4", "n=4")
    assert contest.ratio.value == pytest.approx(1.5)


def test_one_unit_is_too_little_to_choose_and_compare() -> None:
    samples = [sample(name, 10.0) for name in ("edgespec", "n=1", "n=2")]
    assert against_best(samples, "greedy", "edgespec", ["n=1", "n=2"]) is None
    assert against_best([], "greedy", "edgespec", ["n=1"]) is None
    assert against_best(samples, "greedy", "edgespec", []) is None
