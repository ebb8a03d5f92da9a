"""What may come next, as a value: token ids and their probabilities; and drawing from it."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Ids = NDArray[np.int64]

WIDE = 4096  # distributions over more tokens than these keep float32 probabilities
FEW = 64  # tokens up to which a distribution is kept in lists, if the sampling limits their number


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the tokens that may come next; every other token has probability 0."""

    ids: Ids  # (m,) int64, strictly ascending
    # (m,) float64, positive (past `WIDE` tokens float32, and 0 for what underflowed), summing to 1 within
    # rounding
    probs: Floats

    def prob(self, token: int) -> float:
        """Returns the probability of one token."""
        i = int(self.ids.searchsorted(token))
        return self.probs.item(i) if i < self.ids.size and self.ids.item(i) == token else 0.0

    def on(self, ids: Ids) -> Floats:
        """Returns the probabilities of the given ids: (len(ids),) float64."""
        if ids is self.ids:
            return self.probs
        if ids.size > WIDE:  # a search for each would take 20 times as long
            probs = np.zeros(max(self.ids.item(-1), ids.item(-1)) + 1, self.probs.dtype)
            probs[self.ids] = self.probs
            return probs.take(ids)
        at = np.minimum(self.ids.searchsorted(ids), self.ids.size - 1)
        return np.where(self.ids[at] == ids, self.probs[at], 0.0)

    def likeliest(self) -> tuple[int, float]:
        """Returns the token of the largest probability, the lowest id among equals, and that probability."""
        at = int(self.probs.argmax())
        return self.ids.item(at), self.probs.item(at)


class PointMass(Distribution):
    """Certainty of one token. Greedy rows are many, so its arrays are made only when needed."""

    __slots__ = ("token",)
    token: int

    def __init__(self, token: int) -> None:
        object.__setattr__(self, "token", token)

    @property
    def ids(self) -> Ids:
        return np.array([self.token], np.int64)

    @property
    def probs(self) -> Floats:
        return np.ones(1)

    def prob(self, token: int) -> float:
        return 1.0 if token == self.token else 0.0

    def likeliest(self) -> tuple[int, float]:
        return self.token, 1.0


class Few(Distribution):
    """At most FEW tokens, in Python lists.

    A numpy function that was not just used costs 3 to 10 microseconds between two evaluations, which
    have emptied the caches: more than going through a list. Arrays are made only when needed.
    """

    __slots__ = ("tokens", "weights")
    tokens: list[int]  # ascending
    weights: list[float]  # positive, summing to 1 within rounding; in a residual 0 as well, and to any sum

    def __init__(self, tokens: list[int], weights: list[float]) -> None:
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "weights", weights)

    @property
    def ids(self) -> Ids:
        return np.array(self.tokens, np.int64)

    @property
    def probs(self) -> Floats:
        return np.array(self.weights)

    def prob(self, token: int) -> float:
        at = bisect_left(self.tokens, token)
        return self.weights[at] if at < len(self.tokens) and self.tokens[at] == token else 0.0

    def likeliest(self) -> tuple[int, float]:
        most = max(self.weights)
        return self.tokens[self.weights.index(most)], most

    def draw(self, u: float) -> int:
        """Returns the token at quantile `u`: see `draw`."""
        sums = list(accumulate(self.weights))
        at = bisect_right(sums, u * sums[-1])
        if at == len(sums):  # rounding at the very end: the last token that has weight
            at = max(i for i, weight in enumerate(self.weights) if weight)
        return self.tokens[at]


@lru_cache(maxsize=4)
def all_ids(n: int) -> Ids:
    """Returns 0..n-1, the same array each time: distributions over everything share it."""
    return np.arange(n)


def point_mass(token: int) -> Distribution:
    """Returns the distribution that is certain of `token`."""
    return PointMass(token)


def draw(distribution: Distribution, u: float) -> int:
    """Returns the token at quantile `u` in [0, 1): the inverse of the cumulative distribution."""
    if isinstance(distribution, PointMass):
        return distribution.token
    if isinstance(distribution, Few):
        return distribution.draw(u)
    probs, first = distribution.probs, 0
    if probs.size > WIDE:  # narrow down to one block first: no float64 array of the vocabulary
        sums = np.add.reduceat(probs, np.arange(0, probs.size, WIDE), dtype=np.float64).cumsum()
        u *= sums[-1]
        block = min(int(sums.searchsorted(u, side="right")), sums.size - 1)
        u -= sums[block - 1] if block else 0.0
        first = block * WIDE
        probs = probs[first : first + WIDE]
        within = probs.cumsum(dtype=np.float64)
    else:
        within = probs.cumsum(dtype=np.float64)
        u *= within.item(-1)
    at = int(within.searchsorted(u, side="right"))
    if at == within.size:  # rounding at the very end: the last token that has weight
        at = int(probs.nonzero()[0][-1])
    return distribution.ids.item(first + at)
