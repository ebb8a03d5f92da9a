"""DRY: tokens that would go on with a repetition are made less likely, the more the longer it is.

As llama.cpp does it (llama_sampler_dry; the idea is p-e-w's): the end of the text is looked for earlier in
it; what followed there loses multiplier * base^(length - allowed). A breaker, such as a line's end, is where
no repetition is followed across. It depends on the tokens before alone, so it is exact under speculation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.sampling_settings import Sampling

Tails = Mapping[int, Sequence[tuple[int, ...]]]  # a token with which a breaker begins -> what completes it
LONGEST_BREAKER, LONGEST_TAIL = 40, 20  # bytes; tokens
MOST_LOG = 88.7228391  # of the largest float32


def breakers_of(
    texts: Iterable[str], pieces: Sequence[bytes], tokenize: Callable[[bytes], Sequence[int]]
) -> Tails:
    """Returns how each breaker may begin and go on, over a vocabulary (get_overlapping_token_sequences).

    A token that holds a breaker whole has an empty tail; one whose end is its beginning, the tokens of the
    rest.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    for text in texts:
        breaker = text.encode()[:LONGEST_BREAKER]
        for token, piece in enumerate(pieces):
            tails = found.setdefault(token, []) if breaker[:1] in piece else []
            if breaker in piece:
                tails.append(())
                continue
            for n in range(min(len(breaker) - 1, len(piece)), 0, -1):
                if piece.endswith(breaker[:n]):
                    tail = tuple(tokenize(breaker[n:])[:LONGEST_TAIL])
                    if tail not in tails:
                        tails.append(tail)
    return {token: tails for token, tails in found.items() if tails}


class Repetition:
    """The penalties of DRY for one sampling. tails: see `breakers_of`; n_ctx: what -1 means."""

    def __init__(self, sampling: Sampling, tails: Tails | None = None, n_ctx: int = 2**31 - 1) -> None:
        self._s, self._tails = sampling, tails or {}
        last_n = sampling.dry_penalty_last_n
        self._last_n = n_ctx if last_n < 0 else last_n
        self._heads = np.fromiter(self._tails, np.int64, len(self._tails))
        self._breaking = {token for token, tails in self._tails.items() if () in tails}
        base = sampling.dry_base
        self._steepest = int(MOST_LOG / math.log(base)) if base > 1.000001 else 0

    def penalties(
        self, history: Sequence[int] | NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Returns tokens and what their logits lose. history: prompt and text so far."""
        last = np.asarray(history[-self._last_n :], np.int64)
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
            behind = last.size - 1 - at  # tokens behind it
            fitting = [
                len(tail)
                for tail in self._tails[int(last[at])]
                if len(tail) <= behind and tuple(last[at + 1 : at + 1 + len(tail)].tolist()) == tail
            ]
            if fitting:
                return int(behind - max(fitting))
        return int(last.size)


def _lengths(last: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Returns for every token but the last how long a text ends there that ends the whole as well."""
    lengths = np.zeros(last.size - 1, np.int64)
    alive = np.flatnonzero(last[:-1] == last[-1])
    n = 0
    while alive.size and n < limit:
        n += 1
        lengths[alive] = n
        alive = alive[alive >= n]
        alive = alive[last[alive - n] == last[last.size - 1 - n]]
    return lengths
