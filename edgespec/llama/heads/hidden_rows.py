"""Rows of the target's hidden states, kept for a head to read.

A head (MTP, EAGLE-3, DFlash) guesses from them, and its own cache can be made from nothing else. They exist
only right after the evaluation that made them, so they are copied. Of each sequence, those of its last
tokens are kept without a gap; of older ones the last of each whole piece of a prompt, to resume at.
"""

import numpy as np
from numpy.typing import NDArray

BUDGET = 2**26  # bytes of rows kept of one sequence
MOST, LEAST = 2048, 128  # rows kept of one sequence, whatever the budget says
CHUNK = 512  # tokens of a prompt that are evaluated at once

HiddenRow = NDArray[np.float32]  # (width,)


def rows_kept(width: int) -> int:
    """Returns how many rows of so many floats are kept of one sequence."""
    return min(max(BUDGET // (4 * width), LEAST), MOST)


class HiddenRows:
    """The rows of several sequences, by position."""

    def __init__(self, width: int, n_seq: int, kept: int | None = None) -> None:
        """width: floats of one row. kept: rows of one sequence; None: as many as BUDGET holds."""
        self.width = width
        self._kept = kept or rows_kept(width)
        self._last: list[dict[int, HiddenRow]] = [{} for _ in range(n_seq)]  # without a gap
        self._marks: list[dict[int, HiddenRow]] = [{} for _ in range(n_seq)]

    def put(self, seq: int, at: int, rows: NDArray[np.float32]) -> None:
        """Keeps copies of rows (n, width) of the positions from `at`, replacing all from there on."""
        self.cut(seq, at)
        last, copied = self._last[seq], rows.copy()
        if at - 1 not in last:
            last.clear()
        for i in range(len(copied)):
            last[at + i] = copied[i]
        for position in range(at + CHUNK - 1 - at % CHUNK, at + len(copied), CHUNK):
            self._marks[seq][position] = copied[position - at].copy()
        while len(last) > self._kept:
            del last[next(iter(last))]

    def cut(self, seq: int, n: int) -> None:
        """Forgets the rows of all positions from n on."""
        for rows in (self._last[seq], self._marks[seq]):
            while rows and (end := next(reversed(rows))) >= n:
                del rows[end]

    def share(self, source: int, seq: int, n: int) -> None:
        """Gives a sequence the rows of the first n positions of another."""
        self._last[seq], self._marks[seq] = dict(self._last[source]), dict(self._marks[source])
        self.cut(seq, n)

    def row(self, seq: int, position: int) -> HiddenRow | None:
        """Returns one row; None if it is not kept."""
        found = self._last[seq].get(position)
        return self._marks[seq].get(position) if found is None else found

    def reaches(self, seq: int, first: int, end: int) -> bool:
        """Returns whether all rows from position `first` up to `end` are kept."""
        rest = first + 1 == end or self.begin(seq, end) <= first + 1
        return end <= first or (rest and self.row(seq, first) is not None)

    def begin(self, seq: int, end: int) -> int:
        """Returns the first position from which on all rows up to `end` are kept; `end` if there is none."""
        last = self._last[seq]
        return next(iter(last)) if end - 1 in last else end

    def between(self, seq: int, first: int, end: int) -> NDArray[np.float32]:
        """Returns the rows of positions first to end - 1, which must be kept: (end - first, width)."""
        found = np.empty((end - first, self.width), np.float32)
        for i in range(end - first):
            row = self.row(seq, first + i)
            assert row is not None
            found[i] = row
        return found
