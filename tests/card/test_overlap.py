"""The draft reads ahead on the processor while the target verifies on the card, and no text changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from card.places import LOGITS_DIFFER_AT_MOST, PROCESSOR, Place, apart
from real.embedded import held_out_prompts, pair_files

from edgespec.commands.verify.equality import Output, complaint, difference, output
from edgespec.core.pace.costs import Beside
from edgespec.core.request import Request
from edgespec.engine import measuring
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

ALWAYS = Beside(seconds=0.0, hidden=1.0, step=0.0)
SETTINGS = PairSettings(n_ctx=512, threads=1, remember=False)
GREEDY = Request(Sampling(temperature=0), 16, draft_length=4, drafter="model")
SEEDED = replace(GREEDY, sampling=Sampling(temperature=0.8, top_p=1.0, min_p=0.0), seed=7)


def opened(place: Place) -> Pair:
    return Pair(*pair_files(), replace(SETTINGS, n_gpu_layers=place.target, draft_gpu_layers=place.draft))


@pytest.mark.parametrize("layers", [-1, 4])
def test_what_is_read_beside_the_card_changes_no_text(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and seeded: as without a draft, and as with the same draft that waits for its turn."""
    monkeypatch.setattr(measuring, "BESIDE_BUDGET", 60.0)  # a device in software takes long to verify
    monkeypatch.setattr(measuring, "AGREE", math.inf)  # and unevenly, beside other work
    texts: dict[bool, list[Output]] = {}
    with opened(Place(layers, 0)) as pair:
        assert pair.target.on_gpu and pair.draft and not pair.draft.on_gpu
        costs = pair.costs()
        assert costs.beside and costs.beside.hidden > 0, "two devices were timed side by side"
        prompts = [pair.prompt_tokens(p["prompt"], special=True)[:48] for p in held_out_prompts(2)]
        asked = [(tokens, request) for tokens in prompts for request in (GREEDY, SEEDED)]
        costs.beside = None
        plain = [output(pair, tokens, replace(request, drafter="none")) for tokens, request in asked]
        for ahead in (False, True):
            costs.beside = ALWAYS if ahead else None
            texts[ahead] = [output(pair, tokens, request) for tokens, request in asked]
            assert bool(pair._ahead) is ahead
        assert pair._ahead and pair._ahead.used > 0, "rows were ready when they were asked for"
        settings = pair._target_context.settings
        for drafted in texts.values():
            found = [difference(pair.target, settings, *both) for both in zip(plain, drafted, strict=True)]
            assert complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST) is None
            assert sum(text.accepted for text in drafted) > 0
        with opened(PROCESSOR) as processor:
            there = [output(processor, tokens, replace(request, drafter="none")) for tokens, request in asked]
            compared = zip(there, texts[True], strict=True)
            found = [apart(processor, one, pair, other) for one, other in compared]
            assert complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST) is None
