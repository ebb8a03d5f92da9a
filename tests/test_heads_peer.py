"""Heads guess as in llama.cpp's own server: as many guesses, and as many of them accepted.

    EDGESPEC_TEST_PEER=PATH/llama-server python -m pytest tests/test_heads_peer.py -m slow

It reads the same files in a program of its own, so a row or position that we read wrongly would show.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from peer import LlamaServer
from peer_command import PeerSettings
from test_heads import GREEDY, NEVER, Files, assistant, dflash2, dspark, eagle, experts, hybrid, mtp, prompt
from test_heads import two_blocks as two

from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

PEER = os.environ.get("EDGESPEC_TEST_PEER")
TOKENS, TEXTS = 60, 6
CLOSE = 0.15  # of the accepted guesses: a near-tie changes what follows in a text


@pytest.mark.slow
@pytest.mark.skipif(not PEER, reason="EDGESPEC_TEST_PEER names no llama-server")
@pytest.mark.parametrize(
    ("write", "length"),
    [(mtp, 3), (two, 2), (hybrid, 3), (experts, 3), (assistant, 3), (eagle, 3), (dflash2, 7), (dspark, 7)],
)
def test_as_many_guesses_are_accepted_as_by_llama_server(
    tmp_path: Path, write: Callable[[Path], Files], length: int
) -> None:
    target, head = write(tmp_path)
    sampling = Sampling(temperature=0, logit_bias=NEVER)
    drafted, accepted, texts = 0, 0, []
    with Pair(target, head, PairSettings(remember=False)) as pair:
        assert pair.head is not None
        kind = pair.head.variant
        how = replace(GREEDY, max_tokens=TOKENS, drafter="model", draft_length=length)
        for seed in range(TEXTS):
            rounds = list(pair.generate(prompt(seed), how))
            drafted += sum(round_.drafted for round_ in rounds)
            accepted += sum(round_.accepted for round_ in rounds)
            texts.append([token for round_ in rounds for token in round_.tokens])
    settings = PeerSettings(Path(PEER or ""), target, head, head=kind, draft_length=length, n_ctx=512)
    with LlamaServer(settings) as server:
        theirs = [server.complete(prompt(s), sampling=sampling, max_tokens=TOKENS) for s in range(TEXTS)]
    assert sum(list(one.tokens) == text for one, text in zip(theirs, texts, strict=True)) >= TEXTS - 1
    assert drafted == pytest.approx(sum(one.drafted for one in theirs), rel=CLOSE)
    assert accepted == pytest.approx(sum(one.accepted for one in theirs), rel=CLOSE, abs=2)
