"""A head in the target's file guesses if target and head are on the card, and changes no text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from card.places import LOGITS_DIFFER_AT_MOST
from real.embedded import held_out_prompts

from edgespec.commands.verify.equality import complaint, difference, output
from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

GREEDY = Request(Sampling(temperature=0), 12, draft_length=2, drafter="mtp")


@pytest.mark.parametrize("layers", [-1, 5])
def test_a_head_guesses_on_the_card(layers: int) -> None:
    settings = PairSettings(n_ctx=256, threads=1, remember=False, n_gpu_layers=layers)
    found, accepted = [], 0
    with Pair(Path(tiny.mtp_path()), None, settings) as pair:
        assert pair.head and pair.target.on_gpu
        for prompt in held_out_prompts(2):
            tokens = pair.prompt_tokens(prompt["prompt"], special=True)[:32]
            plain = output(pair, tokens, replace(GREEDY, drafter="none"))
            drafted = output(pair, tokens, GREEDY)
            accepted += drafted.accepted
            found.append(difference(pair.target, pair.target_context.settings, plain, drafted))
    assert complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST) is None
    assert accepted > 0
