"""All drafters at once: the free ones make their offers, and the pace chooses between the best and the model.

Free offers are also scored where they were not taken, by what was said instead: so what each is worth is
known without trying it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters import Drafting, Guesser, Offer, certain
from edgespec.drafters.draft_model import DraftModel
from edgespec.events import Draft, Judged
from edgespec.verify import Rule


class Competition:
    """Takes the offer that promises most tokens, unless the pace prefers the model."""

    def __init__(self, guessers: Sequence[Guesser], model: DraftModel | None = None) -> None:
        self.guessers, self.model = guessers, model
        self._offers: list[Offer] = []

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        self._offers = [guesser.offer(tokens, limit) for guesser in self.guessers]
        best, name = Offer(), ""
        for guesser, made in zip(self.guessers, self._offers, strict=True):
            if sum(made.reach) > sum(best.reach):
                best, name = made, guesser.name
        if self.model:
            guess = yield from self.model.draft(tokens, limit, rule, otherwise=best.reach)
            if guess.tokens:
                return guess
        probs = tuple(certain(token) for token in best.tokens)
        return Draft(best.tokens, probs, (name,) * len(probs), best.confidence, best.reach)

    def learn(self, judged: Judged) -> None:
        said = judged.tokens[judged.tokens.size - judged.fresh :].tolist()
        for guesser, made in zip(self.guessers, self._offers or [Offer()] * len(self.guessers), strict=True):
            for token, sure, truth in zip(made.tokens, made.confidence, said, strict=False):
                guesser.odds.note(sure, token == truth)
                if token != truth:
                    break
            guesser.learn(judged)
        self._offers = []
        if self.model and judged.draft.sources[:1] == ("model",):
            self.model.learn(judged)
