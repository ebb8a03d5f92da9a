"""Do the first tokens that the whole loop emits have the target's own distribution? A chi-square test.

The expected counts come from the target's logits and the sampler alone, by walking the tree of first tokens;
the observed ones come from the loop with its draft. Sequences too rare to be counted are pooled with their
siblings, and those with each other.

Known differences by arithmetic alone (batches are computed by other kernels than single tokens) are
allowed for: they make the statistic noncentral, by the number of samples times its `divergence`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edgespec.sampling.sampler import Distribution

LEAST = 5.0  # expected count of a cell, as the chi-square approximation needs it
REST = (-1,)  # the cell of whatever is too rare for one of its own
Prefix = tuple[int, ...]


@dataclass(slots=True)
class Cells:
    """A partition of all token sequences of length `n`: cell -> probability. Shorter ones have ended."""

    n: int
    probs: dict[Prefix, float] = field(default_factory=dict)
    opened: set[Prefix] = field(default_factory=set)  # prefixes frequent enough to be continued
    rest: Prefix = REST  # the cell of those that are too rare even together with their siblings

    def cell(self, tokens: Prefix) -> Prefix:
        """Returns the cell of one sequence: its own, that of its rare siblings, or the rest."""
        tokens = tokens[: self.n]
        if tokens in self.probs:
            return tokens
        if tokens in self.opened:  # it ended here, which is rare
            return self.rest
        length = max(length for length in range(len(tokens)) if tokens[:length] in self.opened)
        siblings = (*tokens[:length], *REST)
        return siblings if siblings in self.probs else self.rest


def expected_cells(
    p: Callable[[Prefix], Distribution],
    n: int,
    samples: int,
    end_tokens: frozenset[int] = frozenset(),
    *,
    least: float = LEAST,
) -> Cells:
    """Walks the first `n` tokens of the target's own distribution; p: prefix -> what comes next.

    A sequence that meets an end token stops there, and that token is not counted as part of it.
    least: expected count of a cell; more makes fewer cells, of fewer prefixes.
    """
    cells, rest = Cells(n), 0.0
    open_: list[tuple[Prefix, float]] = [((), 1.0)]
    while open_:
        prefix, mass = open_.pop()
        cells.opened.add(prefix)
        distribution = p(prefix)
        ended = rare = 0.0
        for token, prob in zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True):
            share, child = mass * prob, (*prefix, token)
            if token in end_tokens:
                ended += share
            elif share * samples < least:
                rare += share
            elif len(child) == n:
                cells.probs[child] = share
            else:
                open_.append((child, share))
        for cell, share in ((prefix, ended), ((*prefix, *REST), rare)):
            if share * samples < least:
                rest += share
            else:
                cells.probs[cell] = share
    if rest * samples < least and cells.probs:
        cells.rest = min(cells.probs, key=cells.probs.__getitem__)
    cells.probs[cells.rest] = cells.probs.get(cells.rest, 0.0) + rest
    return cells


def shares(
    cells: Cells, p: Callable[[Prefix], Distribution], end_tokens: frozenset[int] = frozenset()
) -> dict[Prefix, float]:
    """Returns the probability of each cell under another distribution, asked for the same prefixes."""
    found = dict.fromkeys(cells.probs, 0.0)
    open_: list[tuple[Prefix, float]] = [((), 1.0)]
    while open_:
        prefix, mass = open_.pop()
        distribution = p(prefix)
        for token, prob in zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True):
            child = prefix if token in end_tokens else (*prefix, token)
            if child != prefix and child in cells.opened:
                open_.append((child, mass * prob))
            else:
                found[cells.cell(child)] += mass * prob
    return found


def total_variation(a: Mapping[Prefix, float], b: Mapping[Prefix, float]) -> float:
    """Returns half the sum of the differences: the most by which any event's probability differs."""
    return 0.5 * sum(abs(a.get(cell, 0.0) - b.get(cell, 0.0)) for cell in {*a, *b})


def divergence(expected: Mapping[Prefix, float], other: Mapping[Prefix, float]) -> float:
    """Returns by how much each sample raises the chi-square statistic if samples are drawn from `other`.

    At least 4 TV**2, by Cauchy and Schwarz.
    """
    return sum((other[cell] - p) ** 2 / p for cell, p in expected.items())


def chi_square(cells: Cells, sequences: Iterable[Prefix], allowed: float = 0.0) -> tuple[float, int]:
    """Returns (p-value, degrees of freedom) of the observed sequences under the expected cells.

    allowed: a divergence that is not a fault. With a single cell there is nothing to test: (1, 0).
    """
    counts = Counter(cells.cell(tokens) for tokens in sequences)
    samples, df = sum(counts.values()), len(cells.probs) - 1
    if df == 0:
        return 1.0, 0
    statistic = sum((counts[cell] - samples * p) ** 2 / (samples * p) for cell, p in cells.probs.items())
    return survival(statistic, df, samples * allowed), df


def visible(df: int, samples: int, false_alarm: float, allowed: float = 0.0, power: float = 0.9) -> float:
    """Returns the total variation from which on the test finds a deviation, of whatever form.

    It is found with probability `power` at least (the chi-square approximation granted). More than 1 means
    that nothing would be.
    """
    critical = _root(lambda x: survival(x, df, samples * allowed) - false_alarm)
    shift = _root(lambda shift: power - survival(critical, df, shift))
    return math.sqrt(shift / (4 * samples))


def _root(falling: Callable[[float], float]) -> float:
    """Returns where a falling function of a positive number crosses 0, by bisection."""
    low, high = 0.0, 1.0
    while falling(high) > 0:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def survival(x: float, df: int, shift: float = 0.0) -> float:
    """Returns P(X >= x) for X chi-square with `df` degrees of freedom, noncentral by `shift`.

    Central ones follow by the exact recurrence in steps of 2; the noncentral one is their Poisson mixture.
    """
    if x <= 0:
        return 1.0
    total, d = (math.erfc(math.sqrt(x / 2)), 1) if df % 2 else (math.exp(-x / 2), 2)
    log_step = -x / 2 + d / 2 * math.log(x / 2) - math.lgamma(d / 2 + 1)  # in logs: neither end overflows
    log_weight, mixed, left = -shift / 2, 0.0, 1.0
    while left > 1e-15:
        if d >= df:
            j = (d - df) // 2
            weight = math.exp(log_weight)
            mixed += weight * min(total, 1.0)
            left -= weight
            if shift == 0 or (j > shift / 2 and weight < 1e-18):
                break
            log_weight += math.log(shift / 2 / (j + 1))
        total += math.exp(log_step)
        d += 2
        log_step += math.log(x / d)
    return min(mixed, 1.0)
