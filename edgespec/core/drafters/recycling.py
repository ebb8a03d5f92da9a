"""Token recycling: what the target last predicted after these tokens.

Every verification shows what the target finds likeliest after each token it looks at, rejected guesses
included (Luo et al., ACL 2025, arXiv 2408.08696). A table records it: after two tokens, and after
one if the two are new. A guess is a walk through the table. It costs no evaluation, and the table, of
fixed size, is kept from one request to the next.
"""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Offer, Piece, offer
from edgespec.core.pace.odds import Odds
from edgespec.core.values import Judged

PLACES = 1 << 15  # pairs of tokens remembered; a new pair replaces an older one
STEADY = 4  # times in a row that the same token followed, counted up to here
LONGEST_WALK = 16
PAIR, SINGLE = 0.5, 0.0  # confidence begins here, by how much of the context was known
ASSUMED = (0.2, 0.25, 0.3, 0.3, 0.3, 0.35, 0.45, 0.5, 0.55, 0.55)  # acceptance until it is known


class TokenRecycling:
    """A table of likeliest next tokens, filled by verification."""

    name = "recycling"

    def __init__(self, n_vocab: int, odds: Odds | None = None) -> None:
        self.odds = odds or Odds(ASSUMED)
        self._single = np.full((n_vocab, 2), -1, np.int32)  # (likeliest next token, times in a row)
        self._pair = np.full((PLACES, 4), -1, np.int32)  # (first, second, likeliest next, times in a row)

    def for_text(self) -> TokenRecycling:
        """Returns one with the same table, whose odds may be another's."""
        return copy.copy(self)

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Walks the table from the last two tokens on."""
        if tokens.size < 2:
            return Offer()
        a, b = int(tokens[-2]), int(tokens[-1])
        guesses: list[int] = []
        confidence: list[float] = []
        while len(guesses) < min(limit, LONGEST_WALK):
            first, second, following, times = self._pair[_place(a, b)].tolist()
            base = PAIR
            if first != a or second != b:
                following, times = self._single[b].tolist()
                base = SINGLE
            if following < 0:
                break
            guesses.append(following)
            confidence.append(base + 0.1 * times)
            a, b = b, following
        return offer(guesses, confidence, self.odds)

    def learn(self, judged: Judged) -> None:
        """Notes the likeliest token after each position that the target evaluated."""
        before = judged.tokens.size - judged.fresh
        context = judged.tokens[max(0, before - 2) : before].tolist()
        context += judged.draft.tokens
        for i, p in enumerate(judged.p):
            at = i + min(2, before)  # context[:at] is before p
            if at < 2:
                continue
            self._note(context[at - 2], context[at - 1], p.likeliest()[0])

    def _note(self, a: int, b: int, following: int) -> None:
        row = self._pair[_place(a, b)]
        first, second, old, times = row.tolist()
        same = first == a and second == b and old == following
        row[:] = a, b, following, min(times + 1, STEADY) if same else 0
        old, times = self._single[b].tolist()
        self._single[b] = following, min(times + 1, STEADY) if old == following else 0


def _place(a: int, b: int) -> int:
    return (a * 0x9E3779B1 ^ b * 0x85EBCA77) % 0x1FFFFFFF % PLACES


def guesser(n_vocab: int, piece: Piece) -> TokenRecycling:
    """Returns one in its state at a pair's first request, from the target's vocabulary."""
    return TokenRecycling(n_vocab)
