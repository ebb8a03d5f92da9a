"""A controller at the beginning of a round, for tests of what it decides in it."""

from __future__ import annotations

import numpy as np

from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.record import Gain, Record
from edgespec.core.values import LONGEST_DRAFT, Ask, Round

TOKENS = np.arange(5, dtype=np.int32)
MEMORY_BOUND = {1: 1.0, 4: 1.2, 8: 1.5, 16: 3.0, 49: 9.0}


def costs_of(points: dict[int, float], step: float, slope: float = 0.0) -> Costs:
    return Costs(CostTable(dict(points), slope=slope), CostTable({1: step}, slope=slope))


def controller_of(costs: Costs, record: Record, max_tokens: int | None = 100, n_ctx: int = 0) -> Controller:
    """Returns the controller of a stream that is alone, at the beginning of a round."""
    controller = Controller(lambda streams: record, max_tokens=max_tokens)
    next_round(controller, costs, n_ctx=n_ctx)
    return controller


def next_round(controller: Controller, costs: Costs, streams: int = 1, n_ctx: int = 0) -> BatchPlan:
    """Begins a round of a stream next to others; returns its plan."""
    batch = BatchPlan(costs, dict.fromkeys(range(streams), 1), LONGEST_DRAFT + streams, n_ctx)
    controller.enter(batch, 0)
    return batch


def proven(gain: float, **fields: float) -> Record:
    """Returns the record of a draft that has shown what it gains."""
    return Record(all=Gain(gain * 1e9, 1e9), model=Gain(gain * 1e9, 1e9), **fields)  # type: ignore[arg-type]


def wanted(reach: tuple[float, ...], n: int = 0, otherwise: tuple[float, ...] = ()) -> Ask:
    """Returns an ask of the draft for the guess behind n others."""
    return Ask("draft", TOKENS, (1,) * n, 1, reach, otherwise=otherwise)


def drawn(reach: float, n: int) -> Ask:
    """Returns the question whether a guess may be drawn behind n others, of what was evaluated."""
    return Ask("draft", TOKENS, (1,) * n, 0, (reach,))


def round_of(tokens: int) -> Round:
    """Returns a round that brought so many tokens, all but the last of them guessed."""
    return Round((1,) * tokens, "", tokens, tokens - 1, ())
