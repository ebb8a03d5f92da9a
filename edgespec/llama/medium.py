"""A picture, or a piece of one or of a sound, as a model reads it: rows in place of embedded tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.media import is_cell, runs
from edgespec.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Medium:
    """What is evaluated as a unit. Its positions have one number, or four with M-RoPE."""

    cells: NDArray[np.int32]  # (n,) what stands for it in a list of tokens
    rows: NDArray[np.float32]  # (n, width)
    places: NDArray[np.int32]  # (numbers of a position, n) if it begins at position 0
    moves: NDArray[np.int32]  # the same, 1 where a number grows with the position at which it begins
    causal: bool  # False: each cell sees all of them, so they are evaluated at once
    numbered: bool = False  # the last number of a position that does not grow says which picture it is

    def positions(self, first: int, before: int) -> NDArray[np.int32]:
        """Returns its positions where it begins at `first`, behind so many other media."""
        found = self.places + first * self.moves
        if self.numbered:
            found[-1] += before * (1 - self.moves[-1])
        return found

    @property
    def n_bytes(self) -> int:
        return int(self.rows.nbytes + self.cells.nbytes + self.places.nbytes + self.moves.nbytes)


def medium_at(known: Mapping[int, Medium], tokens: NDArray[np.int32]) -> Medium:
    """Returns the medium that these cells stand for. Raises EngineError if it is not known any more."""
    found = known.get(tokens.item(0))
    if found is None or not np.array_equal(found.cells, tokens):
        raise EngineError("a picture or sound of this conversation is no longer there: send it again")
    return found


def check_known(known: Mapping[int, Medium], tokens: NDArray[np.int32]) -> int | None:
    """Returns a negative number that stands for nothing; raises what `medium_at` does."""
    for first, end in runs(tokens):
        if tokens.item(first) < 0:
            if not is_cell(tokens.item(first)):
                return tokens.item(first)
            medium_at(known, tokens[first:end])
    return None
