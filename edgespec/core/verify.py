"""The acceptance rules: which drafted tokens stay, and what comes after them. The theorem of the project.

Letters as in the papers: p = target, q = draft, k = draft length. Each rule emits tokens whose joint
distribution is exactly the target's, whatever the draft was:

- token verification (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318);
- block verification (Sun et al., ICLR 2025, arXiv 2403.10444): never shorter in expectation;
- coupled (Daliri et al., arXiv 2408.07978): the text depends on seed, prompt and target alone.

`tests/test_verify.py` enumerates all of them; a token that was drawn may never be thrown away after
looking at it, so nothing here or in a drafter does.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import Draft
from edgespec.errors import EdgeSpecError
from edgespec.sampling.distribution import Distribution, Few, PointMass, draw

Target = Callable[[int], Distribution]  # i -> p at draft position i (0..k), history x_1..x_i included


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many drafted tokens stay, and the token after them: recovered, or the bonus when all stay."""

    accepted: int
    token: int


class Rule(Protocol):
    """How tokens are drawn and judged. `position` is a token's index in prompt + output."""

    def draw(self, distribution: Distribution, position: int) -> int:
        """Draws the token at `position`; a drafter that samples must draw with this."""

    def verify(self, draft: Draft, p: Target, position: int) -> Verdict:
        """Judges `draft`, whose first token is at `position`."""


def residual(p: Distribution, q: Distribution, scale: float = 1.0) -> tuple[Distribution, float]:
    """Returns max(0, scale * p - q) as weights of p's tokens, and their sum."""
    if isinstance(p, PointMass):  # whatever weight it has, a draw from it is certain
        return p, max(0.0, scale - q.prob(p.token))
    if isinstance(p, Few):
        left = [max(0.0, scale * w - q.prob(token)) for token, w in zip(p.tokens, p.weights, strict=True)]
        return Few(p.tokens, left), sum(left)
    rest = np.maximum(scale * p.probs - q.on(p.ids), 0.0)
    return Distribution(p.ids, rest), float(rest.sum(dtype=np.float64))


def _draw(p: Distribution, rng: np.random.Generator) -> int:
    """Draws from p; without randomness if it is certain: a generator costs more than a greedy verdict."""
    return p.token if isinstance(p, PointMass) else draw(p, rng.random())


def _draw_rest(p: Distribution, rest: Distribution, mass: float, rng: np.random.Generator) -> int:
    return _draw(rest if mass > 0 else p, rng)  # mass 0: p = q up to rounding


def verify_tokens(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Token verification: each token stays with probability min(1, p/q), up to the first that does not."""
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        p_i = p(i)
        if rng.random() * q.prob(token) >= p_i.prob(token):  # no division; p = 0 never passes
            return Verdict(i, _draw_rest(p_i, *residual(p_i, q), rng))
    return Verdict(len(draft.tokens), _draw(p(len(draft.tokens)), rng))


def verify_block(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Block verification: the longest prefix whose own test passes stays, later failures notwithstanding.

    Algorithm 2 of Sun et al.: P_i = min(1, P_{i-1} p_i/q_i); prefix i passes with
    S_i / (S_i + 1 - P_i), S_i = sum max(0, P_i p_{i+1} - q_{i+1}); the whole block with P_k.
    If there is no p after some guesses, that is raised only if they stay, as without a draft.
    """
    k, carries = len(draft.tokens), [1.0]
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        try:
            p_i = p(i)
        except EdgeSpecError:  # after guesses that may not stay; the draft ends here, whatever comes of them
            k = i
            break
        carry = min(1.0, carries[i] * p_i.prob(token) / q.prob(token))
        if carry == 0.0:  # this prefix and all longer ones fail for certain
            break
        carries.append(carry)
    for best in range(len(carries) - 1, -1, -1):  # the longest prefix that passes: shorter ones do not matter
        if best == k:
            passes = carries[k]
        else:
            rest, mass = residual(p(best), draft.probs[best], carries[best])
            passes = mass / (mass + 1.0 - carries[best]) if mass > 0 else 0.0
        if best == 0 or rng.random() < passes:
            break
    if best == k:
        return Verdict(k, _draw(p(k), rng))
    return Verdict(best, _draw_rest(p(best), rest, mass, rng))


@dataclass(frozen=True, slots=True)
class Independent:
    """Draft and target draw on their own; `judge` is verify_block or verify_tokens."""

    rng: np.random.Generator
    judge: Callable[[Draft, Target, np.random.Generator], Verdict] = verify_block

    def draw(self, distribution: Distribution, position: int) -> int:
        return _draw(distribution, self.rng)

    def verify(self, draft: Draft, p: Target, position: int) -> Verdict:
        return self.judge(draft, p, self.rng)


@dataclass(frozen=True, slots=True)
class Coupled:
    """Draft and target draw with the same noise, a hash of (seed, choice, position, token).

    Both take the argmax of log probability + Gumbel noise, so they mostly agree where their
    distributions do, and the target's choice never depends on the draft.
    """

    seed: int
    choice: int = 0

    def draw(self, distribution: Distribution, position: int) -> int:
        if isinstance(distribution, PointMass):
            return distribution.token
        waits = -np.log(uniforms(self.seed, self.choice, position, distribution.ids))
        with np.errstate(divide="ignore"):  # probability 0 waits for ever
            race = waits / distribution.probs
        return int(distribution.ids[race.argmin()])  # argmin E/p is argmax log p + Gumbel

    def verify(self, draft: Draft, p: Target, position: int) -> Verdict:
        for i, token in enumerate(draft.tokens):
            chosen = self.draw(p(i), position + i)
            if chosen != token:
                return Verdict(i, chosen)
        k = len(draft.tokens)
        return Verdict(k, self.draw(p(k), position + k))


_ODD = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the step of SplitMix64


def uniforms(seed: int, choice: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns one uniform in (0, 1) per token id, a pure function of the four arguments.

    SplitMix64 (Steele et al., OOPSLA 2014), keyed by its own output for the three scalars.
    """
    key = np.zeros(1, np.uint64)
    for value in (seed, choice, position):
        key = _mix(key + np.uint64(value % 2**64))
    mixed = _mix(key + ids.astype(np.uint64))
    return ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * math.ldexp(1.0, -52)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x + np.uint64(1)) * np.uint64(_ODD)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
