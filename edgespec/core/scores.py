"""Log probabilities: how likely a token was, and its alternatives.

Two meanings, both llama-server's. The model's own: the softmax of its raw logits, before any sampler, bias
or grammar. Or after sampling: the distribution that the token was really drawn from.
"""

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import Candidate, TokenScore
from edgespec.sampling.distribution import Distribution


def of_logits(row: NDArray[np.float32], token: int, top: int) -> TokenScore:
    """Returns log-softmax of a row at `token`, and at its `top` largest, lowest id first among equals.

    row: (n_vocab,) float32 logits, without padding. They are summed in float64.
    """
    highest = float(row.max())
    total = highest + math.log(float(np.exp(row - np.float32(highest)).sum(dtype=np.float64)))
    likeliest = (Candidate(i, row.item(i) - total) for i in _largest(row, top).tolist())
    return TokenScore(Candidate(token, row.item(token) - total), tuple(likeliest))


def of_distribution(p: Distribution, token: int, top: int) -> TokenScore:
    """Returns the same of what a token was drawn from; -inf is what cannot come."""
    ids, probs = p.ids, p.probs
    likeliest = (Candidate(ids.item(i), _log(probs.item(i))) for i in _largest(probs, top).tolist())
    return TokenScore(Candidate(token, _log(p.prob(token))), tuple(likeliest))


def _largest(values: NDArray[np.floating], top: int) -> NDArray[np.int64]:
    """Returns where the `top` largest are, the largest first."""
    top = min(top, values.size)
    if not top:
        return np.empty(0, np.int64)
    edge = np.partition(values, values.size - top)[values.size - top]
    at = np.flatnonzero(values >= edge)
    return at[np.argsort(-values[at], kind="stable")][:top]


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf
