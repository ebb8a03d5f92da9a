"""Logits -> a sparse probability distribution, and drawing from it.

One transform F(logits, history, sampling) serves target and draft alike: p = F(target), q = F(draft).
The order is llama.cpp's (common.h): logit bias, penalties, top-n-sigma, top-k, typical-p, top-p, min-p,
temperature; truncation therefore looks at untempered probabilities. A grammar's mask comes before the
truncations: what it forbids is as if it were not in the vocabulary. Temperature 0 is a point mass at the
largest logit (the lowest id among equals), which makes greedy decoding a case and not a branch.

Rows are cut to their support before anything is computed in float64: a vocabulary has 150,000 tokens
and a support some dozens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.distribution import WIDE, Distribution, Floats, Ids, PointMass, all_ids, draw, point_mass
from edgespec.errors import GrammarError, LogitsError, SettingError
from edgespec.masks import Allowed, Masks
from edgespec.truncation import below, binned_head, head, head_of, largest, sigma_floor, typical

__all__ = ["Distribution", "Sampler", "Sampling", "draw", "point_mass", "sampling_for"]

COLDEST = 1e-30  # temperatures below this one are the same in float32: the largest logit alone
MOST_BIAS = 1e9  # far past any logit, and safe to add to one in float32


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

    def __init__(self, sampling: Sampling, n_vocab: int, masks: Masks | None = None) -> None:
        """n_vocab: how many tokens of a row take part (a row may be padded beyond them).

        masks: of the grammar that the text is written in; then every row needs its whole history.
        """
        for token in sampling.logit_bias:
            if token >= n_vocab:
                raise SettingError(f"logit_bias names token {token}: this vocabulary has {n_vocab:,} tokens")
        self.sampling = sampling
        self.n_vocab = n_vocab
        self.masks = masks
        self._edits = sampling.penalises or bool(sampling.logit_bias)
        self._greedy = sampling.temperature == 0 and sampling.typical_p >= 1
        heads_only = (
            not 0 < sampling.top_k < n_vocab and sampling.typical_p >= 1 and sampling.top_n_sigma <= 0
        )
        self._uncut = heads_only and sampling.top_p >= 1 and sampling.min_p <= 0
        self._head = heads_only
        self._ids = all_ids(n_vocab) if self._uncut else all_ids(0)
        self._scratch = np.empty(n_vocab, np.float32)

    def __call__(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()
    ) -> Distribution:
        """Returns the distribution of the next token.

        row: (>= n_vocab,) float32 logits, left as they are. history: the tokens before it, looked at
        by penalties and grammar alone. Raises LogitsError where the row holds no usable number.
        """
        if row.size > self.n_vocab:
            row = row[: self.n_vocab]
        if self._edits:
            row = self._edited(row, history)
        if self.masks is not None and (allowed := self.masks.after(history)) is not None:
            return self._masked(row, allowed)
        return self._distribution(row)

    @property
    def looks_back(self) -> bool:
        """True where the tokens so far change what comes next."""
        return self.sampling.penalises or self.masks is not None

    def _masked(self, row: NDArray[np.float32], allowed: Allowed) -> Distribution:
        """Returns the distribution of what is allowed, as if there were no other tokens."""
        if self.sampling.logit_bias and row[allowed.flags[: row.size]].max(initial=-np.inf) == -np.inf:
            raise GrammarError("logit_bias bans every token that the grammar allows here: allow at least one")
        if not allowed.few:
            return self._distribution(np.where(allowed.flags[: row.size], row, np.float32(-np.inf)))
        ids = allowed.ids
        if ids.item(-1) >= row.size:  # a draft may know fewer tokens than the target
            ids = ids[ids < row.size]
        if ids.size < 2:
            if not ids.size:
                raise LogitsError("the grammar allows no token that this model knows")
            return PointMass(ids.item(0))
        found = self._distribution(row[ids])
        if isinstance(found, PointMass):
            return PointMass(ids.item(found.token))
        return Distribution(ids[found.ids], found.probs)

    def _distribution(self, row: NDArray[np.float32]) -> Distribution:
        """Returns the distribution of a row from which nothing is banned any more."""
        s = self.sampling
        if self._greedy:
            best = int(row.argmax())
            _check(row.item(best))
            return PointMass(best)
        if self._uncut:
            return self._whole(row)
        if self._head and row.size >= WIDE:
            found = head(row, s.top_p, s.min_p, self._mass)
            if found:
                return self._weighed(*found)
        ids = self._survivors(row)
        logits = row[ids]
        top = float(logits.max())
        if s.temperature == 0:
            return PointMass(int(ids[logits == top].min()))
        order = ids.argsort()
        return self._weighed(ids[order], below(logits[order], top))

    def _weighed(self, ids: Ids, logits: NDArray[np.float32]) -> Distribution:
        """Returns the distribution over ascending ids whose logits are so far below the largest."""
        if ids.size == 1:
            return PointMass(ids.item(0))
        warmth = max(self.sampling.temperature, COLDEST)
        if ids.size <= WIDE:
            weights: Floats = np.exp(logits.astype(np.float64) / warmth)
        else:
            with np.errstate(over="ignore"):  # a far-off logit may reach -inf, whose weight is 0
                weights = np.exp(logits / np.float32(warmth))
        weights /= np.add.reduce(weights)
        if np.minimum.reduce(weights) == 0:  # underflow: those tokens can never come
            ids, weights = ids[weights > 0], weights[weights > 0]
        return Distribution(ids, weights)

    def _whole(self, row: NDArray[np.float32]) -> Distribution:
        """Returns the distribution of a row of which nothing is cut off."""
        top = _check(row.item(row.argmax()))
        ids = self._ids if row.size == self.n_vocab else np.arange(row.size)
        return self._weighed(ids, below(row, top))

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
        top = _check(float(row.max()))
        floor = sigma_floor(row, top, s.top_n_sigma)
        ids: Ids | None = None
        if 0 < s.top_k < row.size:
            ids = largest(row, s.top_k)
            ids = ids[row[ids] >= floor]
        if s.typical_p < 1:
            ids = typical(row, np.flatnonzero(row >= floor) if ids is None else ids, s.typical_p)
            top = float(row[ids].max())
        cut = max(floor, top + math.log(s.min_p)) if s.min_p > 0 else floor
        if s.top_p >= 1:
            whole = np.flatnonzero(row >= cut) if ids is None else ids[row[ids] >= cut]
            return whole
        if ids is not None:
            mass = float(np.exp(row[ids] - top).sum(dtype=np.float64))
            return head_of(row, ids[row[ids] >= cut], top, mass * s.top_p)
        wanted = self._mass(row, top, floor) * s.top_p
        if s.min_p > 0:
            ids = np.flatnonzero(row >= cut)
            if ids.size <= WIDE:
                return head_of(row, ids, top, wanted)
        return binned_head(row, cut, top, wanted)

    def _mass(self, row: NDArray[np.float32], top: float, floor: float = -math.inf) -> float:
        """Returns the sum of exp(logit - top) over all logits from `floor` up."""
        with np.errstate(over="ignore"):
            scratch = np.subtract(row, np.float32(top), out=self._scratch[: row.size])
        if floor > -math.inf:
            scratch[row < floor] = -np.inf
        np.exp(scratch, out=scratch)
        return float(scratch.sum())


def _check(top: float) -> float:
    if not math.isfinite(top):
        raise LogitsError(
            f"the model returned {top} for its largest logit, so its weights are damaged or overflow: "
            "download the file again, or try another quantisation"
        )
    return top
