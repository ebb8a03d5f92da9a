"""Logits -> a sparse probability distribution, and drawing from it.

One transform F(logits, history, sampling) serves target and draft alike: p = F(target), q = F(draft).
The order is llama.cpp's (common.h): logit bias, penalties, top-n-sigma, top-k, typical-p, top-p, min-p,
temperature; truncation therefore looks at untempered probabilities. A grammar's mask comes before the
truncations: tokens that it forbids count as if they were not in the vocabulary. Temperature 0 is a point
mass at the largest logit (the lowest id among equals), which makes greedy decoding a case and not a branch.

Candidates come first, and then the stages (`chain`), each once. If only heads of the descending order are
kept, finding the candidates (`truncation`) has made all truncations: a vocabulary has 150,000 tokens, and a
support some dozens.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import GrammarError, LogitsError, SettingError
from edgespec.sampling.chain import COLDEST, Edit, chain, sigma_floor
from edgespec.sampling.distribution import (
    FEW,
    WIDE,
    Distribution,
    Few,
    Floats,
    Ids,
    PointMass,
    all_ids,
    draw,
    point_mass,
)
from edgespec.sampling.masks import Allowed, History, Masks
from edgespec.sampling.repetition import Repetition, last_of_text
from edgespec.sampling.settings import ORDER, Sampling, sampling_for
from edgespec.sampling.truncation import below, binned_head, few, head, head_of, largest

__all__ = ["Distribution", "Sampler", "Sampling", "draw", "point_mass", "sampling_for"]

_Row = TypeVar("_Row", NDArray[np.float32], NDArray[np.float64])
LOWEST = float(np.finfo(np.float32).min)  # minus infinity means "never": such tokens are no candidates
BEHIND_SIGMA, BEHIND_TOP_K = (ORDER[ORDER.index(name) + 1 :] for name in ("top_n_sigma", "top_k"))
SHAPING = ("xtc", "temperature")  # what is left when all truncations are made
# what the quick ways do; where another stage is on, all of them are done one after the other
QUICK = frozenset(
    ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
)


class Sampler:
    """Turns rows of logits into distributions: F of the module docstring. Not thread-safe."""

    def __init__(
        self,
        sampling: Sampling,
        n_vocab: int,
        masks: Masks | None = None,
        repetition: Repetition | None = None,
    ) -> None:
        """n_vocab: how many tokens of a row take part (a row may be padded beyond them).

        masks: of the text's grammar; then every row needs its whole history.
        repetition: DRY's view of the vocabulary; without it there are no breakers.
        """
        for token in sampling.logit_bias:
            if token >= n_vocab:
                raise SettingError(f"logit_bias names token {token}: this vocabulary has {n_vocab:,} tokens")
        usual = sampling.in_usual_order()
        self._chained = usual is None or bool(usual.stages_on() - QUICK)
        self.sampling = sampling = usual or sampling
        self.n_vocab = n_vocab
        self.masks = masks
        self.repetition = repetition or Repetition(sampling)
        self._edits = sampling.penalises or bool(sampling.logit_bias) or sampling.repeats_dry
        shaped = sampling.excludes_top or sampling.dynatemp_range > 0
        self._shaped = shaped  # the survivors are more than tempered
        self._greedy = sampling.temperature == 0 and sampling.typical_p >= 1 and not shaped
        heads = sampling.typical_p >= 1 and sampling.top_n_sigma <= 0  # of the descending order
        self._few = heads and (sampling.min_p > 0 or 0 < sampling.top_k <= FEW)
        self._head = heads and not 0 < sampling.top_k < n_vocab
        self._uncut = self._head and sampling.top_p >= 1 and sampling.min_p <= 0
        self._ids = all_ids(n_vocab) if self._uncut else all_ids(0)
        # True if the tokens so far change what comes next
        self.looks_back = sampling.penalises or sampling.repeats_dry or masks is not None
        self._as_it_is = not (self._chained or self._edits or masks)  # nothing is banned or changed
        self._scratch = np.empty(n_vocab, np.float32)

    def __call__(self, row: NDArray[np.float32], history: History = ()) -> Distribution:
        """Returns the distribution of the next token.

        row: (>= n_vocab,) float32 logits, left unchanged. history: the tokens before it, used
        only by penalties and grammar. Raises LogitsError if the row has no usable number.
        """
        if row.size > self.n_vocab:
            row = row[: self.n_vocab]
        if self._as_it_is:
            return self._distribution(row)
        if self.masks and self.sampling.logit_bias and (end := self.masks.end_after(history)) is not None:
            return PointMass(end)  # the text is complete: that its end is banned no longer matters
        if self._chained:
            return self._in_order(row, history)
        if self._edits:
            row = self._edited(row, history)
        if self.masks is not None and (allowed := self.masks.after(history)) is not None:
            return self._masked(row, allowed)
        return self._distribution(row)

    def place(self, token: int) -> int:
        """Returns the place of a token in the rows."""
        return token

    def at(self, sampling: Sampling) -> Sampler:
        """Returns the sampler of another sampling over the same vocabulary, grammar and text."""
        return Sampler(sampling, self.n_vocab, self.masks, self.repetition)

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
        if isinstance(found, Few):
            return Few([ids.item(token) for token in found.tokens], found.weights)
        return Distribution(ids[found.ids], found.probs)

    def _distribution(self, row: NDArray[np.float32]) -> Distribution:
        """Returns the distribution of a row without banned tokens."""
        s = self.sampling
        if self._greedy:
            best = int(row.argmax())
            if not math.isfinite(row.item(best)):
                raise _unusable(row.item(best))
            return PointMass(best)
        if self._uncut:
            return self._whole(row)
        if self._few and (left := few(row, s.top_k, s.top_p, s.min_p, self._mass)):
            return self._listed(*left)
        if self._head and row.size >= WIDE and (found := head(row, s.top_p, s.min_p, self._mass)):
            return self._weighed(*found)
        top = _check(float(row.max()))
        if self._head:
            kept = self._whole_head(row, top)
            return self._weighed(kept, below(row[kept], top))
        if s.top_n_sigma > 0:
            floor, stages = sigma_floor(row[row >= LOWEST], s.top_n_sigma), BEHIND_SIGMA
            ids: Ids = np.flatnonzero(row >= max(floor, LOWEST))
        elif 0 < s.top_k < row.size:
            ids, stages = np.sort(largest(row, s.top_k)), BEHIND_TOP_K
            ids = ids[row[ids] >= LOWEST]
        else:
            ids, stages = np.flatnonzero(row >= LOWEST), BEHIND_TOP_K
        return chain(ids, row[ids].astype(np.float64), stages, s)

    def _listed(self, tokens: list[int], depths: list[float]) -> Distribution:
        """Returns the distribution over a few ascending ids whose logits are so far below the largest."""
        if len(tokens) == 1:
            return PointMass(tokens[0])
        if self._shaped:
            return chain(np.array(tokens), np.array(depths), SHAPING, self.sampling)
        warmth = max(self.sampling.temperature, COLDEST)
        weights = [math.exp(depth / warmth) for depth in depths]
        if 0.0 in weights:  # underflow: those tokens can never come
            tokens = [token for token, weight in zip(tokens, weights, strict=True) if weight]
            weights = [weight for weight in weights if weight]
        whole = sum(weights)
        return Few(tokens, [weight / whole for weight in weights])

    def _weighed(self, ids: Ids, logits: NDArray[np.float32]) -> Distribution:
        """Returns the distribution over ascending ids whose logits are so far below the largest."""
        if ids.size == 1:
            return PointMass(ids.item(0))
        if self._shaped:
            return chain(ids, logits.astype(np.float64), SHAPING, self.sampling)
        warmth = max(self.sampling.temperature, COLDEST)
        if ids.size <= WIDE:
            weights: Floats = np.exp(logits.astype(np.float64) / warmth)
            gone = np.minimum.reduce(weights) == 0  # underflow: those tokens can never come
        else:
            if warmth != 1:
                with np.errstate(over="ignore"):  # a far-off logit may reach -inf, whose weight is 0
                    logits = logits / np.float32(warmth)
            weights = np.exp(logits)
            gone = 2 * np.count_nonzero(weights) < ids.size  # few may stay: sharing ids saves more
        weights /= np.add.reduce(weights)
        if gone:
            ids, weights = ids[weights > 0], weights[weights > 0]
        return Distribution(ids, weights)

    def _whole(self, row: NDArray[np.float32]) -> Distribution:
        """Returns the distribution of a row of which nothing is cut off."""
        top = _check(row.item(row.argmax()))
        ids = self._ids if row.size == self.n_vocab else np.arange(row.size)
        return self._weighed(ids, below(row, top))

    def _in_order(self, row: NDArray[np.float32], history: History) -> Distribution:
        """Returns the distribution for stages in the user's own order."""
        row = self._biased(row)
        allowed = self.masks.after(history) if self.masks else None
        _check(row.item(row.argmax()))
        ids = np.flatnonzero(row > -np.inf)
        if allowed is not None:
            ids = ids[allowed.flags[ids]]
        if not ids.size:
            raise LogitsError("the grammar allows no token that this model knows")
        edits: dict[str, Edit] = {}
        if self.sampling.penalises:
            edits["penalties"] = lambda ids, logits: self._penalised(ids, logits, history)
        if self.sampling.repeats_dry:
            edits["dry"] = lambda ids, logits: self._less_repetitive(ids, logits, history)
        return chain(ids, row[ids].astype(np.float64), self.sampling.samplers, self.sampling, edits)

    def _edited(self, row: NDArray[np.float32], history: History) -> NDArray[np.float32]:
        """Returns a copy with logit bias and penalties applied."""
        row = self._biased(row)
        if not len(history):
            return row
        if self.sampling.penalises:
            row = self._penalised(None, row, history)
        if self.sampling.repeats_dry:
            row = self._less_repetitive(None, row, history)
        return row

    def _biased(self, row: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns a copy with logit bias applied."""
        row, s = row.copy(), self.sampling
        for token, bias in s.logit_bias.items():
            row[token] += bias
        if s.logit_bias and row.max() == -np.inf:
            raise SettingError("logit_bias bans every token that could come next: allow at least one")
        return row

    def _penalised(self, ids: Ids | None, logits: _Row, history: History) -> _Row:
        """Returns logits after llama_sampler_penalties_apply. ids: their tokens, ascending; None is all."""
        s = self.sampling
        seen, count = np.unique(last_of_text(history, s.penalty_last_n), return_counts=True)
        at, known = self._at(ids, logits.size, seen)
        old, count = logits[at], count[known]
        new = np.where(old <= 0, old * s.repeat_penalty, old / s.repeat_penalty)
        logits[at] = new - count * s.frequency_penalty - s.presence_penalty
        return logits

    def _less_repetitive(self, ids: Ids | None, logits: _Row, history: History) -> _Row:
        """Returns logits after DRY."""
        tokens, less = self.repetition.penalties(history)
        at, known = self._at(ids, logits.size, tokens)
        logits[at] -= less[known].astype(logits.dtype)
        return logits

    def _at(self, ids: Ids | None, size: int, tokens: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Returns the places of tokens among ascending ids (None: among 0..size-1), and which have one."""
        if ids is None:
            known = tokens < size
            return tokens[known], known
        at = np.minimum(ids.searchsorted(tokens), ids.size - 1)
        known = ids[at] == tokens
        return at[known], known

    def _whole_head(self, row: NDArray[np.float32], top: float) -> Ids:
        """Returns what top-p and min-p leave, ascending, from the whole row.

        Both keep a head, so their intersection is the shorter one, and the cheaper to find may come first.
        """
        s = self.sampling
        cut = max(LOWEST, top + math.log(s.min_p)) if s.min_p > 0 else LOWEST
        ids: Ids = np.flatnonzero(row >= cut) if s.min_p > 0 else self._ids
        if s.top_p < 1:
            wanted = self._mass(row, top) * s.top_p
            few = 0 < ids.size <= WIDE
            ids = np.sort(head_of(row, ids, top, wanted) if few else binned_head(row, cut, top, wanted))
        return ids

    def _mass(self, row: NDArray[np.float32], top: float) -> float:
        """Returns the sum of exp(logit - top) over all logits."""
        with np.errstate(over="ignore"):
            scratch = np.subtract(row, np.float32(top), out=self._scratch[: row.size])
        np.exp(scratch, out=scratch)
        return float(np.add.reduce(scratch))


def _check(top: float) -> float:
    if not math.isfinite(top):
        raise _unusable(top)
    return top


def _unusable(top: float) -> LogitsError:
    return LogitsError(
        f"the model returned {top} for its largest logit, so its weights are damaged or overflow: "
        "download the file again, or try another quantisation"
    )
