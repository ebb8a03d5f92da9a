"""Drafting while the target verifies: the draft continues as if all its guesses were right.

Only evaluation runs ahead, not guessing. While the target judges x_1..x_k, the draft reads, in its own
thread, the likeliest token after them, the likeliest after that, and so on, and keeps the logits. If the
loop then asks for exactly these, they are ready; otherwise they are discarded. So guesses are drawn from
the same logits as without it, and neither loop nor drafters nor rules know about it.
(The idea: PEARL, Liu et al., ICLR 2025, arXiv 2408.11850; Mirror-SD, arXiv 2510.13161.)

It pays if the draft has hardware of its own, or cores that the target leaves idle. So it is measured when
a pair is loaded (`costs.measure_beside`), and used only while the time it hides, given how often it was
right, exceeds its cost.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Scorer, Want
from edgespec.core.pace.costs import FURTHER, Beside
from edgespec.errors import EdgeSpecError

FADE = 0.95  # weight of earlier rounds' hits, with each new round
PRIOR = 4.0  # rounds that the initial estimate is worth
BONUS_RIGHT = 0.7  # initial estimate: how often the likeliest token is right after right guesses


class _Share:
    """How often something was so, recently."""

    def __init__(self, first: float) -> None:
        self._so, self._seen = PRIOR * first, PRIOR

    def note(self, so: bool) -> None:
        self._so, self._seen = FADE * self._so + so, FADE * self._seen + 1

    @property
    def value(self) -> float:
        return self._so / self._seen


class ParallelDraft:
    """The draft of one pair, reading ahead; `draft` and `target` replace the two contexts.

    Between calls of `target.score` no thread runs, so the contexts can be used as usual.
    Close it before them.
    """

    def __init__(self, target: Scorer, draft: Scorer, beside: Beside, *, n_ctx: int, n_vocab: int) -> None:
        """n_ctx: tokens the draft holds. n_vocab: ids that target and draft share."""
        self.beside = beside
        self.draft, self.target = _Draft(self, draft), _Target(self, target)
        self.used = 0  # rows that were ready when asked for
        self._reads, self._n_ctx, self._n_vocab = draft, n_ctx, n_vocab
        self._pool = ThreadPoolExecutor(1, "draft-ahead")  # one thread: it keeps its OpenMP team
        self._accepted, self._right = _Share(0.6), _Share(BONUS_RIGHT)
        self._path: NDArray[np.int32] = np.empty(0, np.int32)  # what was read, in the draft's window
        self._rows: list[Rows] = []  # row i follows the path without its last len(rows) - 1 - i tokens
        self._seq = 0
        self._predicted: tuple[NDArray[np.int32], int | None] | None = None  # if all are accepted

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown()

    @property
    def expected(self) -> float:
        """Returns the probability that what is read ahead will be used."""
        return self._accepted.value * self._right.value

    def row(self, want: Want) -> Rows | None:
        """Returns the row that answers `want`: (1, n_vocab) float32, or None where it was not foreseen."""
        n = want.tokens.size + len(want.tail)
        i = n - (self._path.size - len(self._rows) + 1)
        if want.rows != 1 or want.seq != self._seq or not 0 <= i < len(self._rows):
            return None
        path, settled = self._path, want.tokens.size
        same = np.array_equal(path[:settled], want.tokens) and tuple(path[settled:n]) == want.tail
        return self._rows[i] if same else None

    def beside_target(self, want: Want, last: Want | None, verify: Callable[[], list[Rows]]) -> list[Rows]:
        """Verifies, and reads ahead meanwhile if that should pay. last: the draft's last ask."""
        self._check_prediction(want)
        self._rows = []
        path = _path(want, last)
        if path is None:
            self._predicted = None
            return verify()
        self._predicted = np.append(want.tokens, np.array(want.tail, np.int32)), None
        if not self.beside.pays(self.expected) or path.size >= self._n_ctx:
            return verify()
        self._path, self._seq = path, want.seq
        stop = Event()
        reading = self._pool.submit(self._read, stop, len(want.tail) + FURTHER)
        try:
            return verify()
        finally:
            stop.set()
            reading.result()
            if self._path.size > path.size:
                self._predicted = self._predicted[0], int(self._path[path.size])

    def _read(self, stop: Event, most: int) -> None:
        """Reads the likeliest tokens one by one, in the thread, until told to stop."""
        try:
            while len(self._rows) < most and not (self._rows and stop.is_set()):
                if self._rows:
                    best = int(self._rows[-1][0, : self._n_vocab].argmax())
                    if self._path.size >= self._n_ctx:
                        return
                    self._path = np.append(self._path, np.int32(best))
                self._rows.append(self._reads.score([Want(self._path, (), 1, self._seq)])[0].copy())
        except (EdgeSpecError, MemoryError):  # the next ask meets it, where it can be reported
            self._rows = []

    def _check_prediction(self, want: Want) -> None:
        """Checks whether the last guess ahead was right."""
        if self._predicted is None:
            return
        tokens, bonus = self._predicted
        n = tokens.size
        accepted = want.tokens.size > n and np.array_equal(want.tokens[:n], tokens)
        self._accepted.note(accepted)
        if accepted and bonus is not None:
            self._right.note(bool(want.tokens[n] == bonus))


def _path(want: Want, last: Want | None) -> NDArray[np.int32] | None:
    """Returns what the draft holds if all of `want` is right, in its window; None if it guessed nothing."""
    if last is None or not want.tail or last.seq != want.seq or last.tail != want.tail[: len(last.tail)]:
        return None
    window = want.tokens[want.tokens.size - last.tokens.size :]
    if last.tokens.size > want.tokens.size or not np.array_equal(window, last.tokens):
        return None
    return np.append(window, np.array(want.tail, np.int32))


class _Draft:
    """The draft's context, with what was read ahead."""

    def __init__(self, ahead: ParallelDraft, context: Scorer) -> None:
        self._ahead, self._context = ahead, context
        self.last: Want | None = None

    @property
    def evaluated(self) -> int:
        return self._context.evaluated

    def missing(self, want: Want) -> int:
        return 0 if self._ahead.row(want) is not None else self._context.missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        self.last = wants[0] if len(wants) == 1 else None
        row = self._ahead.row(self.last) if self.last else None
        if row is not None:
            self._ahead.used += 1
            return [row]
        return self._context.score(wants)


class _Target:
    """The target's context, beside which the draft reads ahead."""

    def __init__(self, ahead: ParallelDraft, context: Scorer) -> None:
        self._ahead, self._context = ahead, context

    @property
    def evaluated(self) -> int:
        return self._context.evaluated

    def missing(self, want: Want) -> int:
        return self._context.missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        if len(wants) > 1:
            return self._context.score(wants)
        return self._ahead.beside_target(wants[0], self._ahead.draft.last, lambda: self._context.score(wants))
