"""DRY: tokens that would continue a repetition become less likely, the more the longer it is.

As in llama.cpp (llama_sampler_dry; the idea is p-e-w's): the end of the text is searched earlier in
it; what followed there loses multiplier * base^(length - allowed). No repetition is followed across a
breaker, such as a line's end. This depends on earlier tokens alone, so it is exact under speculation.
"""

import bisect
import itertools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.sampling.settings import Sampling

Tails = Mapping[int, Sequence[tuple[int, ...]]]  # a token with which a breaker begins -> what completes it
LONGEST_BREAKER, LONGEST_TAIL = 40, 20  # bytes; tokens
MOST_LOG = 88.7228391  # of the largest float32
REMEMBERED = 4  # sets of breakers: clients send the same again and again
SHORT = 32  # tokens; repetitions up to here are followed for all places at once


class Breakers:
    """How texts that break repetitions are written in one vocabulary. Thread-safe.

    The vocabulary is laid out once, so that each text costs only the tokens that contain it.
    """

    def __init__(
        self, pieces: Callable[[], Sequence[bytes]], tokenize: Callable[[bytes], Sequence[int]]
    ) -> None:
        """pieces: returns the text of every token, control tokens included."""
        self._pieces, self._tokenize = pieces, tokenize
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, ...], Tails] = OrderedDict()
        self._all = b""  # the pieces, one after another
        self._starts: list[int] = []  # of each in that, and the end of all
        self._backwards: list[tuple[bytes, int]] = []  # each piece reversed, in order, and its token

    def knows(self, texts: tuple[str, ...]) -> bool:
        """True if `tails` was asked for these texts recently."""
        return texts in self._known

    def tails(self, texts: tuple[str, ...]) -> Tails:
        """Returns how each breaker may begin and continue (llama.cpp's get_overlapping_token_sequences).

        A token that contains a whole breaker has an empty tail; one whose end is its beginning, the tokens of
        the rest.
        """
        with self._lock:
            known = self._known.get(texts)
            if known is None:
                self._lay_out()
                known = self._known[texts] = self._found(texts)
                while len(self._known) > REMEMBERED:
                    self._known.popitem(last=False)
            return known

    def _lay_out(self) -> None:
        if self._starts:
            return
        pieces = self._pieces()
        self._starts = [0, *itertools.accumulate(map(len, pieces))]
        self._all = b"".join(pieces)
        self._backwards = sorted((piece[::-1], token) for token, piece in enumerate(pieces))

    def _found(self, texts: Iterable[str]) -> Tails:
        found: dict[int, dict[tuple[int, ...], None]] = {}
        for text in texts:
            breaker = text.encode()[:LONGEST_BREAKER]
            for token in self._holding(breaker):
                found.setdefault(token, {})[()] = None
            for n in range(len(breaker) - 1, 0, -1):
                ending = self._ending(breaker[:n])
                tail = tuple(self._tokenize(breaker[n:])[:LONGEST_TAIL]) if ending else ()
                for token in ending:
                    if breaker not in self._piece(token):
                        found.setdefault(token, {})[tail] = None
        return {token: tuple(tails) for token, tails in found.items()}

    def _piece(self, token: int) -> bytes:
        return self._all[self._starts[token] : self._starts[token + 1]]

    def _holding(self, text: bytes) -> Iterator[int]:
        """Yields the tokens that contain a text."""
        at = self._all.find(text)
        while at >= 0:
            token = bisect.bisect_right(self._starts, at) - 1
            end = self._starts[token + 1]
            if at + len(text) <= end:
                yield token
                at = self._all.find(text, end)
            else:  # it crosses a border
                at = self._all.find(text, at + 1)

    def _ending(self, text: bytes) -> list[int]:
        """Returns the tokens that end with a text."""
        backwards = text[::-1]
        first = bisect.bisect_left(self._backwards, (backwards, -1))
        behind = first
        while behind < len(self._backwards) and self._backwards[behind][0].startswith(backwards):
            behind += 1
        return [token for _, token in self._backwards[first:behind]]


class Repetition:
    """The penalties of DRY for one sampling. tails: see `Breakers`; n_ctx: the meaning of -1."""

    def __init__(self, sampling: Sampling, tails: Tails | None = None, n_ctx: int = 2**31 - 1) -> None:
        self._s = sampling
        tails = tails or {}
        last_n = sampling.dry_penalty_last_n
        self._last_n = n_ctx if last_n < 0 else last_n
        self._heads = np.fromiter(tails, np.int64, len(tails))
        self._breaking = {token for token, of_token in tails.items() if () in of_token}
        self._tails = {token: _by_length(of_token) for token, of_token in tails.items()}
        base = sampling.dry_base
        self._steepest = int(MOST_LOG / math.log(base)) if base > 1.000001 else 0

    def penalties(
        self, history: Sequence[int] | NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns tokens and what their logits lose. history: prompt and text so far."""
        last = last_of_text(history, self._last_n)
        allowed = self._s.dry_allowed_length
        limit = self._limit(last) if last.size > allowed else -1
        if limit < allowed:
            return np.empty(0, np.int64), np.empty(0)
        lengths = _lengths(last, limit)
        long = np.flatnonzero(lengths >= allowed)
        tokens, which = np.unique(last[long + 1], return_inverse=True)
        longest = np.zeros(tokens.size, np.int64)
        np.maximum.at(longest, which, lengths[long])
        exponents = longest - allowed
        if self._steepest:
            exponents = np.minimum(exponents, self._steepest)
        less = self._s.dry_multiplier * np.power(float(self._s.dry_base), exponents)
        spared = np.array([token in self._breaking for token in tokens.tolist()], bool)
        return tokens[~spared], less[~spared]

    def _limit(self, last: NDArray[np.int64]) -> int:
        """Returns how long a repetition may be: as far back as the last breaker."""
        for at in np.flatnonzero(np.isin(last, self._heads))[::-1].tolist():
            behind = last.size - 1 - at  # tokens after it
            for length, tails in self._tails[int(last[at])]:
                if length <= behind and tuple(last[at + 1 : at + 1 + length].tolist()) in tails:
                    return int(behind - length)
        return int(last.size)


def last_of_text(history: Sequence[int] | NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """Returns the last n tokens; the cells of pictures and sounds, which are below zero, do not count."""
    last = np.asarray(history[-n:], np.int64)
    if last.size and last.item(last.argmin()) < 0:
        every = np.asarray(history, np.int64)
        return every[every >= 0][-n:]
    return last


def _by_length(tails: Iterable[tuple[int, ...]]) -> list[tuple[int, frozenset[tuple[int, ...]]]]:
    """Returns tails by their length, the longest first."""
    lengths = sorted({len(tail) for tail in tails}, reverse=True)
    return [(n, frozenset(tail for tail in tails if len(tail) == n)) for n in lengths]


def _lengths(last: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Returns for every token but the last the length of the text that ends there and at the end of all."""
    lengths = np.zeros(last.size - 1, np.int64)
    alive = np.flatnonzero(last[:-1] == last[-1])
    n = 0
    while alive.size and n < limit:
        if n == SHORT:  # a text that repeats itself: place by place would be quadratic
            return np.minimum(_shared_ends(last), limit)
        n += 1
        lengths[alive] = n
        alive = alive[alive >= n]
        alive = alive[last[alive - n] == last[last.size - 1 - n]]
    return lengths


def _shared_ends(last: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the same without a limit, in linear time (the Z-algorithm, from the end)."""
    text = last[::-1].tolist()
    n, left, right = len(text), 0, 0
    z = [0] * n
    for i in range(1, n):
        known = min(right - i, z[i - left]) if i < right else 0
        while i + known < n and text[known] == text[i + known]:
            known += 1
        z[i] = known
        if i + known > right:
            left, right = i, i + known
    return np.array(z[:0:-1], np.int64)
