"""Acceptance rules that are wrong in ways seen elsewhere: tests of exactness must notice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgespec.core import verify
from edgespec.core.values import Draft
from edgespec.core.verify import Target, Verdict
from edgespec.engine import stream_maker


def judged_by(patch: pytest.MonkeyPatch, rule: Callable[..., Verdict]) -> None:
    """Has the engine judge the guesses of sampled and greedy texts by this rule."""
    patch.setattr(stream_maker, "verify_block", rule)


def accept_always(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Whatever was guessed stays."""
    at_each = [p(i) for i in range(len(draft.tokens) + 1)]
    return Verdict(len(draft.tokens), verify.draw(at_each[-1], rng.random()))


def without_residual(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Draws what replaces a rejected guess from p itself."""
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        if rng.random() * q.prob(token) >= p(i).prob(token):
            return Verdict(i, verify.draw(p(i), rng.random()))
    return accept_always(draft, p, rng)


def flipped(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Accepts with q/p; the rest is as it should be."""
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        if rng.random() * p(i).prob(token) >= q.prob(token):
            rest, mass = verify.residual(p(i), q)
            return Verdict(i, verify.draw(rest if mass else p(i), rng.random()))
    return accept_always(draft, p, rng)
