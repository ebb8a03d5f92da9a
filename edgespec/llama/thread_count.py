"""How many threads evaluate: as many as there are cores, and fewer while other programs use some of them.

llama.cpp's threads wait for each other at every operation, so one that shares its core with another program
delays all: beside one busy core of two, four tokens of a 0.6B F16 target take 2.1 times as long on two
threads as on one. So now and then another number is tried for an evaluation, soon if evaluations have
become slower, and rarely if that did not help. That others have gone does not show in the evaluations of
fewer threads: the system is asked, and all cores are tried at once.

Where the system gives two threads one core together, because another program has the other one, each
operation takes as long as one of them may hold the core: a token of the embedded target 1.1 seconds instead
of one millisecond. Nobody waits for a second such evaluation: the next one is done by fewer threads.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import llama_cpp as C

from edgespec.system.cores import threads_are_given, threads_wanted
from edgespec.system.other_programs import BUSY_CORES, Others

FIRST = 16  # evaluations before another number is tried for the first time, and after each change
LAST = 512  # the most between two tries, whose distance doubles after each that did not help
LAST_BELOW = 64  # the same while fewer threads than there are cores evaluate
BETTER = 0.9  # of the usual time: what a try must reach
SURE = 2  # tries in a row that must be better
SLOWER = 1.5  # times the usual time, twice in a row: something has changed
STUCK, STUCK_S = 8.0, 0.05  # times the usual time, and seconds: threads wait for each other's core
DECODING = 63  # tokens; threads divide larger evaluations, prompts, more freely, and wait less for each other
ASKED = 6  # evaluations on fewer threads after which the system is asked whether others are still at work
FADE = 0.7  # weight of the usual time, with each evaluation


def numbers(most: int) -> tuple[int, ...]:
    """Returns the numbers of threads to try: all cores, one or two fewer, and parts of them."""
    return tuple(sorted({most, most - 1, most - 2, (3 * most) // 4, most // 2, 1} - {0, -1}, reverse=True))


class ThreadCount:
    """Chooses the number for each evaluation of one context (`choose`), and learns from it (`note`)."""

    __slots__ = (
        "_asked", "_numbers", "_others", "_pause", "_slow", "_tried", "_trying", "_until", "_usual", "_won",
        "now",
    )  # fmt: skip

    def __init__(self, most: int, others: Callable[[], float] | None = None) -> None:
        """others: returns how many cores other programs kept busy since it was last asked."""
        self.now = most
        self._others = others
        self._asked = 0  # evaluations on fewer threads since the system was asked; -1: others are gone
        self._numbers = numbers(most)
        self._usual: dict[int, float] = {}  # kind of size -> seconds a token, with `now` threads
        self._pause = self._until = FIRST  # evaluations: between two tries, and before the next
        self._trying = 0  # threads; 0: none is tried
        self._tried = 0  # index of the last number tried
        self._won = 0  # tries of it in a row that were better
        self._slow = 0  # evaluations in a row that were slower

    def choose(self, n: int) -> int:
        """Returns how many threads should evaluate n tokens."""
        self._until -= 1
        if self.now < self._numbers[0] and self._others and self._asked >= 0:
            self._look_around()
        if self._until > 0 or _kind(n) not in self._usual:
            return self.now
        if not self._trying:
            self._tried = (self._tried + 1) % len(self._numbers)
            if self._numbers[self._tried] == self.now:
                self._tried = (self._tried + 1) % len(self._numbers)
            self._trying = self._numbers[self._tried]
        return self._trying

    def _look_around(self) -> None:
        """Has all cores tried as soon as others have left them; once, since fewer may still be faster."""
        assert self._others
        self._asked += 1
        if self._asked == 1:
            self._others()  # since now
        elif self._asked > ASKED:
            self._asked = 1
            if self._others() < BUSY_CORES:
                self._asked, self._until, self._trying, self._won = -1, 0, self._numbers[0], 0

    def note(self, n: int, threads: int, seconds: float) -> float:
        """Learns from an evaluation of n tokens with the chosen number.

        Returns the seconds that it took longer than usual because another number was tried.
        """
        kind, each = _kind(n), seconds / n
        usual = self._usual.get(kind)
        stuck = seconds > STUCK_S and each > STUCK * (usual or max(self._usual.values(), default=math.inf))
        if threads != self.now:
            self._judge(kind, each, better=usual is not None and each < BETTER * usual, stuck=stuck)
            return max(0.0, seconds - n * usual) if usual is not None else 0.0
        if stuck and self._others and self.now > 1:
            self._give_way()
            return 0.0
        if usual is None:
            self._usual[kind] = each
        else:
            self._slow = self._slow + 1 if each > SLOWER * usual else 0
            more_are_stuck = self.now < self._numbers[0] and self._pause == LAST
            if self._slow >= SURE and not more_are_stuck:
                self._slow, self._until = 0, min(self._until, self._pause // 16)
            self._usual[kind] = FADE * usual + (1 - FADE) * min(each, SLOWER * usual)  # machines pause
        return 0.0

    def _give_way(self) -> None:
        """Goes on with fewer threads until the system says that others have gone, or a late try is better."""
        self.now = self._numbers[self._numbers.index(self.now) + 1]
        self._usual, self._pause, self._until, self._asked = {}, LAST, LAST, 0
        self._trying, self._won, self._slow = 0, 0, 0

    def _judge(self, kind: int, each: float, *, better: bool, stuck: bool) -> None:
        """Adopts the number that was tried, tries it once more, or drops it."""
        if better:
            self._won += 1
            if self._won < SURE:
                return
            self.now, self._usual, self._pause, self._asked = self._trying, {kind: each}, FIRST, 0
        else:
            last = LAST if self.now == self._numbers[0] else LAST_BELOW
            self._pause = LAST if stuck else min(2 * self._pause, last)
        self._trying, self._won, self._slow, self._until = 0, 0, 0, self._pause


def _kind(n: int) -> int:
    """Returns the kind of an evaluation's size: within one kind, seconds a token are much the same."""
    return n if n <= 16 else 16 + n.bit_length()


class Threads:
    """The threads that a llama_context evaluates with.

    `tried` counts the seconds that evaluations took longer because another number of them was tried.
    """

    own_work: ClassVar[int] = 0  # of ours during evaluations now: it gets cores, up to half of them

    def __init__(self, handle: Any, given: int | None, *, fixed: bool) -> None:
        """given: by the user; then it stays so. fixed: the usual number stays, too."""
        self.tried = 0.0
        self._handle = handle
        self._now = self._most = most = given or threads_wanted()
        self._fewer = False  # than chosen, for `own_work`
        fixed = bool(fixed or given or threads_are_given() or most < 2)
        others = Others(children=False).cores if not fixed else None
        self._counts = None if fixed else (ThreadCount(most, others), ThreadCount(most))

    def choose(self, n: int) -> None:
        """Evaluates the next n tokens on as many threads as seem fastest, or are worth a try."""
        if self._counts:
            chosen = self._counts[n > DECODING].choose(n)
            wanted = min(chosen, max(self._most - self.own_work, self._most - self._most // 2))
            self._fewer = wanted < chosen
            if wanted != self._now:
                C.llama_set_n_threads(self._handle, wanted, wanted)
                self._now = wanted

    def note(self, n: int, seconds: float) -> None:
        """Learns from the evaluation of n tokens that was chosen for."""
        if self._counts and not self._fewer:
            self.tried += self._counts[n > DECODING].note(n, self._now, seconds)
