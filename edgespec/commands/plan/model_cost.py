"""What evaluations of one model, or guesses of one head, cost on this machine, by headers alone."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgespec.commands.plan.rates import ByRows, Rate, Rates
from edgespec.errors import PlanError
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.gguf.number_formats import UnknownFormatError
from edgespec_models.gguf.reading import BLOCK, Matrix, Reading, reading_of, reading_of_head

MINOR = 0.02  # share of a model's bytes below which a format is taken for the usual one


@dataclass(frozen=True, slots=True)
class Places:
    """What it costs to read a model where its tensors lie."""

    rates: Rates
    main_memory: Rates | None = None  # where some lie there, and the others on cards or other machines
    here: Callable[[str], bool] = lambda _: False  # whether the tensor of a name lies there


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Seconds of evaluating a number of tokens at once, at the beginning of a text."""

    seconds: dict[int, float]
    busy: float = 0.0  # cores that other programs kept busy while the machine was measured


def guessing_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Head | None:
    """Returns the head that guesses in a pair, if one does."""
    if draft:
        head = head_of(draft)
        return head if head and head.alone else None
    own, why_not = own_head(target)
    return None if why_not else own


def model_cost(headers: Sequence[Header], places: Places) -> ModelCost:
    """Returns what a model costs. Raises PlanError."""
    with _told(headers[0].name):
        return _cost(reading_of(headers), places)


def head_cost(
    target: Sequence[Header], draft: Sequence[Header] | None, head: Head, places: Places
) -> ModelCost:
    """Returns the seconds of a guess. draft: the head's file; None: it is in the target's. Raises PlanError.

    A DFlash head reads a block at once, any other one token.
    """
    with _told((draft or target)[0].name):
        found = _cost(reading_of_head(target, draft), places)
    rows = max((n for n in found.seconds if n <= head.block), default=1)
    return ModelCost({1: found.seconds[rows]}, found.busy)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except UnknownFormatError as error:
        raise PlanError(f"{name} cannot be planned: {error}") from None


def _cost(reading: Reading, places: Places) -> ModelCost:
    if not reading.layers or not reading.matrices:
        raise PlanError("it cannot be planned: it has no layers")
    usual = max(reading.types, key=reading.types.__getitem__)
    least = MINOR * sum(reading.types.values())
    here, split = _layers_here(reading, places)
    costs = [(reading.layers - here, places.rates.layer())]  # how many times each
    if places.main_memory:
        costs += [(here, places.main_memory.layer()), (split, places.rates.crossing())]
    read: list[tuple[Matrix, Rate]] = []
    for matrix in reading.matrices:
        rates = places.main_memory if places.main_memory and places.here(matrix.name) else places.rates
        type_ = matrix.type if reading.types[matrix.type] >= least else usual
        read.append((matrix, rates.byte(type_, reading.width, mixed=matrix.experts > 1)))
    known = [rate for _, rate in (*costs, *read)]
    return ModelCost(
        {
            n: sum(times * rate.seconds[n] for times, rate in costs)
            + sum(_read(matrix, n, rate.seconds) for matrix, rate in read)
            for n in sorted(set.intersection(*(set(rate.seconds) for rate in known)))
        },
        max(rate.busy for rate in known),
    )


def _layers_here(reading: Reading, places: Places) -> tuple[float, float]:
    """Returns how many layers lie in main memory, counted by matrices, and how many are split."""
    layers: dict[str, list[bool]] = {}
    for matrix in reading.matrices:
        if block := BLOCK.match(matrix.name):
            layers.setdefault(block[1], []).append(places.here(matrix.name))
    return sum(sum(of) / len(of) for of in layers.values()), sum(any(of) > all(of) for of in layers.values())


def _read(matrix: Matrix, n: int, rate: ByRows) -> float:
    """Returns the seconds of reading a matrix for n tokens: of a mixture, the experts that any needs."""
    share = matrix.used / matrix.experts
    awake = matrix.experts * (1 - (1 - share) ** n) if share < 1 else matrix.experts
    rows = n * matrix.used / awake  # of each
    return matrix.size * awake / matrix.experts * float(np.interp(rows, list(rate), list(rate.values())))
