"""Do the first tokens that the whole loop emits have the target's own distribution? A chi-square test.

What is expected comes from the target's logits and the sampler alone, by walking the tree of first tokens;
what is observed comes from the loop with its draft. Sequences too rare to be counted are pooled with their
siblings, and those with each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from edgespec.sampling import Distribution

LEAST = 5.0  # expected count of a cell, as the chi-square approximation wants it
REST = (-1,)  # the cell of whatever is too rare for one of its own
Prefix = tuple[int, ...]


@dataclass(slots=True)
class Cells:
    """A partition of all token sequences of length `n`: cell -> probability. Shorter ones have ended."""

    n: int
    probs: dict[Prefix, float] = field(default_factory=dict)
    opened: set[Prefix] = field(default_factory=set)  # prefixes frequent enough to be continued
    rest: Prefix = REST  # where go those that are too rare even together with their siblings

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
    p: Callable[[Prefix], Distribution], n: int, samples: int, end_tokens: frozenset[int] = frozenset()
) -> Cells:
    """Walks the first `n` tokens of the target's own distribution; p: prefix -> what comes next.

    A sequence that meets an end token stops there, and that token is not counted as part of it.
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
            elif share * samples < LEAST:
                rare += share
            elif len(child) == n:
                cells.probs[child] = share
            else:
                open_.append((child, share))
        for cell, share in ((prefix, ended), ((*prefix, *REST), rare)):
            if share * samples < LEAST:
                rest += share
            else:
                cells.probs[cell] = share
    if rest * samples < LEAST:
        cells.rest = min(cells.probs, key=cells.probs.__getitem__)
    cells.probs[cells.rest] = cells.probs.get(cells.rest, 0.0) + rest
    return cells


def chi_square(cells: Cells, sequences: Iterable[Prefix]) -> tuple[float, int]:
    """Returns (p-value, degrees of freedom) of the observed sequences under the expected cells."""
    counts = Counter(cells.cell(tokens) for tokens in sequences)
    samples = sum(counts.values())
    statistic = sum((counts[cell] - samples * p) ** 2 / (samples * p) for cell, p in cells.probs.items())
    return survival(statistic, len(cells.probs) - 1), len(cells.probs) - 1


def survival(x: float, df: int) -> float:
    """Returns P(X >= x) for X chi-square with `df` degrees of freedom (exact recurrence in steps of 2)."""
    term, total, d = (
        (math.sqrt(2 * x / math.pi) * math.exp(-x / 2), math.erfc(math.sqrt(x / 2)), 1)
        if df % 2
        else (math.exp(-x / 2) * x / 2, math.exp(-x / 2), 2)
    )
    while d < df:
        total += term
        d += 2
        term *= x / d
    return min(total, 1.0)
