"""How fast a pair would run: the bytes that it reads, a bandwidth, the acceptance of guesses -> tok/s.

The arithmetic is the controller's own (`pace`), for guesses that are each accepted with the same probability:
a round of k guesses costs k evaluations of the draft and one of k + 1 tokens of the target, and yields
1 + a + a^2 + ... + a^k tokens. Plain decoding is among the choices, as it is when the pair runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from edgespec.commands.plan.bandwidth import SIZES, seconds_a_byte
from edgespec.core.pace.costs import from_measured
from edgespec.core.pace.row_costs import QUANTISED
from edgespec.core.pace.worth import best_length
from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import PlanError
from edgespec.pairs.placement import MAIN_MEMORY, Placement, place_of
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.allotment import ALL, ModelName
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM
from edgespec_models.gguf.head_check import guessing_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.number_formats import FORMATS, UnknownFormatError
from edgespec_models.gguf.reading import BLOCK, Matrix, matrices_of, matrices_of_head

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
    *,
    fit: Fit | None = None,
    acceptances: Sequence[float] = (0.6, 0.8),
    bandwidth: Bandwidth = seconds_a_byte,
) -> PairPlan:
    """Returns how fast a pair would run. Raises PlanError.

    target, draft: the headers of all parts of each file. fit: where they would lie; None: all of them where
    the settings put layers. acceptances: of one guess, each 0 to 1.
    """
    cards = replace(settings, n_gpu_layers=ALL)
    alone = replace(cards, rpc=(), tensor_split=())  # a draft stays on this machine
    elsewhere = _in_main_memory(fit, "draft" if draft else "target", settings.draft_placement)
    there = _in_main_memory(fit, "target", settings.placement)
    drafting: Seconds | None = None
    bandwidth, head = cache(bandwidth), guessing_head(target, draft)
    try:
        costs = cost(matrices_of(target), there, cards, bandwidth)
        if head:
            found = cost(matrices_of_head(target, draft), elsewhere, alone, bandwidth)
            drafting = {1: found[max((n for n in SIZES if n <= head.block), default=1)]}  # DFlash: a block
        elif draft:
            drafting = cost(matrices_of(draft), elsewhere, alone, bandwidth)
    except UnknownFormatError as error:
        raise PlanError(f"{target[0].name} cannot be planned: {error}") from None
    speeds = tuple(speed(costs, drafting, a, head) for a in acceptances) if drafting else ()
    return PairPlan(costs, drafting, 1 / (costs[1] + ROUND_S), speeds)


def cost(
    matrices: Sequence[Matrix], here: Callable[[str], bool], cards: PairSettings, bandwidth: Bandwidth
) -> Seconds:
    """Returns the seconds of evaluations that read these. Raises PlanError, UnknownFormatError.

    All bytes count as those of the most common format, and that as the one of three with about its size.
    here: whether the tensor of a name lies in main memory, where others are on cards or machines.
    """
    if not matrices:
        raise PlanError("it cannot be planned: it has no layers")
    sizes: dict[int, int] = {}
    for matrix in matrices:
        sizes[matrix.type] = sizes.get(matrix.type, 0) + matrix.size
    usual = FORMATS[max(sizes, key=sizes.__getitem__)]
    main_memory = replace(cards, n_gpu_layers=0, rpc=(), tensor_split=())
    dtype = next(name for name, least in LEAST.items() if usual.size >= least * usual.weights)
    rates = [bandwidth(dtype, main_memory if here(matrix.name) else cards) for matrix in matrices]
    read = list(zip(matrices, rates, strict=True))
    return {n: sum(_read(matrix, n, rate) for matrix, rate in read) for n in SIZES}


def _read(matrix: Matrix, n: int, rate: Seconds) -> float:
    """Returns the seconds of reading a matrix for n tokens: of a mixture, the experts that any needs."""
    share = matrix.used / matrix.experts
    awake = matrix.experts * (1 - (1 - share) ** n) if share < 1 else matrix.experts
    rows = n * matrix.used / awake  # of each
    return matrix.size * awake / matrix.experts * float(np.interp(rows, list(rate), list(rate.values())))


def _in_main_memory(fit: Fit | None, model: ModelName, placement: Placement) -> Callable[[str], bool]:
    """Returns what says of a tensor's name whether it would lie in main memory."""
    need = fit.choice.needs.get(model) if fit else None
    if fit is None or need is None or set(need.devices) <= {RAM}:
        return lambda _: need is not None
    layers = fit.choice.n_gpu_layers if model == "target" else fit.choice.draft_gpu_layers
    first = 0 if layers == ALL else need.n_layers - layers
    if model == "target" and fit.choice.cpu_moe is not None:
        placement = replace(placement, cpu_moe=fit.choice.cpu_moe)

    def here(name: str) -> bool:
        named, block = place_of(name, placement.rules), BLOCK.match(name)
        return (int(block[1]) < first if block else layers == 0) if named is None else named == MAIN_MEMORY

    return here


def speed(target: Seconds, draft: Seconds, acceptance: float, head: Head | None) -> SpeedAtAcceptance:
    """Returns the speed with the best number of guesses."""
    prices = from_measured(QUANTISED, target).prices(max(SIZES)) + ROUND_S
    longest = min(LONGEST_DRAFT, max(SIZES) - 1, head.longest if head and head.longest else LONGEST_DRAFT)
    reach = tuple(acceptance**k for k in range(1, longest + 1))
    at_once = head is not None and head.kind == "dflash"  # all guesses take one evaluation
    gain, length = best_length(reach, prices, *((0.0, -draft[1]) if at_once else (draft[1],)))
    return SpeedAtAcceptance(acceptance, gain / float(prices[1]), length)
