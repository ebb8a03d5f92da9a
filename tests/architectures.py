"""Runs one file of llama.cpp's own tiny models through the engine, and says in JSON what came of it.

    python tests/architectures.py TARGET.gguf DRAFT.gguf

In a process of its own: a fault of llama.cpp's would end that of the tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.engine import pair as module
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import ModelUnsupportedError
from edgespec.llama import model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

N_CTX, TOKENS = 160, 20
SETTINGS = PairSettings(n_ctx=N_CTX, threads=1, remember=False, flash_attention=False, head=False)
GREEDY = Request(Sampling(temperature=0), TOKENS, drafter="none")
SEEDED = Request(Sampling(), TOKENS, seed=7, drafter="none")
Tokens = NDArray[np.int32]
Answers = dict[str, list[int]]
WITHOUT_TEXT = ("diffusion", "encoder", "embedding", "no vocabulary")


def prompts(n_vocab: int) -> dict[str, tuple[Tokens, Request]]:
    """Returns what is asked, by name: beginnings in common, an edit, a text of its own."""
    rng = np.random.default_rng(5)
    first, other, more = (rng.integers(0, n_vocab, n).astype(np.int32) for n in (70, 30, 20))
    return {
        "first": (first, GREEDY),
        "longer": (np.append(first, more), SEEDED),
        "edited": (np.concatenate([first[:45], other[:9], more]), GREEDY),
        "shorter": (first[:66], SEEDED),
        "other": (other, GREEDY),
    }


def together(pair: Pair, asked: Mapping[str, tuple[Tokens, Request]], **how: object) -> tuple[Answers, int]:
    """Returns what an engine says to all of them, one after another and then again at once; and guesses."""
    said: Answers = {}
    drafted = 0
    engine = Engine(pair, slots=pair.slots, cache_ram=2**22)
    for turn in ("alone", "at once"):
        for id, (tokens, request) in asked.items():
            said[f"{id}, {turn}"] = []
            engine.submit(f"{id}, {turn}", tokens, replace(request, **how))  # type: ignore[arg-type]
            while turn == "alone" and not engine.idle:
                drafted += _step(engine, said)
        while not engine.idle:
            drafted += _step(engine, said)
    return said, drafted


def _step(engine: Engine, said: Answers) -> int:
    drafted = 0
    for happened in engine.step():
        if isinstance(happened, Failed):
            raise happened.error
        if isinstance(happened, Emitted):
            said[happened.id] += happened.round.tokens
            drafted += happened.round.drafted
            assert not happened.round.notice, happened.round.notice
    return drafted


def examined(target: Path, draft: Path) -> dict[str, object]:
    """Returns what memory it has, and which answers differ from plain decoding."""
    model._TOKENISERS[7] = "test"  # of the generator of these files
    module.check_pair = lambda *_: None  # type: ignore[assignment] # which have no tokens to compare
    wrong: list[str] = []
    drafted = 0
    with Pair(target, None, SETTINGS) as plain:
        memory = "recurrent or hybrid" if plain.target.has_recurrent_state else "attention"
        memory = f"window of {plain.target.window}" if plain.target.window else memory
        asked = prompts(plain.target.n_vocab)
        right: Answers = {}
        for id, (tokens, request) in asked.items():
            plain.forget()
            right[id] = [token for round_ in plain.generate(tokens, request) for token in round_.tokens]
    for guessing in (draft, target):
        with Pair(target, guessing, replace(SETTINGS, slots=3)) as pair:
            for drafter in ("model", "lookup", "none"):
                if drafter != "model" and guessing == target:
                    continue
                how = {"drafter": drafter, "draft_length": 0 if drafter == "none" else 4}
                said, n = together(pair, asked, **how)
                drafted += n
                who = f"{drafter} ({'itself' if guessing == target else 'foreign'})"
                wrong += [f"{who}: {id}" for id in said if said[id] != right[id.partition(",")[0]]]
    return {"memory": memory, "drafted": drafted, "wrong": wrong}


def main() -> None:
    target, draft = map(Path, sys.argv[1:])
    try:
        found = examined(target, draft)
    except ModelUnsupportedError as error:
        found = {"refused": str(error), "right": any(what in str(error) for what in WITHOUT_TEXT)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
