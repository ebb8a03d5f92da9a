"""Lookup: what followed the last time the text ended like this?

A suffix automaton (Blumer et al., 1985; the idea of SuffixDecoding, arXiv 2411.04975) over prompt and
output: O(1) amortised work a token, whatever the length. It costs no evaluation and wins on copies:
edits of code, quotations, repeated structure.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Offer, Piece, offer
from edgespec.core.pace.odds import Odds, proportional
from edgespec.core.values import Judged

MIN_MATCH = 2  # shortest repeated suffix worth following
SURE = tuple(m / (m + 4) for m in range(256))  # confidence by length of the match, guesses included
REFRESHED = 8  # suffix links followed to note the newest occurrence: bounded work a token


class SuffixAutomaton:
    """All substrings of a growing token list, and where the longest repeated suffix occurred before."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]  # state -> token -> state
        self._link: list[int] = [-1]
        self._length: list[int] = [0]
        self._end: list[int] = [0]  # state -> end (exclusive) of a late occurrence
        self._last = 0
        self.match = (0, 0)  # (length, end of an earlier occurrence) of the longest repeated suffix

    def append(self, token: int) -> None:
        """Adds one token and finds the longest suffix that occurred before."""
        self.tokens.append(token)
        n = len(self.tokens)
        current = self._state({}, n, n)
        p = self._last
        while p >= 0 and token not in self._next[p]:
            self._next[p][token] = current
            p = self._link[p]
        if p < 0:
            self._link[current] = 0
        else:
            q = self._next[p][token]
            if self._length[p] + 1 == self._length[q]:
                self._link[current] = q
            else:
                self._link[current] = self._split(p, q, token)
        self._last = current
        state = self._link[current]
        self.match = (self._length[state], self._end[state])
        for _ in range(REFRESHED):
            if state <= 0:
                break
            self._end[state] = n
            state = self._link[state]

    def _state(self, nexts: dict[int, int], length: int, end: int, link: int = 0) -> int:
        self._next.append(nexts)
        self._length.append(length)
        self._end.append(end)
        self._link.append(link)
        return len(self._length) - 1

    def _split(self, p: int, q: int, token: int) -> int:
        clone = self._state(dict(self._next[q]), self._length[p] + 1, self._end[q], self._link[q])
        while p >= 0 and self._next[p].get(token) == q:
            self._next[p][token] = clone
            p = self._link[p]
        self._link[q] = clone
        return clone


class SuffixLookup:
    """Offers the continuation of an earlier occurrence; the longer the match, the surer."""

    name = "lookup"

    def __init__(self, odds: Odds | None = None) -> None:
        """odds: acceptance by SURE."""
        self.odds = odds or proportional(0.0, 0.95)
        self.automaton = SuffixAutomaton()
        self._held = bytearray()  # those tokens, int32 each
        self._media = False  # among them

    def for_text(self) -> SuffixLookup:
        return SuffixLookup(self.odds)

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Offers what followed the longest repeated suffix of `tokens`, the last time."""
        self.sync(tokens)
        length, end = self.automaton.match
        if length < MIN_MATCH:
            return Offer()
        guesses = self.automaton.tokens[end : end + limit]
        if self._media:  # nobody can guess a cell of one
            guesses = list(takewhile(lambda token: token >= 0, guesses))
        length = min(length, len(SURE) - limit)
        return offer(guesses, SURE[length : length + len(guesses)], self.odds)

    def learn(self, judged: Judged) -> None:
        pass

    def sync(self, tokens: NDArray[np.int32]) -> None:
        """Makes the automaton hold exactly `tokens`: appends what is new, starts anew after an edit."""
        held = len(self.automaton.tokens)
        if held and not (held <= tokens.size and self._held.startswith(tokens.data[:held].cast("B"))):
            self.automaton, self._held, held, self._media = SuffixAutomaton(), bytearray(), 0, False
        fresh = tokens[held:]
        if fresh.size and fresh.item(fresh.argmin()) < 0:
            self._media = True  # each of its cells counts as new, so no repetition is followed across it
            fresh = np.where(fresh < 0, -1 - np.arange(held, tokens.size, dtype=np.int32), fresh)
        for token in fresh.tolist():
            self.automaton.append(token)
        self._held += tokens[held:].tobytes()


def guesser(n_vocab: int, piece: Piece) -> SuffixLookup:
    """Returns one in its state at a pair's first request, from the target's vocabulary."""
    return SuffixLookup()
