"""The embedded target with its MTP block: the same target, and guesses that it accepts."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the shipped files are run with llama.cpp")

from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny
from edgespec_train.hidden import Hidden
from edgespec_train.recipes.prompts import read


@pytest.fixture(scope="module")
def prompts():
    """Two held-out prompts of every kind."""
    kinds: dict[str, list[str]] = {}
    for prompt in read(tiny.held_out_prompts_path()):
        kinds.setdefault(prompt["kind"], []).append(prompt["prompt"])
    return [text for texts in kinds.values() for text in texts[:2]]


def test_it_is_the_target_that_ships_next_to_it(prompts):
    """The same weights under another name of architecture: rounding apart, the same logits."""
    with (
        Hidden(tiny.target_path(), None, context=512) as alone,
        Hidden(tiny.mtp_path(), context=512) as with_head,
    ):
        for prompt in prompts[::2]:
            ids = alone.tokenise(prompt)
            assert ids == with_head.tokenise(prompt)
            alone.forget()
            with_head.forget()
            ours, theirs = alone.logits(ids), with_head.logits(ids)
            assert np.abs(ours - theirs).max() < 0.5
            assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.95


def test_text_with_the_head_is_text_without_and_most_guesses_are_taken(prompts):
    with Pair(tiny.mtp_path(), settings=PairSettings(remember=False, n_ctx=512)) as pair:
        asked = Request(Sampling(temperature=0), max_tokens=48, drafter="mtp", draft_length=1)
        drafted = taken = same = 0
        for prompt in prompts:
            ids = pair.prompt_tokens(prompt)
            rounds = list(pair.generate(ids, asked))
            plain = list(pair.generate(ids, replace(asked, drafter="none")))
            same += [t for r in rounds for t in r.tokens] == [t for r in plain for t in r.tokens]
            drafted += sum(r.drafted for r in rounds)
            taken += sum(r.accepted for r in rounds)
    assert same >= len(prompts) - 1  # batches round otherwise than single tokens: a near-tie may fall
    assert taken / drafted > 0.65
