"""How fast a pair would run: the bytes that it reads, a bandwidth, the acceptance of guesses -> tok/s.

The arithmetic is the controller's own (`pace`), for guesses that are each accepted with the same probability.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from edgespec.commands.plan.bandwidth import SIZES, seconds_a_byte
from edgespec.core.pace.costs import from_measured
from edgespec.core.pace.row_costs import QUANTISED
from edgespec.core.pace.worth import best_length
from edgespec.errors import PlanError
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.allotment import ALL
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM, Need, Parts
from edgespec_models.gguf.head_check import guessing_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.number_formats import FORMATS, UnknownFormatError
from edgespec_models.gguf.reading import Matrix, matrices_of, matrices_of_head

ROUND_S = 0.0003  # of Python and numpy in a round, as measured (docs/performance.md)
LEAST = {"F16": 1.5, "Q8_0": 0.75, "Q4_0": 0.0}  # bytes of a weight in formats that count as these
Seconds = Mapping[int, float]  # by rows evaluated at once
Bandwidth = Callable[[str, PairSettings], Seconds]  # of a kind of number format: seconds a byte


@dataclass(frozen=True, slots=True)
class SpeedAtAcceptance:
    """The speed at one acceptance. draft_length: 0 is plain decoding."""

    acceptance: float
    tok_per_s: float
    draft_length: int


@dataclass(frozen=True, slots=True)
class PairPlan:
    """How fast a pair would run here, at the beginning of a text. draft: seconds of a guess."""

    target: Seconds
    draft: Seconds | None
    plain_tok_per_s: float  # the target alone
    speeds: tuple[SpeedAtAcceptance, ...] = ()  # with speculation, by acceptance


def plan_pair(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings,
    fit: Fit | None = None,
    *,
    acceptances: Sequence[float] = (0.6, 0.8),
    bandwidth: Bandwidth = seconds_a_byte,
) -> PairPlan:
    """Returns how fast a pair would run. Raises PlanError.

    target, draft: the headers of all parts. fit: where they would lie; None: on cards. acceptances: 0 to 1.
    """
    cards = replace(settings, n_gpu_layers=ALL)
    alone = replace(cards, rpc=(), tensor_split=())  # a draft stays on this machine
    head, guess, needs = guessing_head(target, draft), None, fit.choice.needs if fit else {}
    try:
        costs = cost(matrices_of(target), needs.get("target"), cards, bandwidth)
        if head or draft:
            read = matrices_of_head(target, draft) if head else matrices_of(draft or ())
            found = cost(read, needs.get("draft" if draft else "target"), alone, bandwidth)
            guess = {1: found[max((n for n in SIZES if head and n <= head.block), default=1)]}  # a block
    except UnknownFormatError as error:
        raise PlanError(f"{target[0].name} cannot be planned: {error}") from None
    speeds = tuple(speed(costs, guess, a, head) for a in acceptances) if guess else ()
    return PairPlan(costs, guess, 1 / (costs[1] + ROUND_S), speeds)


def cost(matrices: Sequence[Matrix], need: Need | None, cards: PairSettings, bandwidth: Bandwidth) -> Seconds:
    """Returns the seconds of evaluations that read these. Raises PlanError, UnknownFormatError.

    All bytes count as those of the most common format, and that as the one of three with about its size.
    need: of the whole model; None: all of it is on cards or machines. Experts go to main memory first; what
    is never read lies there, too.
    """
    if not matrices:
        raise PlanError("it cannot be planned: it has no layers")
    by_type = {kind: sum(one.size for one in matrices if one.type == kind) for kind in FORMATS}
    usual, bandwidth = FORMATS[max(by_type, key=by_type.__getitem__)], cache(bandwidth)
    dtype = next(name for name, least in LEAST.items() if usual.size >= least * usual.weights)
    main_memory = replace(cards, n_gpu_layers=0, rpc=(), tensor_split=())
    unread = max(0, need.parts.weights - sum(by_type.values())) if need else 0
    left = need.devices.get(RAM, Parts()).weights - unread if need else 0
    read: list[tuple[Matrix, Seconds]] = []
    for matrix in sorted(matrices, key=lambda one: one.used == one.experts):
        read.append((matrix, bandwidth(dtype, main_memory if left > matrix.size / 2 else cards)))
        left -= matrix.size
    return {n: sum(_read(matrix, n, rate) for matrix, rate in read) for n in SIZES}


def _read(matrix: Matrix, n: int, rate: Seconds) -> float:
    """Returns the seconds of reading a matrix for n tokens: of a mixture, the experts that any needs."""
    share = matrix.used / matrix.experts
    awake = 1 - (1 - share) ** n
    return matrix.size * awake * float(np.interp(n * share / awake, list(rate), list(rate.values())))


def speed(target: Seconds, draft: Seconds, acceptance: float, head: Head | None) -> SpeedAtAcceptance:
    """Returns the speed with the best number of guesses."""
    prices = from_measured(QUANTISED, target).prices(max(SIZES)) + ROUND_S
    longest = min(max(SIZES) - 1, (head.longest if head else 0) or max(SIZES))
    reach = tuple(acceptance**k for k in range(1, longest + 1))
    at_once = head is not None and head.kind == "dflash"  # all guesses take one evaluation
    gain, length = best_length(reach, prices, *((0.0, -draft[1]) if at_once else (draft[1],)))
    return SpeedAtAcceptance(acceptance, gain / float(prices[1]), length)
