"""Runs one file of llama.cpp's own tiny models through the engine, and says in JSON what came of it.

    python tests/architectures.py TARGET.gguf DRAFT.gguf [MACHINE [MACHINE]]

In a process of its own: a fault of llama.cpp's would end that of the tests.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.engine import pair as module
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.errors import ModelUnsupportedError, SettingError
from edgespec.llama import log as llama_log
from edgespec.llama import model
from edgespec.llama.memory_child import Models, answer
from edgespec.llama.memory_question import Question
from edgespec.memory.at_load import _asks
from edgespec.memory.oracle import MemoryOracle
from edgespec.pairs.check import headers_of
from edgespec.pairs.placement import ALL_LAYERS, Placement, expert_layers
from edgespec.pairs.settings import KvType, PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models.fit.need import RAM, Need, Parts
from edgespec_models.gguf.heads import head_of

N_CTX, TOKENS = 160, 20
SETTINGS = PairSettings(n_ctx=N_CTX, threads=1, remember=False, flash_attention=False, head=False)
GREEDY = Request(Sampling(temperature=0), TOKENS, drafter="none")
SEEDED = Request(Sampling(), TOKENS, seed=7, drafter="none")
Tokens = NDArray[np.int32]
Answers = dict[str, list[int]]
HELD = re.compile(  # elsewhere: what is allocated as it is said, and what evaluations took at the end
    r"(?:RPC\d\S* (?:model|KV|RS) buffer size = |~llama_context: +RPC\d\S* compute buffer size is )"
    r" *([0-9.]+) MiB"
)
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


def planned(target: Path, draft: Path | None, settings: PairSettings) -> float:
    """Returns the MiB that the target would take elsewhere: a child refuses these files' tokenizers."""
    models: Models = {}

    class Here(MemoryOracle):
        def need(self, question: Question) -> Need:
            reply = answer(question, models)
            return Need({name: Parts(**parts) for name, parts in reply["devices"].items()}, reply["n_layers"])

    files = {"target": target, "draft": draft}
    ask = _asks(Here(), {name: headers_of(path) for name, path in files.items() if path}, files, settings)
    try:
        need = ask("target", n_gpu_layers=settings.n_gpu_layers, n_ctx=N_CTX, kv_type=None, cpu_moe=None)
    finally:
        for loaded, _ in models.values():
            loaded.close()
    return (need.total - need.on(RAM)) / 2**20


def combinations(layers: tuple[int, ...], machines: tuple[str, ...], small: KvType) -> Iterator[PairSettings]:
    """Yields placements; with two machines, each with slots, smaller caches, and one machine or both."""
    for where in (Placement(ALL_LAYERS), Placement(layers[:1]), Placement(None, (("attn", "CPU"),))):
        if len(machines) == 1:
            yield replace(SETTINGS, rpc=machines, placement=where)
            continue
        kv_types: tuple[KvType, ...] = ("f16", small)
        for slots, kv_type, rpc in product((1, 3), kv_types, (machines[:1], machines)):
            flash = False if kv_type == "f16" else None  # llama.cpp asks for it
            found = replace(SETTINGS, rpc=rpc, placement=where, slots=slots)
            yield replace(found, kv_type=kv_type, flash_attention=flash)


def placed(target: Path, draft: Path | None, machines: tuple[str, ...]) -> dict[str, object]:
    """Returns what is wrong if experts stay here, or other tensors do, and all else is on machines.

    draft: guesses, with two machines; the target itself: its own head does.
    """
    model._TOKENISERS[7] = "test"
    module.check_pair = lambda *_: None  # type: ignore[assignment]
    layers, wrong, n = expert_layers(headers_of(target)), list[str](), 0
    right: dict[PairSettings, Answers] = {}
    beside = None if draft == target else draft
    headed = draft is not None and head_of(headers_of(draft)) is not None

    def said(settings: PairSettings) -> Answers:
        with Pair(target, beside, settings) as pair:
            how = (
                {"drafter": pair.head.kind.rstrip("3") if pair.head else "model", "draft_length": 3}
                if draft
                else {}
            )
            return together(pair, prompts(pair.target.n_vocab), **how)[0]

    width = headers_of(target)[0].of_architecture("attention.key_length") or 32
    for settings in combinations(layers, machines, "q8_0" if width % 32 == 0 else "bf16"):
        settings = replace(settings, head=draft is not None)
        try:
            settings.placement.check(headers_of(target))
        except SettingError:  # it has no attention
            continue
        here = replace(settings, rpc=(), placement=Placement())
        if here not in right:
            right[here] = said(here)
        n += 1
        name = (
            f"{settings.placement}, {settings.slots} slots, {settings.kv_type}, {len(settings.rpc)} machines"
        )
        with llama_log.listening() as log:
            if said(settings) != right[here]:
                wrong.append(f"{name}: another text")
        held, wanted = sum(map(float, HELD.findall("\n".join(log)))), planned(target, beside, settings)
        # MiB of compute buffers: heads have their own, and with attention here and caches elsewhere
        # llama.cpp plans others than it allocates
        slack = 1.5 if settings.placement.overrides else 0.5 if headed else 0.12
        if abs(wanted - held) > 0.02 * wanted + slack:
            wrong.append(f"{name}: {wanted:.2f} MiB planned, {held:.2f} held")
    return {"experts": len(layers), "combinations": n, "wrong": wrong}


def main() -> None:
    target, draft, machines = Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:])
    try:
        found = (
            placed(target, draft if len(machines) > 1 else None, machines)
            if machines
            else examined(target, draft)
        )
    except ModelUnsupportedError as error:
        found = {"refused": str(error), "right": any(what in str(error) for what in WITHOUT_TEXT)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
