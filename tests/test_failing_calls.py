"""Where calls of llama.cpp fail at random, no answer is wrong, and none ends that the target could finish.

`llama_decode` returns an error before or after it really evaluated, saving and restoring of states fail,
cells are scarce, the draft fails more often than the target. Answers are compared with those of plain
decoding, and may differ where two tokens were equally likely but for the noise of arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
import pytest
import test_heads
from test_cache_fuzz import KINDS, NO_END, NOISE, texts

from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.core.verify import Coupled
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context, ContextSettings
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec_models import tiny

N_CTX, CELLS = 320, 480
OF_TARGET, OF_DRAFT = 0.03, 0.1  # of calls
CODES = (1, -1, 2, -3)
SAVING = ("llama_state_seq_get_data_ext", "llama_state_seq_get_data")
RESTORING = ("llama_state_seq_set_data_ext", "llama_state_seq_set_data")
HEADS = {"mtp": test_heads.mtp, "blocks": test_heads.two_blocks, "eagle": test_heads.eagle}


@dataclass
class Faults:
    """What fails, while `on`. target: its context; others are the draft's or head's."""

    rng: np.random.Generator
    target: Any = None
    others: tuple[Any, ...] = ()
    on: bool = False
    injected: int = 0
    of_target: int = 0  # evaluations of the target
    calls: dict[str, Any] = field(default_factory=dict)

    def due(self, handle: Any) -> bool:
        share = OF_TARGET if handle == self.target else OF_DRAFT if handle in self.others else 0.0
        return self.on and self.rng.random() < share

    def decode(self, handle: Any, batch: Any) -> int:
        if not self.due(handle):
            return int(self.calls["llama_decode"](handle, batch))
        self.injected += 1
        self.of_target += handle == self.target
        code = int(self.rng.choice(CODES))
        if code not in (1, -1) and self.rng.random() < 0.5:  # these promise that nothing was changed
            self.calls["llama_decode"](handle, batch)
        return code

    def state(self, name: str) -> Any:
        def failing(handle: Any, *rest: Any) -> int:
            if self.due(handle):
                self.injected += 1
                return 0
            return int(self.calls[name](handle, *rest))

        return failing


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    found = Faults(np.random.default_rng(7))
    for name in ("llama_decode", *SAVING, *RESTORING):
        found.calls[name] = getattr(C, name)
        monkeypatch.setattr(C, name, found.decode if name == "llama_decode" else found.state(name))
    yield found


def asked(seed: int, n: int, reproducible: bool) -> dict[str, tuple[np.ndarray, Request]]:
    """Returns requests by name: greedy and seeded, of all drafters, some reproducible."""
    rng, prompts = np.random.default_rng(seed), texts(np.random.default_rng(seed))
    found = {}
    for i in range(n):
        sampling = Sampling(temperature=float(rng.integers(2)), logit_bias=NO_END)
        drafter, length = [("model", 4), ("auto", 6), ("lookup", 4), ("none", None)][rng.integers(4)]
        fresh = reproducible and bool(rng.integers(2))
        prompt = next(prompts)[: N_CTX // 2]
        found[str(i)] = (
            prompt,
            Request(
                sampling, int(rng.integers(5, 30)), seed=i, drafter=drafter, draft_length=length, fresh=fresh
            ),
        )
    return found


def answers_under_faults(
    target: Path, draft: Path | None, faults: Faults, seed: int, *, n: int, reproducible: bool, looks: bool
) -> tuple[int, int]:
    """Asks at random; returns how many answers were finished, and how many guesses made."""
    requests = asked(seed, n, reproducible)
    how: dict[str, Any] = {"n_ctx": N_CTX, "threads": 1, "remember": False, "flash_attention": False}
    with Pair(target, None, PairSettings(head=False, **how)) as plain:
        wanted = {}
        for id, (prompt, request) in requests.items():
            plain.forget()
            alone = plain.generate(prompt, replace(request, drafter="none", draft_length=None))
            wanted[id] = [token for round_ in alone for token in round_.tokens]
    rng, waiting = np.random.default_rng(seed), list(requests)
    said: dict[str, list[int]] = {id: [] for id in requests}
    ties: set[str] = set()  # answers after one
    finished = drafted = 0
    with Pair(target, draft, PairSettings(slots=4, cache_tokens=CELLS, **how)) as pair:
        pair.costs()
        engine = Engine(pair, slots=4, cache_ram=2_000_000, queue=8)
        faults.target, *others = (context.handle for context in pair.contexts.values())  # type: ignore[union-attr]
        faults.others, faults.on = tuple(others), True
        while waiting or not engine.idle:
            if waiting and rng.random() < 0.3 and len(engine._queue) < 8:
                id = waiting.pop(0)
                engine.submit(id, *requests[id])
            if engine.idle and looks:
                engine.tidy()
                pair.look_again()
            before = faults.of_target
            for one in engine.step():
                if isinstance(one, Failed):
                    assert faults.of_target > before, (
                        f"{one.id} ended without a fault of the target: {one.error}"
                    )
                elif isinstance(one, Emitted):
                    said[one.id] += one.round.tokens
                    finished += one.round.finish is not None
                    drafted += one.round.drafted
                    right = wanted[one.id][: len(said[one.id])]
                    if said[one.id] != right and one.id not in ties:
                        assert is_near_tie(pair, *requests[one.id], said[one.id], right), one.id
                        ties.add(one.id)
        faults.on = False
    assert len(ties) <= n // 50
    return finished, drafted


def is_near_tie(pair: Pair, prompt: np.ndarray, request: Request, said: list[int], right: list[int]) -> bool:
    """Returns whether the noise of arithmetic explains the first token that differs."""
    at = next(i for i, (one, other) in enumerate(zip(said, right, strict=True)) if one != other)
    tokens = np.append(prompt, np.array(right[:at], np.int32))
    settings = ContextSettings(n_ctx=N_CTX, threads=1, flash_attention=False)
    with Context(pair.target, settings) as fresh:
        row = fresh.score([Want(tokens)])[0][0].copy()
    row[said[at]] += NOISE
    assert request.seed is not None
    p = Sampler(request.sampling, pair.target.n_vocab)(row, tokens)
    return Coupled(request.seed, request.choice).draw(p, tokens.size) == said[at]


def test_a_draft_that_fails_while_it_is_timed_costs_no_answer(
    faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the loading of the pair."""
    monkeypatch.setitem(globals(), "OF_DRAFT", 1.0)
    prompt, request = asked(3, 1, False)["0"]
    how: dict[str, Any] = {"n_ctx": N_CTX, "threads": 1, "remember": False}
    request = replace(request, drafter="model", draft_length=4)
    with Pair(tiny.target_path(), tiny.draft_path(), PairSettings(**how)) as pair:
        [_, draft] = (context.handle for context in pair.contexts.values())  # type: ignore[union-attr]
        faults.others, faults.on = (draft,), True
        assert pair.costs().draft.seconds(1) < pair.costs().target.seconds(1) and faults.injected
        rounds = list(pair.generate(prompt, request))
        assert any("goes on without the draft" in round_.notice for round_ in rounds)
        faults.on, faults.others = False, ()
        assert any(round_.drafted for round_ in pair.generate(prompt, request)), "the next one asks it again"


@pytest.mark.parametrize("kind", ["attention", "hybrid"])
def test_no_answer_is_wrong_or_ended_by_the_draft_where_calls_fail(
    kind: str, tmp_path: Path, faults: Faults
) -> None:
    """One failed evaluation of the draft ended all running answers; a failed checkpoint ended a hybrid's."""
    target, draft = (write(tmp_path / f"{name}.gguf") for name, write in zip("td", KINDS[kind], strict=True))
    finished, drafted = answers_under_faults(target, draft, faults, 3, n=14, reproducible=True, looks=True)
    assert finished > 3 and drafted > 30 and faults.injected > 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [*KINDS, *HEADS])
def test_no_answer_is_wrong_or_ended_by_the_draft_where_calls_fail_for_long(
    kind: str, seed: int, tmp_path: Path, faults: Faults
) -> None:
    draft: Path | None
    if kind in HEADS:
        target, draft = HEADS[kind](tmp_path)
    else:
        target, draft = (write(tmp_path / f"{n}.gguf") for n, write in zip("td", KINDS[kind], strict=True))
    reproducible, looks = seed > 0, seed > 1
    finished, _ = answers_under_faults(
        target, draft, faults, seed, n=200, reproducible=reproducible, looks=looks
    )
    assert finished > 40 and faults.injected > 40
