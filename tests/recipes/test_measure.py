"""What measuring does to drafted tokens: the rule is exact, the counts are right. No torch."""

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="measuring runs through llama.cpp")

from recipes.measure import Count, K, softmax, verify


def test_temperature_zero_is_a_point_mass():
    assert softmax(np.array([[1.0, 3.0, 2.0]], np.float32), 0).tolist() == [[0.0, 1.0, 0.0]]


def test_the_first_token_follows_the_target():
    """First tokens against p: chi-square, 4 degrees of freedom, false alarm 1 in 10,000 (23.5)."""
    rng = np.random.default_rng(11)
    p = rng.dirichlet(np.ones(5), K + 1)
    q = rng.dirichlet(np.ones(5), K)
    seen = np.zeros(5)
    n = 20_000
    for _ in range(n):
        guesses = [int(rng.choice(5, p=row)) for row in q]
        seen[verify(p, q, guesses, rng, Count())[0]] += 1
    assert float(((seen - n * p[0]) ** 2 / (n * p[0])).sum()) < 23.5


def test_counts_of_a_rejected_draft():
    p = np.eye(3)[[0, 1, 2, 0, 1]]
    q = np.eye(3)[[0, 1, 1, 0]]
    count = Count()
    said = verify(p, q, [0, 1, 1, 0], np.random.default_rng(0), count)
    assert said == [0, 1, 2]
    assert count.reached == [1, 1, 1, 0]
    assert count.accepted == [1, 1, 0, 0]
    assert count.expected == [1.0, 1.0, 0.0, 0.0]


def test_counts_of_an_accepted_draft():
    p = np.eye(3)[[0, 1, 2, 0, 1]]
    count = Count()
    assert verify(p, p[:K], [0, 1, 2, 0], np.random.default_rng(0), count) == [0, 1, 2, 0, 1]
    assert count.accepted == [1, 1, 1, 1]
