"""History: what followed in earlier texts of this pair, the last time one of them went on like this?

A ring of the tokens that were generated, in all requests, and for their last LONG and SHORT tokens the place
where each was seen last: the n-gram maps of llama.cpp's `ngram-mod`, with two lengths, and a match that is
compared token by token. A text that is asked for again, a file with one line changed, the tenth JSON of one
schema: their guesses cost no evaluation. The text at hand is `lookup`'s.

Memory is bounded: 12 bytes a token, for PLACES of them. It grows with what was written: n-grams lie scattered
over their maps, so that a large one would soon take all its memory.
"""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Offer, Piece, offer
from edgespec.core.pace.odds import Odds, proportional
from edgespec.core.values import Judged

PLACES = 1 << 22  # tokens kept; older ones give way
FIRST = 1 << 16  # size of the maps at first
ROOM = 4  # places a token in them: where there are fewer, they are made four times as large
LONG, SHORT = 8, 4  # tokens whose repetition is noticed
MOST_MATCH = 64  # tokens compared
AT_ONCE = 128  # new tokens of a text that are noted together
END = -1  # between two texts
SURE = tuple(m / (m + 6) for m in range(MOST_MATCH + 64))  # confidence by length of match and guesses
FACTOR, MASK = 0x9E3779B97F4A7C15, (1 << 64) - 1


class TextPool:
    """The tokens of earlier texts, and where their n-grams were seen last."""

    def __init__(self, places: int = PLACES) -> None:
        """places: how many tokens are kept."""
        self._places = places
        self._ring = np.zeros(places, np.int32)
        self._size = min(FIRST, places)  # of the maps
        self._latest = {n: np.zeros(self._size, np.int32) for n in (LONG, SHORT)}  # -> behind it; 0: none
        self._n = 1  # tokens written so far, those included that gave way
        self._writing: object = None  # whose text the ring ends with
        self.waiting: dict[int, History] = {}  # those that have something to write

    def add(self, tokens: NDArray[np.int32], fresh: int, writer: object) -> None:
        """Notes the last `fresh` of a text's tokens. writer: stands for the text.

        Those before them only tell later how long a match is.
        """
        if writer is not self._writing:  # another text was written since: begin with what this one had
            self._writing = writer
            self._write(np.array([END, *tokens[: tokens.size - fresh]]))
        if ROOM * self._n > self._size < self._places:
            self._grow()
        for n in (LONG, SHORT):
            first = max(tokens.size - fresh, n)  # the first place with n tokens before it
            if first < tokens.size:
                grams = np.lib.stride_tricks.sliding_window_view(tokens[first - n : -1], n)
                ends = self._n + np.arange(first - (tokens.size - fresh), fresh)
                self._latest[n][_hashes(grams) % np.uint64(self._size)] = ends % self._places
        self._write(tokens[tokens.size - fresh :])

    def _grow(self) -> None:
        """Makes the maps larger, and notes again what the ring holds, which has not come round yet."""
        self._size = min(4 * self._size, self._places)
        for n in (LONG, SHORT):
            grams = np.lib.stride_tricks.sliding_window_view(self._ring[1 : self._n], n)
            goes_on = np.flatnonzero(self._ring[n + 1 : self._n + 1] != END)
            self._latest[n] = np.zeros(self._size, np.int32)
            self._latest[n][_hashes(grams[goes_on]) % np.uint64(self._size)] = goes_on + n + 1

    def _write(self, tokens: NDArray[np.int32]) -> None:
        self._ring[np.arange(self._n, self._n + tokens.size) % self._places] = tokens
        self._n += tokens.size
        self._ring[self._n % self._places] = END

    def settle(self) -> None:
        """Notes what the texts have that were written until now."""
        waiting, self.waiting = list(self.waiting.values()), {}
        for history in waiting:
            history.note()

    def after(self, tokens: NDArray[np.int32], limit: int) -> tuple[int, list[int]]:
        """Returns how many tokens match, and at most `limit` that followed; (0, []) if nothing is known."""
        last = tokens[-LONG:].tolist()
        for n in (LONG, SHORT):
            if len(last) >= n and (place := int(self._latest[n][_hash(last[-n:]) % self._size])):
                matched = self._matched(tokens, place)
                if matched >= n and (following := self._following(place, limit)):
                    return matched, following
        return 0, []

    def _matched(self, tokens: NDArray[np.int32], place: int) -> int:
        m = min(MOST_MATCH, tokens.size, place)
        differs = (self._ring[place - m : place] != tokens[tokens.size - m :]).nonzero()[0]
        return m - 1 - int(differs[-1]) if differs.size else m

    def _following(self, place: int, limit: int) -> list[int]:
        return list(takewhile(lambda token: token >= 0, self._ring[place : place + limit].tolist()))


def _hashes(grams: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Returns the hash of each n-gram. grams: (m, n)."""
    found = np.zeros(grams.shape[0], np.uint64)
    for column in grams.T:
        found = (found ^ column.astype(np.uint32).astype(np.uint64)) * np.uint64(FACTOR)
        found ^= found >> np.uint64(29)
    return found


def _hash(gram: list[int]) -> int:
    """Returns the same hash of one n-gram, in a tenth of the time."""
    found = 0
    for token in gram:
        found = (found ^ token & 0xFFFFFFFF) * FACTOR & MASK
        found ^= found >> 29
    return found


class History:
    """Offers what followed in an earlier text; the longer the match, the surer."""

    name = "history"

    def __init__(self, pool: TextPool | None = None, odds: Odds | None = None) -> None:
        """odds: acceptance by SURE."""
        self.odds = odds or proportional(0.0, 0.95)
        self.pool = pool or TextPool()
        self._text = np.zeros(0, np.int32)  # prompt and output so far
        self._noted = 0  # of them in the pool, or before what belongs there
        self._begun = False  # whether any is in the pool

    def for_text(self) -> History:
        """Returns one with the same pool, whose odds may be another's."""
        return self.of(self.pool)

    def of(self, pool: TextPool) -> History:
        """Returns one for another pool."""
        pool.settle()
        return History(pool, self.odds)

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Offers what followed the longest of the n-grams at the end of `tokens` that is known."""
        length, guesses = self.pool.after(tokens, limit)
        return offer(guesses, SURE[length : length + len(guesses)], self.odds)

    def learn(self, judged: Judged) -> None:
        """Notes the text, some tokens at once; never the prompt, which may be long and is `lookup`'s."""
        self._text = judged.tokens
        self._noted = self._noted or judged.tokens.size - judged.fresh
        if judged.tokens.size - self._noted >= AT_ONCE:
            self.note()
        else:
            self.pool.waiting[id(self)] = self

    def note(self) -> None:
        """Writes what is new of the text into the pool."""
        if (fresh := self._text.size - self._noted) > 0:
            before = LONG if self._begun else MOST_MATCH  # a question's end shows that it is asked again
            self.pool.add(self._text[max(0, self._noted - before) :], fresh, self)
            self._begun = True
        self._noted = self._text.size


def guesser(n_vocab: int, piece: Piece) -> History:
    """Returns one in its state at a pair's first request, from the target's vocabulary."""
    return History()
