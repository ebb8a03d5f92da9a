"""A row of one vocabulary in the order of another: what is copied, what is gathered, what stays unknown.

Vocabularies with a common origin keep long runs of tokens in the same order (Llama 3 and Qwen 2 share
one of 71,871), and a copy is ten times as fast as a gather.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LONG = 512  # tokens from which a run is worth its own call

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Copied:
    """Consecutive places in both rows."""

    start: int
    end: int
    source: int  # of the first


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Places that are looked up one by one."""

    start: int
    end: int
    source: NDArray[np.intp]  # (end - start,) 0 for unknown
    most: Row | None  # (end - start,) minus infinity for unknown, infinity elsewhere; None: all known


class RowOrder:
    """Puts rows into another order; what the source lacks is minus infinity."""

    def __init__(self, known: NDArray[np.int32], long: int = LONG) -> None:
        """known: (n,) for each place of a row its place in the source, or -1. long: runs that are copied."""
        self.size = known.size
        self._copied: list[_Copied] = []
        self._gathered: list[_Gathered] = []
        step = np.diff(known) == (known[:-1] >= 0)  # by one where it is known, by none where it is not
        edges = np.concatenate(([0], np.flatnonzero(~step) + 1, [known.size]))
        done = 0
        for at in np.flatnonzero(np.diff(edges) >= long).tolist():
            start, end = int(edges[at]), int(edges[at + 1])
            self._gather(known, done, start)
            if known[start] >= 0:
                self._copied.append(_Copied(start, end, int(known[start])))
            done = end
        self._gather(known, done, known.size)

    def _gather(self, known: NDArray[np.int32], start: int, end: int) -> None:
        part = known[start:end]
        if not (part >= 0).any():
            return
        most = np.where(part < 0, np.float32(-np.inf), np.float32(np.inf))
        whole = bool((part >= 0).all())
        self._gathered.append(
            _Gathered(start, end, np.maximum(part, 0).astype(np.intp), None if whole else most)
        )

    def rows(self, n: int) -> NDArray[np.float32]:
        """Returns room for n rows for `put`: (n, size), minus infinity throughout."""
        return np.full((n, self.size), -np.inf, np.float32)

    def put(self, row: Row, into: Row) -> None:
        """Writes a row of the source into one of `rows`, in the other order."""
        for run in self._copied:
            into[run.start : run.end] = row[run.source : run.source + run.end - run.start]
        for part in self._gathered:
            room = into[part.start : part.end]
            row.take(part.source, None, room, "wrap")  # all are in range, and "wrap" is the fastest check
            if part.most is not None:
                np.minimum(room, part.most, out=room)
