"""The stages of sampling, each once: llama.cpp's chain of samplers, in any order, over some candidates.

XTC leaves out the likeliest tokens with a probability of its own. Instead of drawing for that, both cases
are weighed: p = (1 - x) * p(all) + x * p(without them), which amounts to drawing. So a distribution
depends on row and history alone, and seeds and speculation are unaffected.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.sampling.distribution import Distribution, Ids, PointMass
from edgespec.sampling.settings import Sampling

Logits = NDArray[np.float64]
Edit = Callable[[Ids, Logits], Logits]
COLDEST = 1e-30  # temperatures below this are the same in float32: the largest logit alone
NO_EDITS: Mapping[str, Edit] = {}


def chain(
    ids: Ids, logits: Logits, stages: Sequence[str], s: Sampling, edits: Mapping[str, Edit] = NO_EDITS
) -> Distribution:
    """Returns the distribution that the stages leave of candidates, in their order.

    ids: ascending. edits: the stages that change logits by earlier tokens: penalties and dry.
    """
    for i, stage in enumerate(stages):
        if stage in edits:
            logits = edits[stage](ids, logits)
        elif stage == "temperature":
            ids, logits = _tempered(ids, logits, s)
        elif stage == "xtc" and s.excludes_top:
            left = _without_top(logits, s.xtc_threshold)
            if left is not None:
                rest = stages[i + 1 :]
                without = chain(ids[left], logits[left], rest, s, edits)
                return _mixed(chain(ids, logits, rest, s, edits), without, s.xtc_probability)
        elif (kept := _kept(logits, stage, s)) is not None:
            ids, logits = ids[kept], logits[kept]
    weights = np.exp(logits - logits.max())
    found = weights > 0
    if np.count_nonzero(found) == 1:
        return PointMass(int(ids[found][0]))
    weights = weights[found]
    return Distribution(ids[found], weights / weights.sum())


def _kept(logits: Logits, stage: str, s: Sampling) -> NDArray[np.intp] | None:
    """Returns which places a truncation leaves, ascending; None for all."""
    if stage == "top_n_sigma" and s.top_n_sigma > 0 and logits.size > 1:
        return np.flatnonzero(logits >= sigma_floor(logits, s.top_n_sigma))
    if stage == "top_k" and 0 < s.top_k < logits.size:
        return np.sort(np.argsort(-logits, kind="stable")[: s.top_k])
    if stage == "typ_p" and s.typical_p < 1:
        return np.sort(_typical(logits, s.typical_p))
    if stage == "top_p" and s.top_p < 1:
        order = np.argsort(-logits, kind="stable")
        cumulative = _softmax(logits)[order].cumsum()
        return np.sort(order[: int(cumulative.searchsorted(s.top_p)) + 1])
    if stage == "min_p" and s.min_p > 0:
        return np.flatnonzero(logits >= logits.max() + math.log(s.min_p))
    return None


def sigma_floor(logits: NDArray[np.floating], n: float) -> float:
    """Returns the lowest logit that top-n-sigma keeps."""
    return float(logits.max()) - n * float(logits.std(dtype=np.float64))


def _typical(logits: Logits, keep: float) -> NDArray[np.intp]:
    """Returns the locally typical places (Meister et al., 2023, arXiv 2202.00666)."""
    probs = _softmax(logits)
    places = np.flatnonzero(probs > 0)
    probs = probs[places]
    surprise = -np.log(probs)
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()), kind="stable")
    return places[order[: int(probs[order].cumsum().searchsorted(keep, side="right")) + 1]]


def _without_top(logits: Logits, threshold: float) -> NDArray[np.bool_] | None:
    """Returns what XTC leaves: of the tokens over the threshold only the least likely. None: all."""
    probs = _softmax(logits)
    over = np.flatnonzero(probs >= threshold)
    if over.size < 2:
        return None
    kept = np.ones(logits.size, bool)
    kept[over] = False
    kept[over[np.argsort(-probs[over], kind="stable")[-1]]] = True
    return kept


def _tempered(ids: Ids, logits: Logits, s: Sampling) -> tuple[Ids, Logits]:
    """Returns the logits over the temperature, which follows the entropy if it is dynamic."""
    warmth = s.temperature
    if s.dynatemp_range > 0:
        if logits.size < 2:
            return ids, logits
        probs = _softmax(logits)
        probs = probs[probs > 0]
        share = float(-(probs * np.log(probs)).sum()) / math.log(logits.size)
        low, high = max(0.0, s.temperature - s.dynatemp_range), s.temperature + s.dynatemp_range
        warmth = low + (high - low) * share**s.dynatemp_exponent
    if warmth <= 0:
        best = int(logits.argmax())
        return ids[best : best + 1], logits[best : best + 1]
    return ids, logits / max(warmth, COLDEST)


def _softmax(logits: Logits) -> Logits:
    weights = np.exp(logits - logits.max())
    found: Logits = weights / weights.sum()
    return found


def _mixed(all_: Distribution, without: Distribution, share: float) -> Distribution:
    """Returns (1 - share) * all_ + share * without."""
    ids = np.union1d(all_.ids, without.ids)
    probs = (1 - share) * all_.on(ids) + share * without.on(ids)
    ids, probs = ids[probs > 0], probs[probs > 0]
    return Distribution(ids, probs / probs.sum()) if ids.size > 1 else PointMass(int(ids[0]))
