"""Several streams at once: each says what it says alone, whoever drafts, comes, goes, or waits beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import pytest
from fakes import Remembering, TableModel, fits, joint, letter, speculate, tokens_of
from numpy.typing import NDArray

from edgespec.costs import CostTable
from edgespec.decode import Limits, Rows, Scorer, Want, generate
from edgespec.drafters import Drafter, Guesser, NoDrafter
from edgespec.drafters.competition import Competition
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.recycling import TokenRecycling
from edgespec.drafters.suffix_lookup import SuffixLookup
from edgespec.engine import MOST_ROWS, Request
from edgespec.errors import PromptTooLongError, QueueFullError, SettingError
from edgespec.events import Emitted, Failed, Happening, ModelName, Round, Started
from edgespec.pace import Costs, Record
from edgespec.sampling import Sampling
from edgespec.scheduler import Engine
from edgespec.stream import Stream
from edgespec.text import TextRelease
from edgespec.verify import Coupled, Independent, Rule

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.0, top_p=1.0, min_p=0.0)
FLAT = {1: 1.0, 8: 1.05, 16: 1.1, 63: 1.5}  # verification costs next to nothing: drafts pay
STEEP = {1: 1.0, 8: 8.0, 63: 63.0}  # no row is free: they never do
DRAFTERS = ("none", "model", "lookup", "recycling", "auto")
N_CTX = 256


class Watched(TableModel):
    """A table that notes for each call whose tokens it evaluated: {sequence: (tokens, rows)}."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.calls: list[dict[int, tuple[int, int]]] = []

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        assert len({want.seq for want in wants}) == len(wants), "a sequence is asked for once in a call"
        self.calls.append({want.seq: (self.missing(want), want.rows) for want in wants})
        return super().score(wants)


@dataclass
class FakePair:
    """Tables where a pair is expected."""

    slots: int = 4
    n_vocab: int = 8
    drafter: str = "auto"
    n_rows: int = MOST_ROWS
    points: Mapping[int, float] = field(default_factory=lambda: FLAT)
    spread: float = 0.5  # how far the draft is off
    order: int | None = 2
    n_ctx: int = N_CTX

    def __post_init__(self) -> None:
        self.target = Watched(self.n_vocab, seed=1, order=self.order)
        self.draft = Watched(self.n_vocab, seed=2, order=self.order, spread=self.spread, near=self.target)
        self.contexts: dict[ModelName, Scorer] = {"target": self.target, "draft": self.draft}
        self.records: dict[int, Record] = {}
        self.recycling = TokenRecycling(self.n_vocab)
        self.samplers: dict[str, Remembering] = {}

    def costs(self) -> Costs:
        return Costs(CostTable(dict(self.points), slope=0.0), CostTable({1: 0.05}, slope=0.0))

    def record(self, streams: int) -> Record:
        return self.records.setdefault(streams, Record())

    def stream(self, prompt: NDArray[np.int32], request: Request) -> Stream:
        text = TextRelease(letter, request.stop)
        loop = generate(
            prompt,
            drafter=self.drafter_for(request),
            sampler=self.sampler(request),
            rule=self.rule(request),
            text=text,
            limits=Limits(request.max_tokens, self.n_ctx),
        )
        return Stream(loop, text, request.max_tokens, request.draft_length, self.record)

    def rule(self, request: Request) -> Rule:
        if request.seed is not None:
            return Coupled(request.seed)
        return Independent(np.random.default_rng(request.rng_seed))

    def sampler(self, request: Request) -> Remembering:
        known = repr(request.sampling)
        return self.samplers.setdefault(known, Remembering(request.sampling, self.n_vocab))

    def drafter_for(self, request: Request) -> Drafter:
        model = DraftModel(self.sampler(request), n_ctx=self.n_ctx, n_vocab=self.n_vocab)
        free: dict[str, list[Guesser]] = {
            "lookup": [SuffixLookup()],
            "recycling": [self.recycling],
            "auto": [SuffixLookup(), self.recycling],
        }
        if self.drafter == "none":
            return NoDrafter()
        return Competition(free.get(self.drafter, []), model if self.drafter in ("model", "auto") else None)

    def alone(self, prompt: NDArray[np.int32], request: Request) -> tuple[int, ...]:
        """Returns the tokens of plain decoding."""
        return tokens_of(
            speculate(
                TableModel(self.n_vocab, seed=1, order=self.order), prompt.tolist(),
                sampler=self.sampler(request), rule=self.rule(request), max_tokens=request.max_tokens,
                n_ctx=self.n_ctx, stop=request.stop,
            )
        )  # fmt: skip


@dataclass
class Told:
    """What was told of each request."""

    started: dict[str, Started] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)
    steps: int = 0

    def take(self, happened: Sequence[Happening]) -> None:
        for one in happened:
            ended = self.failed.keys() | {k for k, rounds in self.rounds.items() if rounds[-1].finish}
            assert one.id not in ended, "nothing is told of a request that has ended"
            if isinstance(one, Started):
                self.started[one.id] = one
            elif isinstance(one, Emitted):
                self.rounds.setdefault(one.id, []).append(one.round)
            else:
                self.failed[one.id] = one

    def tokens(self, id: str) -> tuple[int, ...]:
        return tokens_of(self.rounds[id])

    def finish(self, id: str) -> str | None:
        return self.rounds[id][-1].finish


def run(engine: Engine, told: Told | None = None, each: Callable[[int], None] = lambda step: None) -> Told:
    """Steps until nothing is left to do."""
    told = told or Told()
    while not engine.idle:
        each(told.steps)
        told.take(engine.step())
        told.steps += 1
        assert told.steps < 10_000
    return told


def prompts(n: int, n_vocab: int = 8, longest: int = 30) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, n_vocab, rng.integers(1, longest)).astype(np.int32) for _ in range(n)]


def make(pair: FakePair, *, queue: int = 64, piece: int = 512) -> Engine:
    return Engine(pair, slots=pair.slots, queue=queue, piece=piece)


# ---- the same text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("length", [None, 0, 3, 48])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_text_is_that_of_its_request_alone(
    drafter: str, length: int | None, mode: Literal["greedy", "coupled"]
) -> None:
    pair = FakePair(drafter=drafter)
    engine, rng = make(pair), np.random.default_rng(3)
    asked = {}
    for i, prompt in enumerate(prompts(12)):
        seed = i if mode == "coupled" else None
        sampling = SAMPLED if mode == "coupled" else GREEDY
        asked[str(i)] = prompt, Request(sampling, int(rng.integers(1, 40)), seed=seed, draft_length=length)

    def join(step: int) -> None:
        for id in list(asked)[3 * step : 3 * step + 3]:
            engine.submit(id, *asked[id])

    join(0)
    told = run(engine, each=lambda step: join(step + 1))
    for id, (prompt, request) in asked.items():
        assert told.tokens(id) == pair.alone(prompt, request), id
        assert told.finish(id) == "length"
        assert told.started[id].prompt_tokens == prompt.size
    if drafter != "none" and length not in (0, None):
        assert sum(r.accepted for rounds in told.rounds.values() for r in rounds) > 0
    for call in pair.target.calls:
        together = sum(n for n, _ in call.values())
        assert len(call) == 1 or together <= MOST_ROWS
