"""Requests with `fresh`, one at a time and without a draft, give the same text bit for bit each time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.core.request import Request, Scoring
from edgespec.core.values import Emitted
from edgespec.engine.engine import Engine
from edgespec.engine.measuring import SecondLook
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

LaneAnswer = list[tuple[int, float]]  # token, logprob


def answered(engine: Engine, prompt: NDArray[np.int32], request: Request) -> LaneAnswer:
    engine.submit("r", prompt, request)
    found: LaneAnswer = []
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Emitted):
                found += [(score.chosen.token, score.chosen.logprob) for score in one.round.scores]
    return found


@pytest.mark.parametrize("piece", [32, pytest.param(512, marks=pytest.mark.slow)])
def test_a_text_does_not_depend_on_what_was_asked_before(piece: int, tiny_target: Path) -> None:
    """Up to 6 of 40 texts differed on a warm server, and logprobs of the same token by up to 0.17."""
    rng = np.random.default_rng(1)
    with Pair(tiny_target, None, PairSettings(n_ctx=400, threads=1, slots=1, remember=False)) as pair:
        source = pair.prompt_tokens(Path(np.__file__).read_text())
        engine = Engine(pair, slots=1, chunk=piece, cache_ram=50_000_000)
        wish = Request(
            Sampling(temperature=0.8), 8, seed=3, drafter="none", fresh=True, scoring=Scoring(top=0)
        )
        prompts = [source[:n] for n in (5, 60, 100, 129, 200)]
        first = [answered(engine, prompt, wish) for prompt in prompts]
        for i in rng.integers(len(prompts), size=12).tolist():
            if rng.random() < 0.5:  # somebody who does not care
                answered(engine, source[: rng.integers(4, 350)], replace(wish, fresh=False))
            assert answered(engine, prompts[i], wish) == first[i]


def test_a_text_does_not_depend_on_sizes_that_were_timed_while_idle(tiny_target: Path) -> None:
    """The last token held was evaluated again in a batch of n, within the chunks that a fresh reading may
    reuse: log probabilities were other ones in 4 of 4 such texts."""
    with Pair(tiny_target, None, PairSettings(n_ctx=400, threads=1, slots=1, remember=False)) as pair:
        source = pair.prompt_tokens(Path(np.__file__).read_text())
        engine = Engine(pair, slots=1, chunk=64)
        pair._second_look = SecondLook(pair.target_context, pair.costs(), lambda: 0.0)
        wish = Request(
            Sampling(temperature=0.8), 8, seed=3, drafter="none", fresh=True, scoring=Scoring(top=0)
        )
        for n, chunks in ((200, 2), (240, 3), (300, 1)):
            pair.forget()
            first = answered(engine, source[:n], wish)
            pair.forget()
            answered(engine, source[: 64 * chunks], replace(wish, max_tokens=1))
            before = pair.decodes
            pair.costs().target.weights.clear()  # nothing is known
            assert pair.look_again() and pair.decodes > before
            assert answered(engine, source[:n], wish) == first
