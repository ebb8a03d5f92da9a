"""Logits -> a sparse probability distribution, and drawing from it.

One transform F(logits, history, sampling) serves target and draft alike: p = F(target), q = F(draft).
The order is llama.cpp's (common.h): logit bias, penalties, top-n-sigma, top-k, typical-p, top-p, min-p,
temperature; truncation therefore looks at untempered probabilities. Temperature 0 is a point mass at
the largest logit (the lowest id among equals), which makes greedy decoding a case and not a branch.

Rows are cut to their support before anything is computed in float64: a vocabulary has 150,000 tokens
and a support some dozens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import LogitsError, SettingError

Floats = NDArray[np.floating]
Ids = NDArray[np.int64]

COLDEST = 1e-30  # temperatures below this one are the same in float32: the largest logit alone
WIDE = 4096  # supports past this many tokens keep float32 probabilities
MOST_BIAS = 1e9  # far past any logit, and safe to add to one in float32
NEAR = 9.0  # logits this far below the largest have 1e-4 of its probability: blocks beyond are not opened
MOST_BLOCKS = 200  # where more blocks reach near the top, the whole row is no dearer
BLOCK = 64  # logits in a block, the unit that is opened or passed over by its maximum


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the tokens that may come next; every other token has probability 0.

    ids: (m,) int64, strictly ascending. probs: (m,) float64 (float32 past `WIDE` tokens), positive,
    summing to 1 within rounding.
    """

    ids: Ids
    probs: Floats

    def prob(self, token: int) -> float:
        """Returns the probability of one token."""
        i = int(self.ids.searchsorted(token))
        return float(self.probs[i]) if i < self.ids.size and self.ids[i] == token else 0.0

    def on(self, ids: Ids) -> Floats:
        """Returns the probabilities of the given ids: (len(ids),) float64."""
        at = np.minimum(self.ids.searchsorted(ids), self.ids.size - 1)
        return np.where(self.ids[at] == ids, self.probs[at], 0.0)


def point_mass(token: int) -> Distribution:
    """Returns the distribution that is certain of `token`."""
    return Distribution(np.array([token], np.int64), np.ones(1))


def draw(distribution: Distribution, u: float) -> int:
    """Returns the token at quantile `u` in [0, 1): the inverse of the cumulative distribution."""
    probs, first = distribution.probs, 0
    if probs.size > WIDE:  # narrow down to one block first: no float64 array of the vocabulary
        sums = np.add.reduceat(probs, np.arange(0, probs.size, WIDE), dtype=np.float64).cumsum()
        u *= sums[-1]
        block = min(int(sums.searchsorted(u, side="right")), sums.size - 1)
        u -= sums[block - 1] if block else 0.0
        first = block * WIDE
        probs = probs[first : first + WIDE]
        within = probs.cumsum(dtype=np.float64)
    else:
        within = probs.cumsum(dtype=np.float64)
        u *= within[-1]
    at = int(within.searchsorted(u, side="right"))
    if at == within.size:  # rounding at the very end: the last token that has weight
        at = int(probs.nonzero()[0][-1])
    return int(distribution.ids[first + at])


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, in the names and meanings of llama.cpp. 0 or 1 switches a stage off.

    Raises SettingError for values that make no sense.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0, 100)
        _within("top_k", self.top_k, 0, 2**31 - 1, whole=True)
        _within("top_p", self.top_p, 0, 1)
        _within("min_p", self.min_p, 0, 1)
        _within("typical_p", self.typical_p, 0, 1)
        _within("top_n_sigma", self.top_n_sigma, 0, 1000)
        _within("repeat_penalty", self.repeat_penalty, 0.01, 100)
        _within("frequency_penalty", self.frequency_penalty, -100, 100)
        _within("presence_penalty", self.presence_penalty, -100, 100)
        _within("penalty_last_n", self.penalty_last_n, 0, 2**31 - 1, whole=True)
        for token, bias in self.logit_bias.items():
            _within("a token of logit_bias", token, 0, 2**31 - 1, whole=True)
            if not isinstance(bias, (int, float)) or not (abs(bias) <= MOST_BIAS or bias == -math.inf):
                limits = f"from -{MOST_BIAS:g} to {MOST_BIAS:g}, or -inf"
                raise SettingError(f"logit_bias of token {token} is {bias!r}: it must be {limits}")

    @property
    def penalises(self) -> bool:
        """True where the tokens so far change what comes next."""
        wanted = self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        return wanted and self.penalty_last_n > 0


def _within(name: str, value: float, low: float, high: float, *, whole: bool = False) -> None:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {value!r}: it must be {kind} from {low:g} to {high:g}")


_METADATA = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_last_n": "penalty_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}


def sampling_for(metadata: Mapping[str, str], **wanted: object) -> Sampling:
    """Returns the user's wishes over the GGUF's `general.sampling.*` over the defaults.

    metadata: the GGUF's values as text. wanted: fields of Sampling; None means not said.
    A value in the file that makes no sense is passed over; one from the user raises SettingError.
    """
    kinds = {f.name: type(f.default) for f in fields(Sampling) if isinstance(f.default, (int, float))}
    chosen = Sampling()
    for key, name in _METADATA.items():
        try:
            value: Any = kinds[name](float(metadata[key]))
            chosen = replace(chosen, **{name: value})
        except (KeyError, ValueError, OverflowError, SettingError):
            continue
    said: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    return replace(chosen, **said)


class Sampler:
    """Turns rows of logits into distributions: F of the module docstring. Not for two threads at once."""

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        """n_vocab: how many tokens of a row take part (a row may be padded beyond them)."""
        for token in sampling.logit_bias:
            if token >= n_vocab:
                raise SettingError(f"logit_bias names token {token}: this vocabulary has {n_vocab:,} tokens")
        self.sampling = sampling
        self.n_vocab = n_vocab
        self._scratch = np.empty(n_vocab, np.float32)

    def __call__(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()
    ) -> Distribution:
        """Returns the distribution of the next token.

        row: (>= n_vocab,) float32 logits, left as they are. history: the tokens before it, looked at
        only by the penalties. Raises LogitsError where the row holds no usable number.
        """
        s = self.sampling
        row = row[: self.n_vocab]
        if s.penalises or s.logit_bias:
            row = self._edited(row, history)
        if s.temperature == 0 and s.typical_p >= 1:
            best = int(row.argmax())
            _check(float(row[best]))
            return point_mass(best)
        ids = self._survivors(row)
        logits = row[ids]
        if s.temperature == 0:
            return point_mass(int(ids[logits == logits.max()].min()))
        order = ids.argsort()
        ids, logits = ids[order], logits[order]
        if ids.size <= WIDE:
            logits = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # a far-off logit may reach -inf, whose weight is 0
            weights = np.exp((logits - logits.max()) / max(s.temperature, COLDEST))
        weights /= weights.sum(dtype=np.float64)
        if not weights.all():  # underflow: those tokens can never come
            ids, weights = ids[weights > 0], weights[weights > 0]
        return Distribution(ids, weights)

    def _edited(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Returns a copy with logit bias and penalties applied (llama_sampler_penalties_apply)."""
        s = self.sampling
        row = row.copy()
        for token, bias in s.logit_bias.items():
            row[token] += bias
        if s.logit_bias and row.max() == -np.inf:
            raise SettingError("logit_bias bans every token that could come next: allow at least one")
        if s.penalises and len(history):
            seen, count = np.unique(np.asarray(history[-s.penalty_last_n :], np.int64), return_counts=True)
            seen, count = seen[seen < row.size], count[seen < row.size]
            old = row[seen]
            new = np.where(old <= 0, old * s.repeat_penalty, old / s.repeat_penalty)
            row[seen] = new - count * s.frequency_penalty - s.presence_penalty
        return row

    def _survivors(self, row: NDArray[np.float32]) -> Ids:
        """Returns the ids that all truncations leave, in no particular order.

        Top-k, top-p and min-p each keep a head of the descending order, so their meet is the shortest
        head, and whichever is cheapest to find may be applied first.
        """
        s = self.sampling
        whole_row = not 0 < s.top_k < row.size and s.typical_p >= 1 and s.top_n_sigma <= 0
        if whole_row and s.top_p < 1 and row.size >= WIDE:
            nucleus = _nucleus(row, s.top_p, s.min_p, self._mass)
            if nucleus is not None:
                return nucleus
        top = _check(float(row.max()))
        floor = _sigma_floor(row, top, s.top_n_sigma)
        ids: Ids | None = None
        if 0 < s.top_k < row.size:
            ids = largest(row, s.top_k)
            ids = ids[row[ids] >= floor]
        if s.typical_p < 1:
            ids = _typical(row, np.flatnonzero(row >= floor) if ids is None else ids, s.typical_p)
            top = float(row[ids].max())
        cut = max(floor, top + math.log(s.min_p)) if s.min_p > 0 else floor
        if s.top_p >= 1:
            whole = np.flatnonzero(row >= cut) if ids is None else ids[row[ids] >= cut]
            return whole
        if ids is not None:
            mass = float(np.exp(row[ids] - top).sum(dtype=np.float64))
            return _head(row, ids[row[ids] >= cut], top, mass * s.top_p)
        mass = self._mass(row, top, floor)
        if s.min_p > 0:
            return _head(row, np.flatnonzero(row >= cut), top, mass * s.top_p)
        return _widening_head(row, floor, top, mass * s.top_p)

    def _mass(self, row: NDArray[np.float32], top: float, floor: float = -math.inf) -> float:
        """Returns the sum of exp(logit - top) over all logits from `floor` up."""
        with np.errstate(over="ignore"):
            np.subtract(row, np.float32(top), out=self._scratch)
        if floor > -math.inf:
            self._scratch[row < floor] = -np.inf
        np.exp(self._scratch, out=self._scratch)
        return float(self._scratch.sum())


def _check(top: float) -> float:
    if not math.isfinite(top):
        raise LogitsError(
            f"the model returned {top} for its largest logit, so its weights are damaged or overflow: "
            "download the file again, or try another quantisation"
        )
    return top


def _sigma_floor(row: NDArray[np.float32], top: float, n: float) -> float:
    """Returns the lowest logit that top-n-sigma keeps (-inf where it is off)."""
    if n <= 0:
        return float(np.finfo(np.float32).min)  # -inf means "never": such tokens are no survivors anywhere
    valid = row[row > -np.inf]
    return top - n * float(valid.std(dtype=np.float64))


def _block_maxima(row: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the maximum of each block of BLOCK logits; block j holds ids j, j + n, j + 2n, ... (n blocks).

    Interleaved, because a maximum down the columns of a matrix is several times cheaper than along rows.
    The last row.size % BLOCK logits are in no block.
    """
    n = row.size // BLOCK
    maxima: NDArray[np.float32] = row[: n * BLOCK].reshape(BLOCK, n).max(axis=0)
    return maxima


def _ids_in_blocks(row: NDArray[np.float32], blocks: Ids) -> Ids:
    """Returns the ids in the given blocks and in none, ascending."""
    n = row.size // BLOCK
    ids = (np.arange(BLOCK)[:, None] * n + blocks).ravel()
    return np.concatenate([ids, np.arange(n * BLOCK, row.size)])


def largest(row: NDArray[np.float32], k: int) -> Ids:
    """Returns the ids of the k largest logits in descending order, the lower id first among equals.

    Exact: the k-th largest block maximum bounds the k-th largest logit from below, so only blocks that
    reach it are looked into.
    """
    blocks = row.size // BLOCK
    if k >= blocks:
        ids: Ids = np.arange(row.size)
    else:
        maxima = _block_maxima(row)
        bound = np.partition(maxima, blocks - k)[blocks - k]
        ids = _ids_in_blocks(row, np.flatnonzero(maxima >= bound))
        ids = ids[row[ids] >= bound]
    if 4 * k < ids.size:  # cut the pool before sorting; equals of the last one stay in
        bound = np.partition(row[ids], ids.size - k)[ids.size - k]
        ids = ids[row[ids] >= bound]
    return ids[np.argsort(-row[ids], kind="stable")][:k]


def _nucleus(
    row: NDArray[np.float32],
    top_p: float,
    min_p: float,
    mass_of: Callable[[NDArray[np.float32], float], float],
) -> Ids | None:
    """Returns what top-p and min-p leave; None where that reaches too far down to be found this way.

    Only blocks that reach near the largest logit are looked into. Each other logit is at most its block's
    maximum, which bounds the whole row's mass from above, as the mass that was seen bounds it from below.
    Where both bounds cut at the same place, so does the true mass; else `mass_of` the row is asked for.
    """
    maxima = _block_maxima(row)
    top = _check(float(np.maximum(maxima.max(), row[maxima.size * BLOCK :].max(initial=-np.inf))))
    near = maxima >= top - NEAR
    blocks = np.flatnonzero(near)
    if blocks.size > MOST_BLOCKS:
        return None
    ids = _ids_in_blocks(row, blocks)
    with np.errstate(over="ignore"):  # as in _mass
        logits = row[ids] - np.float32(top)
        rest = maxima[~near] - np.float32(top)
    seen = float(np.exp(logits).sum(dtype=np.float64))
    unseen = BLOCK * float(np.exp(rest).sum(dtype=np.float64))
    cut = max(-NEAR, math.log(min_p) if min_p > 0 else -math.inf)  # all logits from here up are among `ids`
    at_least = logits >= cut
    ids, logits = ids[at_least], logits[at_least]
    order = np.argsort(-logits, kind="stable")
    cumulative = np.exp(logits[order].astype(np.float64)).cumsum()
    first, last = cumulative.searchsorted([top_p * seen, top_p * (seen + unseen)])
    if first != last:
        first = cumulative.searchsorted(top_p * mass_of(row, top))
    if first < ids.size or cut > -NEAR:  # past the end: min-p cuts before top-p
        return ids[order[: first + 1]]
    return None


def _head(row: NDArray[np.float32], ids: Ids, top: float, wanted: float) -> Ids:
    """Returns the shortest head of `ids` in descending order whose mass reaches `wanted`."""
    ids = ids[np.argsort(-row[ids], kind="stable")]
    cumulative = np.exp(row[ids].astype(np.float64) - top).cumsum()
    return ids[: int(cumulative.searchsorted(wanted)) + 1]


def _widening_head(row: NDArray[np.float32], floor: float, top: float, wanted: float) -> Ids:
    """Returns the same as `_head` of the whole row, sorting no more of it than needed."""
    k = 128
    while k < row.size:
        ids = largest(row, k)
        ids = ids[row[ids] >= floor]
        if np.exp(row[ids].astype(np.float64) - top).sum() >= wanted:
            return _head(row, ids, top, wanted)
        k *= 8
    return _head(row, np.flatnonzero(row >= floor), top, wanted)


def _typical(row: NDArray[np.float32], ids: Ids, keep: float) -> Ids:
    """Returns the locally typical ids (Meister et al., 2023, arXiv 2202.00666)."""
    logits = row[ids].astype(np.float64)
    weights = np.exp(logits - logits.max())
    ids, weights = ids[weights > 0], weights[weights > 0]
    probs = weights / weights.sum()
    surprise = -np.log(probs)
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()), kind="stable")
    kept = int(probs[order].cumsum().searchsorted(keep, side="right")) + 1
    return ids[order[:kept]]
