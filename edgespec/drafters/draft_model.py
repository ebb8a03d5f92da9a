"""The draft model: a small model guesses token by token, each drawn from its own distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters import Drafting
from edgespec.errors import LogitsError
from edgespec.events import Ask, Draft
from edgespec.sampling import Distribution, Sampler
from edgespec.verify import Rule


class DraftModel:
    """Guesses with the draft's logits through the user's sampler (greedy where that is greedy).

    The draft context is synced to tokens + guesses, so after a rejection its next evaluation is of one
    token, after full acceptance of two (the last guess, never evaluated so far, and the bonus).
    """

    def __init__(self, sampler: Sampler, *, n_ctx: int, n_vocab: int, min_confidence: float = 0.0) -> None:
        """Sets the bounds of the draft.

        sampler: over the ids that target and draft share. n_ctx: tokens the draft context holds.
        n_vocab: ids the draft knows. min_confidence: drafting stops, before drawing, where the largest
        probability of the next token is below this.
        """
        self.sampler = sampler
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab
        self.min_confidence = min_confidence

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        limit = min(limit, self.n_ctx - tokens.size)
        if limit <= 0 or int(tokens.max()) >= self.n_vocab:  # an id of the target's padding
            return Draft()
        guesses: list[int] = []
        probs: list[Distribution] = []
        reach = 1.0  # probability, as the draft sees it, that the next guess will count
        while len(guesses) < limit:
            row = yield Ask("draft", tokens, tuple(guesses), rows=1, worth=reach)
            if row is None:
                break
            try:
                q = self.sampler(row[0], self._history(tokens, guesses))
            except LogitsError:  # a damaged draft costs speed, not the answer
                break
            confidence = float(q.probs.max())
            if confidence < self.min_confidence:  # by q's shape, before x ~ q: exact
                break
            guesses.append(rule.draw(q, tokens.size + len(guesses)))
            probs.append(q)
            reach *= confidence
        return Draft(tuple(guesses), tuple(probs), ("model",) * len(guesses))

    def _history(self, tokens: NDArray[np.int32], guesses: list[int]) -> NDArray[np.int32]:
        """Returns what the penalties look at; all of it only where there are any."""
        return np.append(tokens, np.array(guesses, np.int32)) if self.sampler.sampling.penalises else tokens
