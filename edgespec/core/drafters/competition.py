"""All drafters at once: the free ones make offers, and the pace chooses between the best and the model.

Under a grammar an offer ends before the first token that it forbids: that one could never be accepted. Where
guesses may have run it out of what it can take, nobody guesses any more.

Free offers are also scored if they were not taken, against the emitted tokens: so their worth is
known without trying them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Drafting, Guesser, Offer, certain
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.history import History
from edgespec.core.values import NO_DRAFT, Draft, Judged
from edgespec.core.verify import Rule
from edgespec.errors import GrammarError
from edgespec.sampling.masks import Masks


class Competition:
    """Takes the offer that promises most tokens, unless the pace prefers the model."""

    def __init__(
        self,
        guessers: Sequence[Guesser],
        model: DraftModel | None = None,
        masks: Masks | None = None,
        *,
        looks: Callable[[], bool] = lambda: True,
        drafts: Callable[[], bool] = lambda: True,
    ) -> None:
        """masks: of the text's grammar. looks, drafts: see `Pace`."""
        self._looks, self._drafts = looks, drafts
        self.guessers, self.model, self.masks = guessers, model, masks
        self._offers: list[Offer] = []
        self._looked = False  # in this round

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        self._looked = self._looks() and not (self.masks and self.masks.strained)
        if not self._looked:
            return NO_DRAFT
        try:
            self._offers = [self._fitting(tokens, guesser.offer(tokens, limit)) for guesser in self.guessers]
        except GrammarError:  # it costs speed, not the answer
            return NO_DRAFT
        best, name = Offer(), ""
        for guesser, made in zip(self.guessers, self._offers, strict=True):
            if sum(made.reach) > sum(best.reach):
                best, name = made, guesser.name
        if self.model and self._drafts():
            guess = yield from self.model.draft(tokens, limit, rule, otherwise=best.reach)
            if guess.tokens:
                return guess
        n = len(best.reach)
        probs = tuple(certain(token) for token in best.tokens[:n])
        return Draft(best.tokens[:n], probs, (name,) * n, best.confidence[:n], best.reach)

    def _fitting(self, tokens: NDArray[np.int32], made: Offer) -> Offer:
        """Returns as much of an offer as the grammar allows."""
        if self.masks is None or not made.tokens:
            return made
        n = self.masks.fitting(tokens, made.tokens)
        return Offer(made.tokens[:n], made.confidence[:n], made.reach[:n])

    def learn(self, judged: Judged) -> None:
        if not self._looked and len(judged.p) == 1:
            for guesser in self.guessers:
                if isinstance(guesser, History):
                    guesser.learn(judged)  # later texts may be looked for in this one
            return  # a token is so cheap that nobody looked for guesses; counting would show too
        actual = judged.tokens[judged.tokens.size - judged.fresh :].tolist() if self._offers else ()
        for guesser, made in zip(self.guessers, self._offers, strict=False):
            for token, sure, truth in zip(made.tokens, made.confidence, actual, strict=False):
                guesser.odds.note(sure, token == truth)
                if token != truth:
                    break
        for guesser in self.guessers:
            guesser.learn(judged)
        self._offers = []
        if self.model:
            self.model.learn(judged)
