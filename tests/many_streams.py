"""Many streams on one box, on a virtual clock: the real loop, engine, drafter and joint pace, without models.

Evaluations take no time, and move a clock by a card's cost curve (`CARDS`). Rows of an evaluation are
not limited, as they are in `edgespec serve`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from streams import LONG, Clock, Fate, Positioned, Timed, Zeros
from streams import Stream as Chances
from streams import stream as chances

from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.pace import FixedLength
from edgespec.core.pace.record import Record
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.text import TextRelease
from edgespec.core.values import Emitted, ModelName
from edgespec.engine.engine import Engine
from edgespec.engine.experience import Experience

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
DRAFT = 0.1  # of a target's token: a step of the draft for one stream
PROMPT = 8


def roofline(one_ms: float, knee: int) -> dict[int, float]:
    """Returns seconds by tokens: reading the weights takes `one_ms`, which `knee` tokens take to compute.

    Smoothed, since neither begins where the other ends.
    """
    return {n: one_ms / 1000 * (1 + (n / knee) ** 3) ** (1 / 3) for n in SIZES}


# Assumptions, not measurements: bytes read over memory bandwidth against 2 operations a weight.
CARDS: Mapping[str, Mapping[int, float]] = {
    "data-centre card": roofline(6.0, 256),  # 8B in 16 bits: 16 GB at 2.7 TB/s, 16 TFLOP a ms
    "desktop card": roofline(6.0, 48),  # 8B in 4 bits: 5 GB at 0.8 TB/s, kernels that compute less well
    "processor": roofline(30.0, 4),  # 0.6B in 16 bits on two cores
}


class Sequences:
    """A context of many sequences: an evaluation of all takes what the table says of their tokens."""

    batches = fills = True
    checkpoints = None

    def __init__(self, clock: Clock, table: CostTable) -> None:
        self.clock, self.table, self.evaluated = clock, table, 0
        self._held: dict[int, Timed] = defaultdict(lambda: Timed(Clock(), lambda n, n_ctx: 0.0, 0.0, 0))

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        return self._held[seq].held()

    def missing(self, want: Want) -> int:
        return self._held[want.seq].missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        n = sum(self.missing(want) + want.filling for want in wants)
        self.evaluated += n
        self.clock.now += self.table.seconds(n)
        return [self._held[want.seq].score([want])[0] for want in wants]

    def clear(self, s: int = 0) -> None:
        self._held.pop(s, None)

    def cut(self, s: int, n: int) -> None:
        self._held[s].tokens = self._held[s].tokens[:n]

    def share(self, source: int, s: int, n: int) -> bool:
        return False

    tried = 0.0

    def keep_cells(self, on: bool) -> None: ...

    def give_back_cells(self) -> bool:
        return False


@dataclass
class Box:
    """A pair on one machine, with as many slots as streams."""

    points: Mapping[int, float]
    accepted: float
    slots: int
    fixed: int | None = None  # guesses at a time; None: what pays
    python_s: float = 0.0  # that a round of a stream takes outside of evaluations
    n_rows: int = SIZES[-1]
    cells: int = 1 << 30
    records: dict[int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self._costs = Costs(
            CostTable(dict(self.points), slope=0.0),
            CostTable({n: DRAFT * seconds for n, seconds in self.points.items()}, slope=0.0),
        )
        self.target, self.draft = (
            Sequences(self.clock, table) for table in (self._costs.target, self._costs.draft)
        )
        self.contexts: dict[ModelName, Sequences] = {"target": self.target, "draft": self.draft}
        self.known = Experience()

    def costs(self) -> Costs:
        return self._costs

    def scales(self, request: Request) -> tuple[float, ...]:
        return ()

    def adapt(self, scales: tuple[float, ...]) -> None: ...

    def stream(self, prompt: NDArray[np.int32], request: Request) -> Stream:
        assert request.seed is not None
        text: Chances = chances(self.accepted, request.seed)
        model = DraftModel(
            Positioned(text), n_ctx=LONG, n_vocab=2, odds=self.known.model, places=self.known.places,
            temperature=self.known.temperature,
        )  # fmt: skip
        release = TextRelease(lambda token: b"a")
        loop = generate(
            prompt, drafter=Competition([], model), sampler=Zeros(), rule=Fate(text), text=release,
            limits=Limits(request.max_tokens, LONG),
        )  # fmt: skip
        record: Callable[[int], Record] = lambda streams: self.records.setdefault(streams, Record())  # noqa: E731
        pace = Controller(record, max_tokens=request.max_tokens)
        return Stream(loop, release, pace if self.fixed is None else FixedLength(self.fixed))


@dataclass(frozen=True)
class Point:
    """So many streams together."""

    streams: int
    tok_per_s: float  # of all
    drafted: float  # guesses for each token that was said
    accepted: float  # share of them


def play(box: Box, n_tokens: int) -> Point:
    """Runs all streams until the first ends, after as many tokens again that the pace could learn from."""
    engine = Engine(box, slots=box.slots, queue=box.slots, clock=box.clock)  # type: ignore[arg-type]
    for i in range(box.slots):
        request = Request(max_tokens=2 * n_tokens, seed=1000 + i)
        engine.submit(str(i), np.zeros(PROMPT, np.int32), request)
    said: dict[str, int] = defaultdict(int)
    began, tokens, drafted, accepted = 0.0, 0, 0, 0
    while True:
        for one in engine.step():
            if not isinstance(one, Emitted):
                continue
            box.clock.now += box.python_s
            said[one.id] += len(one.round.tokens)
            if began:
                tokens += len(one.round.tokens)
                drafted += one.round.drafted
                accepted += one.round.accepted
            if one.round.finish:
                per_s = tokens / (box.clock() - began)
                return Point(box.slots, per_s, drafted / tokens, accepted / drafted if drafted else 0.0)
        if not began and len(said) == box.slots and min(said.values()) >= n_tokens // 2:
            began = box.clock()
