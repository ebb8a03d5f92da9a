"""The checks themselves: the chi-square test alarms as rarely as it says, excuses are not given lightly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from real.embedded import complaint

from edgespec.commands.verify.equality import Difference, first_difference, largest_difference
from edgespec.commands.verify.goodness import (
    REST,
    Prefix,
    chi_square,
    divergence,
    expected_cells,
    shares,
    survival,
    total_variation,
    visible,
)
from edgespec.sampling.sampler import Distribution, draw

END = 0


def chain(prefix: Prefix) -> Distribution:
    """A language of 30 tokens, one of which ends the text, with some very rare sequences."""
    rng = np.random.default_rng([7, *prefix])
    return Distribution(np.arange(30), rng.dirichlet(np.full(30, 0.3)))


def sequence(rng: np.random.Generator, n: int, language: Callable[[Prefix], Distribution] = chain) -> Prefix:
    tokens: Prefix = ()
    while len(tokens) < n:
        token = draw(language(tokens), rng.random())
        if token == END:
            break
        tokens = (*tokens, token)
    return tokens


def test_the_cells_are_a_partition() -> None:
    cells = expected_cells(chain, 3, 2000, frozenset([END]))
    assert sum(cells.probs.values()) == pytest.approx(1)
    assert min(cells.probs.values()) * 2000 >= 5
    assert len(cells.probs) > 20
    assert all(cells.cell(sequence(np.random.default_rng(i), 3)) in cells.probs for i in range(500))
    assert cells.cell((1, 2, 3, 4)) == cells.cell((1, 2, 3))
    assert any(cell[-1:] == REST for cell in cells.probs)


def test_samples_too_few_for_any_cell_say_nothing() -> None:
    """`edgespec verify --seconds 1` ended in a traceback where it had drawn four samples."""
    cells = expected_cells(chain, 3, 4, frozenset([END]))
    assert cells.probs == {REST: pytest.approx(1)}
    assert chi_square(cells, [(1, 2, 3)] * 4) == (1.0, 0)


@pytest.mark.slow
def test_p_values_of_true_samples_are_spread_evenly() -> None:
    """Of 100 p-values a tenth lies below 0.1 (between 1 and 24 do, but for one case in 10,000)."""
    rng = np.random.default_rng(1)
    cells = expected_cells(chain, 2, 400, frozenset([END]))
    values = [chi_square(cells, [sequence(rng, 2) for _ in range(400)])[0] for _ in range(100)]
    assert 1 <= sum(value < 0.1 for value in values) <= 24
    assert 0.35 < np.mean(values) < 0.65


def test_p_values_of_other_samples_are_small() -> None:
    rng = np.random.default_rng(2)
    cells = expected_cells(chain, 2, 400, frozenset([END]))
    other = [tuple(rng.permutation(sequence(rng, 2)).tolist()) for _ in range(400)]
    assert chi_square(cells, other)[0] < 1e-6


@pytest.mark.parametrize(
    "x, df, p",
    [(3.841, 1, 0.05), (5.991, 2, 0.05), (7.815, 3, 0.05), (149.449, 100, 0.001), (0.0, 4, 1), (1e5, 50, 0)],
)
def test_the_chi_square_distribution_is_the_tables(x: float, df: int, p: float) -> None:
    assert survival(x, df) == pytest.approx(p, abs=2e-5)


@pytest.mark.parametrize(
    "x, df, shift, p",
    [(20.0, 5, 7.0, 0.1063), (300.0, 20, 300.0, 0.7085), (5000.0, 20, 5000.0, 0.5532), (0.0, 3, 2.0, 1)],
)
def test_the_noncentral_one_is_the_simulations(x: float, df: int, shift: float, p: float) -> None:
    """Of a million draws by numpy's generator; the last digit is theirs."""
    assert survival(x, df, shift) == pytest.approx(p, abs=1e-3)


def test_what_is_stated_to_be_visible_is_seen_nine_times_in_ten() -> None:
    """The hardest deviation of its size: every probability raised or lowered by the same factor."""
    rng = np.random.default_rng(4)
    p, samples, false_alarm = np.full(20, 0.05), 2000, 1e-3
    tv = visible(19, samples, false_alarm)
    other = p * (1 + np.where(np.arange(20) < 10, 2 * tv, -2 * tv))
    counts = rng.multinomial(samples, other, size=2000)
    statistics = ((counts - samples * p) ** 2 / (samples * p)).sum(axis=1)
    seen = np.mean([survival(x, 19) < false_alarm for x in statistics])
    assert 0.87 < seen < 0.93


def test_what_arithmetic_may_do_is_allowed_for() -> None:
    """Samples of a slightly other language are found out, unless that language is the one allowed."""

    def other(prefix: Prefix) -> Distribution:
        p = chain(prefix)
        weights = p.probs * np.where(p.ids % 2, 1.25, 0.8)
        return Distribution(p.ids, weights / weights.sum())

    rng = np.random.default_rng(3)
    cells = expected_cells(chain, 2, 3000, frozenset([END]))
    batched = shares(cells, other, frozenset([END]))
    assert sum(batched.values()) == pytest.approx(1)
    allowed = divergence(cells.probs, batched)
    assert allowed >= 4 * total_variation(cells.probs, batched) ** 2 > 0
    drawn = [sequence(rng, 2, other) for _ in range(3000)]
    assert chi_square(cells, drawn)[0] < 1e-4
    assert chi_square(cells, drawn, allowed)[0] > 1e-4
    assert shares(cells, chain, frozenset([END])) == pytest.approx(cells.probs)


def test_padding_is_no_difference() -> None:
    """The padded columns of a grown model stand thousands below and differ by whole logits."""
    a = np.array([[3.0, 1.0, -2318.0, -np.inf]], np.float32)
    b = np.array([[3.25, 1.0, -2316.0, -np.inf]], np.float32)
    assert largest_difference(a, b) == 0.25
    assert np.isnan(largest_difference(a, a * np.nan))


def test_the_first_difference() -> None:
    assert first_difference((1, 2, 3), (1, 2, 3)) is None
    assert first_difference((1, 2, 3), (1, 9, 3)) == 1
    assert first_difference((1, 2), (1, 2, 3)) == 2
    assert first_difference((), (1,)) == 0


def test_excuses() -> None:
    excused, blamed = Difference(3, True, 0.1), Difference(3, False, 0.1)
    assert complaint([None] * 20, identical=True) is None
    assert complaint([None] * 19 + [excused], identical=False) is None
    assert complaint([None] * 19 + [excused], identical=True) is not None
    assert complaint([None] * 18 + [excused] * 2, identical=False) is not None
    assert complaint([None] * 99 + [blamed], identical=False) is not None
    assert complaint([None] * 99 + [Difference(3, True, 0.3)], identical=False) is not None
