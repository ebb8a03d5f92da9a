"""Logits that were asked for before, answered from memory."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.llama.heads.guessing import DraftContext

KEPT = 256  # logits kept of a row, its largest: rows of a large vocabulary would fill the memory


class RowMemory:
    """Wraps a context and answers from memory what was asked before: the same tokens in one shape.

    So thousands of samples cost a slow model no more than their different prefixes. What is
    asked the first time is evaluated in the very shape it would have without the memory. Logits
    past the `KEPT` largest come out as -inf, always: for samplers with a top-k below that.
    """

    def __init__(self, context: DraftContext) -> None:
        self._context = context
        self.evaluated = context.evaluated
        self._known: dict[tuple[bytes, tuple[int, ...], int], list[tuple[NDArray[np.intp], Rows]]] = {}

    def missing(self, want: Want) -> int:
        """Returns how many tokens the context itself would evaluate."""
        return self._context.missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Answers like the context; the rows stay valid."""
        return [self._score(want) for want in wants]

    def _score(self, want: Want) -> Rows:
        key = want.tokens.tobytes(), want.tail, want.rows
        if key not in self._known:
            before = want.tokens[: want.tokens.size + len(want.tail) - want.rows]
            held = self._context.held()
            if before.size and not np.array_equal(held[: before.size], before):
                self._context.score([Want(before)])  # what the loop had evaluated by now
            rows = self._context.score([want])[0]
            self.evaluated = self._context.evaluated
            self._known[key] = [(ids := _largest(row), row[ids]) for row in rows]
        rows = np.full((want.rows, self._context.n_vocab), -np.inf, np.float32)
        for row, (ids, logits) in zip(rows, self._known[key], strict=True):
            row[ids] = logits
        return rows


def _largest(row: NDArray[np.float32]) -> NDArray[np.intp]:
    """Returns the ids of the KEPT largest logits, in no order."""
    return np.argpartition(row, -KEPT)[-KEPT:] if row.size > KEPT else np.arange(row.size)
