"""Lookahead: what the target would predict after guesses that it rejected.

After a rejected guess the rows of a verification are useless for it, but they were computed: each says what
the target would find likeliest there, had the guess been right. Read on from the emitted token,
they are the next iterate of Jacobi's method, and their pieces fill a pool of n-grams (Fu et al., ICML 2024,
arXiv 2402.02057). A guess is the piece of the pool after the last token, or else that iterate. After it come
rows that only look ahead: nobody expects them to stay, so the pace takes them if an extra row costs nothing.
"""

from __future__ import annotations

import copy
from itertools import accumulate
from operator import mul

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Offer, Piece
from edgespec.core.pace.odds import Odds
from edgespec.core.values import Judged

GRAM = 4  # tokens of a piece, after the one by which it is found
MOST = 1 << 14  # pieces; a new one replaces the oldest
WINDOW = 8  # tokens ahead for which the iterate is kept
STEADY = 3  # times that a piece was found again, counted up to here
PIECE, ITERATE, BLANK = 0.4, 0.2, 0.0  # confidence begins here
ASSUMED = (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.4)  # acceptance until it is known


class Lookahead:
    """A pool of n-grams and the last iterate, fed by rows after rejected guesses."""

    name = "lookahead"

    def __init__(self, odds: Odds | None = None) -> None:
        self.odds = odds or Odds(ASSUMED)
        self._pool: dict[int, tuple[tuple[int, ...], int]] = {}  # token -> (what followed, times in a row)
        self._iterate: tuple[int, ...] = ()
        self._size = 0  # of the text after which the iterate comes

    def for_text(self) -> Lookahead:
        """Returns one with the same pool, and no iterate."""
        made = copy.copy(self)
        made._iterate = ()
        return made

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Offers a piece of the pool or the iterate, and rows that look ahead after it."""
        if not tokens.size:
            return Offer()
        iterate = self._iterate if self._size == tokens.size else ()
        piece, times = self._pool.get(int(tokens[-1]), ((), 0))
        guesses, sure = list(piece), [PIECE + 0.1 * times] * len(piece)
        if not piece or (iterate and iterate[0] != piece[0] and not times):
            guesses, sure = list(iterate), [ITERATE] * len(iterate)
        rest = iterate[len(guesses) :] or (guesses[-1] if guesses else int(tokens[-1]),)
        ahead = [*rest, *(rest[-1],) * WINDOW][: max(0, WINDOW - len(guesses))]
        guesses, sure = (guesses + ahead)[:limit], (sure + [BLANK] * len(ahead))[:limit]
        reach = tuple(accumulate(map(self.odds.of, sure), mul))
        return Offer(tuple(guesses), tuple(sure), reach)

    def learn(self, judged: Judged) -> None:
        """Notes what comes after rejected guesses."""
        self._iterate = tuple([row.argmax().item() for row in judged.behind[:WINDOW]])
        self._size = judged.tokens.size
        if judged.fresh != judged.accepted + 1:  # more was settled, or less kept: they are elsewhere
            self._iterate = ()
        if not self._iterate:
            return
        text = (*judged.tokens[-judged.fresh - 1 :].tolist(), *self._iterate)
        for i in range(max(0, judged.fresh - GRAM + 1), len(text) - 2):
            self._note(text[i], text[i + 1 : i + 1 + GRAM])

    def _note(self, token: int, following: tuple[int, ...]) -> None:
        old, times = self._pool.pop(token, ((), 0))
        same = old[:2] == following[:2]
        self._pool[token] = following, min(times + 1, STEADY) if same else 0
        if len(self._pool) > MOST:
            del self._pool[next(iter(self._pool))]


def guesser(n_vocab: int, piece: Piece) -> Lookahead:
    """Returns one in its state at a pair's first request, from the target's vocabulary."""
    return Lookahead()
