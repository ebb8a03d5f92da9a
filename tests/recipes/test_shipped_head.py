"""The embedded target with its MTP block: the same target, and guesses that it accepts."""

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="the shipped files are run with llama.cpp")

from edgespec_models import tiny
from edgespec_models.distill.hidden import Hidden
from edgespec_models.distill.native import Native
from recipes.heads import accepted
from recipes.heads.guesser import HeadGuesser
from recipes.prompts import read

ENDS = {0, 2}


@pytest.fixture(scope="module")
def prompts():
    """Two held-out prompts of every kind."""
    kinds: dict[str, list[str]] = {}
    for prompt in read(tiny.held_out_prompts_path()):
        kinds.setdefault(prompt["kind"], []).append(prompt["prompt"])
    return [text for texts in kinds.values() for text in texts[:2]]


def test_it_is_the_target_that_ships_beside_it(prompts):
    """The same weights under another name of architecture: rounding apart, the same logits."""
    with Native(tiny.target_path(), context=512) as alone, Hidden(tiny.mtp_path(), context=512) as with_head:
        for prompt in prompts[::2]:
            ids = alone.tokenise(prompt)
            assert ids == with_head.tokenise(prompt)
            alone.forget()
            with_head.forget()
            ours, theirs = alone.logits(ids), with_head.logits(ids)
            assert np.abs(ours - theirs).max() < 0.5
            assert (ours.argmax(1) == theirs.argmax(1)).mean() > 0.95


def test_text_with_the_head_is_text_without_and_most_guesses_are_taken(prompts):
    with Hidden(tiny.mtp_path(), context=512, mtp=True) as reader:
        head = HeadGuesser(reader, context=512)
        reached = taken = same = 0
        for prompt in prompts:
            ids = reader.tokenise(prompt)
            said, count = accepted.speculate(reader, head, ids, 48, 0.0, 0, ENDS)
            plain = accepted.plain(reader, ids, 48, ENDS)
            same += said[: len(plain)] == plain
            reached += count.reached[0]
            taken += count.accepted[0]
        head.close()
    assert same >= len(prompts) - 1  # batches round otherwise than single tokens: a near-tie may fall
    assert taken / reached > 0.65
