"""What evaluations of one model, or guesses of one head, cost on this machine, by headers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from edgespec.commands.plan.rates import ByRows, Rates
from edgespec.errors import PlanError
from edgespec.system.other_programs import BUSY_CORES
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.gguf.number_formats import UnknownFormatError
from edgespec_models.gguf.reading import Matrix, Reading, reading_of, reading_of_head

MINOR = 0.02  # share of a model's bytes below which a format is taken for the usual one


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Seconds of evaluating a number of tokens at once, at the beginning of a text."""

    seconds: dict[int, float]
    busy: float = 0.0  # cores that other programs kept busy while the machine was measured

    @property
    def disturbed(self) -> bool:
        """Whether other programs made it look more expensive than it is."""
        return self.busy >= BUSY_CORES


def guessing_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Head | None:
    """Returns the head that guesses in a pair, if one does."""
    if draft:
        head = head_of(draft)
        return head if head and head.alone else None
    own, why_not = own_head(target)
    return None if why_not else own


def model_cost(headers: Sequence[Header], rates: Rates) -> ModelCost:
    """Returns what a model costs. Raises PlanError."""
    with _told(headers[0].name):
        return _cost(reading_of(headers), rates)


def head_cost(
    target: Sequence[Header], draft: Sequence[Header] | None, head: Head, rates: Rates
) -> ModelCost:
    """Returns the seconds of a guess. draft: the head's file; None: it is in the target's. Raises PlanError.

    A DFlash head reads a block at once, any other one token.
    """
    with _told((draft or target)[0].name):
        found = _cost(reading_of_head(target, draft), rates)
    rows = max((n for n in found.seconds if n <= head.block), default=1)
    return ModelCost({1: found.seconds[rows]}, found.busy)


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except UnknownFormatError as error:
        raise PlanError(f"{name} cannot be planned: {error}") from None


def _cost(reading: Reading, rates: Rates) -> ModelCost:
    if not reading.layers or not reading.matrices:
        raise PlanError("it cannot be planned: it has no layers")
    least = MINOR * sum(reading.types.values())
    bytes_ = {
        type_: rates.byte(type_, reading.width) for type_, size in reading.types.items() if size >= least
    }
    usual, layer = bytes_[max(reading.types, key=reading.types.__getitem__)], rates.layer()
    seconds = {}
    for n in sorted(set(layer.seconds).intersection(*(rate.seconds for rate in bytes_.values()))):
        read = sum(_read(matrix, n, bytes_.get(matrix.type, usual).seconds) for matrix in reading.matrices)
        seconds[n] = reading.layers * layer.seconds[n] + read
    return ModelCost(seconds, max(rate.busy for rate in (layer, *bytes_.values())))


def _read(matrix: Matrix, n: int, rate: ByRows) -> float:
    """Returns the seconds of reading a matrix for n tokens: of a mixture, the experts that any needs."""
    share = matrix.used / matrix.experts
    awake = matrix.experts * (1 - (1 - share) ** n) if share < 1 else matrix.experts
    rows = n * matrix.used / awake  # of each
    return matrix.size * awake / matrix.experts * float(np.interp(rows, list(rate), list(rate.values())))
