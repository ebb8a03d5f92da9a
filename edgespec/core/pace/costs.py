"""What an evaluation costs: a table of seconds by number of tokens, measured when a model is loaded.

Costs are not monotonic in shape, and differ by machine, number format and backend: on many CPUs four
tokens are cheaper than three. So they are measured (`measure`), missing sizes are interpolated and
marked so, and every later evaluation corrects the table (`CostTable.learn`).
"""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.tuning import TUNING

Hardware = Literal["gpu", "cpu-float", "cpu-quantised"]
# Sizes worth measuring, those first that a draft of middling quality would use.
SIZES = (4, 2, 3, 5, 8, 6, 12, 16, 7, 10, 24, 32, 48)
ODD = 1.15  # factor over a larger evaluation's cost that a smaller one may take: kernels differ, but not more
UNLIKELY = 1.5  # times the cost of smaller evaluations that together hold as many
REPEATS = 3  # of each size, if time allows
# Seconds of n tokens / seconds of one, if nothing was measured. Between the points: straight lines.
# CPU: measured on 2 cores, AVX2 (0.6B F16 and 1.1B Q4_0). GPU: an assumption; large cards are flatter.
PRIORS: dict[Hardware, tuple[tuple[int, float], ...]] = {
    "gpu": ((1, 1.0), (4, 1.05), (8, 1.15), (9, 1.4), (16, 1.5), (48, 2.0)),
    "cpu-float": ((1, 1.0), (4, 1.35), (8, 1.7), (12, 2.3), (48, 8.0)),
    "cpu-quantised": ((1, 1.0), (2, 1.6), (4, 2.1), (8, 3.8), (16, 6.9), (48, 19.0)),
}
SLOPE = 0.03  # of the cost of one token, per token evaluated and 1,000 tokens of context, until it is known
BULK = 256  # evaluations of this many tokens and more (prompts) cost by the token, and share one point
LARGEST = 63  # evaluations between this and BULK teach nothing: there are too few of each
# Factor by which one observation may differ from the expectation: machines pause, and never hurry.
FALL, RISE = 4.0, 1.5
FURTHER = 2  # rows past the length of the last draft that are read ahead
LEVEL_GAIN, POINT_GAIN, SLOPE_GAIN = 0.1, 0.15, 0.02
PLAIN_GAIN = 0.05  # of a step of a light target alone, of which there are many
ONE_GAIN = 0.25  # for a single token, which is seen more rarely, and is the unit of all


@dataclass(slots=True)
class CostTable:
    """Seconds of one evaluation by its number of tokens and the context before them. Learns."""

    points: dict[int, float]  # number of tokens -> seconds without context
    measured: frozenset[int] = frozenset()  # which of them were measured here; the others are assumptions
    slope: float = SLOPE  # see SLOPE
    level: float = 1.0  # how much slower the machine is now than then
    seen: dict[int, int] = field(default_factory=dict)  # size -> observations it has learned from

    def __post_init__(self) -> None:
        """Raises ValueError if a point is no time."""
        if 1 not in self.points or not all(0 < s < math.inf for s in self.points.values()):
            raise ValueError(f"these are no seconds: {self.points}")

    def seconds(self, n: int, n_ctx: int = 0) -> float:
        """Returns the expected seconds of evaluating `n` tokens after `n_ctx` others."""
        return self.level * (self._point(n) + self.slope * self.points[1] * n * n_ctx / 1000)

    def prices(self, up_to: int, n_ctx: int = 0) -> NDArray[np.float64]:
        """Returns the expected seconds of 0 to `up_to` tokens (none: nothing): (up_to + 1,) float64."""
        n = np.arange(up_to + 1, dtype=np.float64)
        sizes = sorted(self.points)
        known = np.interp(n, sizes, [self.points[size] for size in sizes])
        if up_to > sizes[-1]:
            known[sizes[-1] + 1 :] = [self._point(size) for size in range(sizes[-1] + 1, up_to + 1)]
        known += self.slope * self.points[1] / 1000 * n_ctx * n
        known[0] = 0.0
        return known * self.level

    def _point(self, n: int) -> float:
        if n in self.points:
            return self.points[n]
        sizes = sorted(self.points)
        i = bisect.bisect(sizes, n)
        if i == len(sizes):  # past the last: each token costs as in the largest evaluation known
            return self.points[sizes[-1]] * n / sizes[-1]
        low, high = sizes[i - 1], sizes[i]
        share = (n - low) / (high - low)
        return (1 - share) * self.points[low] + share * self.points[high]

    def learn(self, n: int, n_ctx: int, seconds: float) -> None:
        """Learns from one evaluation of `n` tokens after `n_ctx` others.

        The error is divided between level (the machine), point (this size) and slope (the context).
        """
        if seconds <= 0 or LARGEST < n < BULK:
            return
        if n >= BULK:
            n, seconds = BULK, seconds * BULK / n
        point, one = self._point(n), self.points[1]
        expected = self.level * (point + self.slope * one * n * n_ctx / 1000)
        off = math.log(min(max(seconds / expected, 1 / FALL), RISE))
        self.level *= math.exp(LEVEL_GAIN * off)
        seen = self.seen[n] = self.seen.get(n, 0) + 1
        gain = max(ONE_GAIN if n == 1 else POINT_GAIN, 1 / (1 + seen))  # at first a plain average
        self.points[n] = point = point * math.exp(gain * off)
        context = n * n_ctx / 1000 * self.points[1] / point  # its part in the cost, over slope
        self.slope = max(0.0, self.slope + SLOPE_GAIN * off * min(context, 1.0) * max(self.slope, SLOPE / 4))

    def note_plain(self, n_ctx: int, seconds: float) -> None:
        """Counts one token of plain decoding, as quickly as possible: `learn` would show on light targets."""
        one = self.points[1]
        ratio = seconds / (self.level * one * (1 + self.slope * n_ctx / 1000))
        self.points[1] = one * (1 + PLAIN_GAIN * (min(ratio, RISE) - 1))


def assumed(hardware: Hardware, one: float) -> CostTable:
    """Returns a table of assumptions alone. one: seconds of one token."""
    return CostTable({n: ratio * one for n, ratio in PRIORS[hardware]})


def from_measured(hardware: Hardware, found: Mapping[int, float]) -> CostTable:
    """Returns a table of measurements, and of assumptions past the largest measured size."""
    largest = max(found)
    prior = assumed(hardware, 1.0)
    unit = found[largest] / prior.seconds(largest)
    beyond = {n: ratio * unit for n, ratio in PRIORS[hardware] if n > largest}
    return CostTable({**found, **beyond}, frozenset(found))


def disturbed(found: Mapping[int, float]) -> list[int]:
    """Returns the sizes that cost more than a larger one, or than several smaller ones that hold as many.

    No machine is like that by much; a disturbed moment may be.
    """
    return [
        n
        for n in found
        if any(found[n] > ODD * found[m] for m in found if m > n) or found[n] > ODD * in_parts(found, n)
    ]


def in_parts(found: Mapping[int, float], n: int) -> float:
    """Returns the seconds of n tokens in evaluations of a smaller size; n's own if there is none."""
    return min((math.ceil(n / m) * found[m] for m in found if m < n), default=found[n])


def measure(
    evaluate: Callable[[int], None],
    hardware: Hardware,
    *,
    sizes: Sequence[int] = SIZES,
    budget: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Returns number of tokens -> least seconds of some repeats, within about `budget` seconds.

    The least, because disturbances only ever add; of as many repeats for each size. A size that is
    still far more expensive than several smaller evaluations was disturbed each time, and is left out.

    evaluate: evaluates that many tokens and waits for the result. The first call is a warm-up and
    ignored. A light model evaluates one token between two sizes, as in use: llama.cpp rebuilds its graph for
    each change of size, which takes a good part of a millisecond, so that even two tokens may cost more than
    each alone. One token, the unit of all, is always measured, before all others and after them: a
    slow moment may last for seconds.
    """
    evaluate(1)
    found: dict[int, float] = {}
    end = clock() + budget

    def time_one(n: int) -> None:
        expected = found.get(n, from_measured(hardware, found).seconds(n)) if found else 0.0
        if clock() + expected < end or n == 1 and expected < budget / 2:
            started = clock()
            evaluate(n)
            seconds = clock() - started
            if n > 1 and found[1] < TUNING.light_s:  # rounds with a guess come between others: a new graph
                evaluate(1)
                back = clock() - started - seconds
                started = clock()
                evaluate(n)
                seconds = clock() - started + max(0.0, back - found[1])
                evaluate(1)
            found[n] = min(seconds, found.get(n, math.inf))

    for n in (*(1,) * (REPEATS - 1), *sizes, 1):
        time_one(n)
    for _ in range(REPEATS - 1):
        for n in disturbed(found) or sizes:
            time_one(n)
    if found[1] < TUNING.light_s:
        return found
    return {n: seconds for n, seconds in found.items() if seconds <= UNLIKELY * in_parts(found, n)}


@dataclass(frozen=True, slots=True)
class Beside:
    """What drafting beside a verification does."""

    seconds: float  # the additional time
    hidden: float  # of drafting in it
    step: float  # seconds of one evaluation of the draft, half of which are wasted after a miss

    def pays(self, right: float) -> bool:
        """Returns whether it pays if what was read ahead is used with probability `right`."""
        return right * self.hidden > self.seconds + (1 - right) * self.step / 2


def measure_beside(
    verify: Callable[[], object],
    step: Callable[[], object],
    *,
    alone: float,
    one_step: float,
    steps: int,
    repeats: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Beside:
    """Runs a verification while the draft steps in another thread; returns the best result.

    alone, one_step: seconds of each by itself. steps: of the draft, at most. The first run is ignored.
    """
    found: list[tuple[float, int]] = []
    with ThreadPoolExecutor(1, "draft-ahead") as pool:
        for _ in range(repeats + 1):
            stop = Event()
            started = clock()
            stepping = pool.submit(_steps, step, stop, steps)
            try:
                verify()
            finally:
                stop.set()
                done = stepping.result()
            found.append((clock() - started, done))
    seconds, done = min(found[1:], key=lambda run: run[0] - run[1] * one_step)
    return Beside(max(0.0, seconds - alone), done * one_step, one_step)


def _steps(step: Callable[[], object], stop: Event, most: int) -> int:
    """Steps until told to stop; returns how often."""
    n = 0
    while n < most and not (n and stop.is_set()):
        step()
        n += 1
    return n


@dataclass(slots=True)
class Costs:
    """What one token, or several, cost on target and draft, and what drafting beside a verification does."""

    target: CostTable
    draft: CostTable
    beside: Beside | None = None  # None if that was not measured
    rereads: bool = False  # the draft is a head, which reads a round's tokens again in the target's rows
    at_once: bool = False  # one step makes all guesses of a draft
    # For a light target, whose graph is built anew for an evaluation of another size: was the last step plain
    # decoding, and has plain decoding been timed?
    steady: bool = field(default=False, compare=False, repr=False)
    timed: bool = field(default=False, compare=False, repr=False)

    @property
    def light(self) -> bool:
        """True if a token is so cheap that looking for guesses shows."""
        return self.target.level * self.target.points[1] < TUNING.light_s

    @property
    def longest_rest(self) -> int:
        """For how many rounds nobody looks for guesses after none paid; 0 if looking does not show."""
        one = self.target.level * self.target.points[1]
        if one < TUNING.light_s:
            return TUNING.longest_rest
        return int(TUNING.look_s / TUNING.look_share / one) if one < TUNING.felt_s else 0

    def note_plain(self, n_ctx: int, seconds: float) -> None:
        """Counts a step of one stream without looking for guesses."""
        if not self.light:
            self.target.learn(1, n_ctx, seconds)
        elif self.steady:
            self.target.note_plain(n_ctx, seconds)
            self.timed = True
        self.steady = True


def unmeasured() -> Costs:
    """Returns costs for those who weigh none."""
    return Costs(assumed("cpu-float", 1.0), CostTable({1: 0.1}))
