"""Runs one file of llama.cpp's own tiny models through the engine, and says in JSON what came of it.

    python tests/architectures.py TARGET.gguf DRAFT.gguf [MACHINE]

In a process of its own: a fault of llama.cpp's would end that of the tests.
"""

from __future__ import annotations

import json
import re
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
from edgespec.errors import ModelUnsupportedError, SettingError
from edgespec.llama import model
from edgespec.memory.answer import Models, answer
from edgespec.memory.question import Question
from edgespec.pairs.check import headers_of
from edgespec.pairs.placement import ALL_LAYERS, Placement, expert_layers
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


def planned_weights(target: Path, settings: PairSettings) -> dict[str, int]:
    """Returns what the oracle says of each device. It is asked here: its child refuses these tokenizers."""
    question = Question(
        str(target), -1, N_CTX, N_CTX, 1, 1, "f16", rpc=settings.rpc, rules=settings.placement.rules
    )  # fmt: skip
    models: Models = {}
    try:
        return {name: parts["weights"] for name, parts in answer(question, models)["devices"].items()}
    finally:
        for loaded, _ in models.values():
            loaded.close()


def placed(target: Path, machine: str) -> dict[str, object]:
    """Returns what is wrong if experts stay here, or other tensors do, and all else is on a machine."""
    model._TOKENISERS[7] = "test"
    layers, wrong, right = expert_layers(headers_of(target)), list[str](), list[list[int]]()

    def said(settings: PairSettings) -> list[list[int]]:
        with Pair(target, None, settings) as pair:
            asked = prompts(pair.target.n_vocab).values()
            return [[t for r in pair.generate(tokens, one) for t in r.tokens] for tokens, one in asked]

    if layers:
        right = said(SETTINGS)
    for where in (Placement(ALL_LAYERS), Placement(layers[:1]), Placement(None, (("attn", "CPU"),))):
        settings = replace(SETTINGS, rpc=(machine,), placement=where)
        try:
            where.check(headers_of(target))
        except SettingError:  # it has no attention
            continue
        if not layers:
            continue
        with model.listening() as log:
            if said(settings) != right:
                wrong.append(f"{where}: another text")
        held = re.findall(r"load_tensors: +RPC\S* model buffer size = +([0-9.]+) MiB", "\n".join(log))
        planned = planned_weights(target, settings).get(machine, 0) / 2**20
        if abs(planned - sum(map(float, held))) > 0.02 * planned + 0.02:
            wrong.append(f"{where}: {planned:.2f} MiB planned, {held} held")
    return {"experts": len(layers), "wrong": wrong}


def main() -> None:
    target, draft = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        found = placed(target, sys.argv[3]) if len(sys.argv) > 3 else examined(target, draft)
    except ModelUnsupportedError as error:
        found = {"refused": str(error), "right": any(what in str(error) for what in WITHOUT_TEXT)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
