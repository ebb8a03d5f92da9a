"""Rows of a draft with another vocabulary -> distributions over the target's tokens.

A row stays in the draft's order. What the target lacks is removed from it, so that softmax renormalises over
what both have (token-level intersection, Timor et al. 2025, arXiv 2502.05202); the truncations are made
there, and only the few tokens that they leave get the target's ids. A whole row is put into the
target's order only if that is much shorter, or if a grammar or the user's order of stages needs
all of it.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgespec.sampling.distribution import WIDE, Distribution, Few, Ids, PointMass, all_ids
from edgespec.sampling.masks import History, Masks
from edgespec.sampling.repetition import Repetition
from edgespec.sampling.row_order import RowOrder
from edgespec.sampling.sampler import Sampler
from edgespec.sampling.settings import Sampling

# Of the likeliest token's probability, to the power of the temperature: if nothing is cut off, guesses are
# drawn from what is likelier. Any distribution that guesses are really drawn from is exact.
SLIGHT = 2e-4
MUCH = 2  # times the target's tokens: of so many the draft's rows are shortened first
BLOCK = 512  # tokens of a row that are searched for what the target lacks, or skipped


class SharedTokens:
    """Which place of a draft's row is which token of the target."""

    def __init__(
        self,
        to_draft: NDArray[np.int32],
        to_target: NDArray[np.int32],
        *,
        n_target: int,
        n_draft: int,
        block: int = BLOCK,
    ) -> None:
        """to_draft: (n,) the place for each of the target's tokens, or -1; to_target: the other way.

        n_target, n_draft: how many there are, padding included. block: tokens that are searched, or skipped.
        """
        self.places = _padded(to_draft, n_target, n_draft)  # (n_target,) int32
        self.tokens = _padded(to_target, n_draft, n_target).astype(np.int64)  # (n_draft,)
        self._lacking: list[tuple[int, int, NDArray[np.float32]]] = []
        lacks = self.tokens < 0
        edges = np.arange(0, n_draft, block)
        some = np.concatenate(([False], np.logical_or.reduceat(lacks, edges), [False])).astype(np.int8)
        turns = np.flatnonzero(np.diff(some))  # block numbers, where searching begins and ends in turn
        for first, last in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
            start, end = first * block, min(last * block, n_draft)
            most = np.where(lacks[start:end], np.float32(-np.inf), np.float32(np.inf))
            self._lacking.append((start, end, most))

    def take_out(self, row: NDArray[np.float32]) -> None:
        """Sets what the target lacks to minus infinity, in a row of the draft: (n_draft,) float32."""
        for start, end, most in self._lacking:
            part = row[start:end]
            np.minimum(part, most, out=part)

    @cached_property
    def order(self) -> RowOrder:
        """What puts a row into the target's order."""
        return RowOrder(self.places)


class TranslatedSampler(Sampler):
    """A Sampler that takes the draft's rows and gives the target's tokens. It changes rows."""

    def __init__(
        self,
        shared: SharedTokens,
        sampling: Sampling,
        masks: Masks | None = None,
        repetition: Repetition | None = None,
    ) -> None:
        """sampling: its biases are of the target's tokens. masks, repetition: of the target's text."""
        self._shared = shared
        places = shared.places
        bias = {token: value for token, value in sampling.logit_bias.items() if token < places.size}
        known = {places.item(token): value for token, value in bias.items() if places.item(token) >= 0}
        cut = replace(_slightly_cut(sampling), logit_bias=known)
        super().__init__(cut, shared.tokens.size, None, repetition)
        self.masks, self._given = masks, sampling
        self.looks_back = self.looks_back or masks is not None
        self._by_tokens: Sampler | None = None  # for rows in the target's order
        if masks is not None or self._chained or MUCH * places.size < shared.tokens.size:
            cut = replace(self.sampling, logit_bias=bias)
            self._by_tokens = Sampler(cut, places.size, masks, repetition)
            self._room = shared.order.rows(1)[0]

    def __call__(self, row: NDArray[np.float32], history: History = ()) -> Distribution:
        if self._by_tokens:
            self._shared.order.put(row, self._room)
            return self._by_tokens(self._room, history)
        self._shared.take_out(row)
        if self._edits:
            row = self._edited(row, history)
        return self._translated(self._distribution(row))

    def _translated(self, found: Distribution) -> Distribution:
        """Returns a distribution over places by the target's tokens."""
        tokens = self._shared.tokens
        if isinstance(found, PointMass):
            return PointMass(tokens.item(found.token))
        if isinstance(found, Few):
            pairs = sorted(zip(map(tokens.item, found.tokens), found.weights, strict=True))
            return Few([token for token, _ in pairs], [weight for _, weight in pairs])
        ids = tokens.take(found.ids)
        if ids.size > WIDE:
            probs = np.zeros(self._shared.places.size, found.probs.dtype)
            probs[ids] = found.probs
            return Distribution(all_ids(probs.size), probs)
        order = ids.argsort()
        return Distribution(ids.take(order), found.probs.take(order))

    def place(self, token: int) -> int:
        return self._shared.places.item(token)

    def at(self, sampling: Sampling) -> Sampler:
        """Returns the sampler of another sampling over the same vocabularies, grammar and text."""
        sampling = replace(sampling, logit_bias=self._given.logit_bias)
        return TranslatedSampler(self._shared, sampling, self.masks, self.repetition)

    def _at(self, ids: Ids | None, size: int, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        places = self._shared.places.take(tokens, mode="clip").astype(np.int64)
        known = (places >= 0) & (tokens < self._shared.places.size)
        return places[known], known


def _padded(table: NDArray[np.int32], size: int, below: int) -> NDArray[np.int32]:
    """Returns a table of another size, -1 for what is missing or not below the given number."""
    found = np.full(size, -1, np.int32)
    found[: table.size] = table[:size]
    found[found >= below] = -1
    return found


def _slightly_cut(s: Sampling) -> Sampling:
    """Returns a sampling that leaves out at least what is hardly ever drawn."""
    cut = 0 < s.top_k or s.top_p < 1 or s.typical_p < 1 or s.top_n_sigma > 0 or s.min_p > 0
    if cut or s.temperature == 0 or s.excludes_top or s.dynatemp_range > 0:
        return s
    return replace(s, min_p=SLIGHT ** max(s.temperature, 1.0))
