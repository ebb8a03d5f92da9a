"""How likely a token was: exactly the model's own softmax, or exactly what it was drawn from."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgespec.core.request import Scoring
from edgespec.core.scores import of_distribution, of_logits
from edgespec.core.values import Candidate
from edgespec.errors import SettingError
from edgespec.sampling.distribution import Distribution, point_mass


def test_logits_become_log_probabilities_as_exact_as_they_are() -> None:
    """Against sums of exact float64 values over a whole vocabulary, at logits of any size."""
    rng = np.random.default_rng(1)
    for offset in (0.0, 1e4, -1e4):
        row = (rng.normal(0, 5, 150_000) + offset).astype(np.float32)
        exact = row.astype(np.float64) - math.log(math.fsum(np.exp(row.astype(np.float64) - offset))) - offset
        token = int(rng.integers(row.size))
        score = of_logits(row, token, 5)
        assert score.chosen.logprob == pytest.approx(exact[token], abs=1e-6)
        best = np.argsort(-exact)[:5]
        assert [one.token for one in score.top] == best.tolist()
        assert [one.logprob for one in score.top] == pytest.approx(exact[best].tolist(), abs=1e-6)


def test_equals_come_in_the_order_of_their_ids_and_no_more_than_asked_for() -> None:
    row = np.array([1, 3, 3, 2, 3], np.float32)
    assert [one.token for one in of_logits(row, 0, 2).top] == [1, 2]
    assert [one.token for one in of_logits(row, 0, 9).top] == [1, 2, 4, 3, 0]
    assert of_logits(row, 0, 0).top == ()


def test_what_cannot_come_has_no_logarithm() -> None:
    row = np.array([0, -np.inf, 0], np.float32)
    assert of_logits(row, 1, 3).chosen.logprob == -math.inf
    p = Distribution(np.array([2, 7]), np.array([0.25, 0.75]))
    assert of_distribution(p, 5, 0).chosen.logprob == -math.inf
    score = of_distribution(p, 2, 5)
    assert score.chosen.logprob == math.log(0.25)
    assert score.top == (Candidate(7, math.log(0.75)), Candidate(2, math.log(0.25)))
    assert of_distribution(point_mass(3), 3, 2).top == (Candidate(3, 0.0),)


def test_how_many_are_reported_is_limited() -> None:
    with pytest.raises(SettingError, match="^the number of likeliest tokens is -1: "):
        Scoring(-1)
