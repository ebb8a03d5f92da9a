"""What an evaluation costs: a curve of seconds by number of tokens, which learns from evaluations in use.

Lengths of drafts are decided by ratios: what n tokens cost, in single tokens of the same moment. So a ratio
is learned only from evaluations between two plain steps that agree with each other (`Slowness`), and
how slow the machine is (`level`) only from plain steps: no disturbance moves one by the other. While other
programs keep the machine busy, single tokens take two to three times as long, and ratios scatter
by a factor of three around what they are in quiet. Then next to nothing is learned.

What is not known is assumed, and what was found in a noisier moment than the present one is forgotten, so
that it is tried again: a size wrongly thought cheap is found out by using it, one wrongly thought dear never.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SLOPE = 0.03  # of the cost of one token, per row and 1,000 tokens of context, until it is known
BULK = 256  # evaluations of this many tokens and more (prompts) cost by the token, and share one point
LARGEST = 63  # evaluations between this and BULK teach nothing: there are too few of each
AGREE = math.log(1.2)  # two plain steps that differ by more belong to two moments
NOISY = 1.25  # times the floor: other programs are at work
SURPRISE = math.log(1.25)  # evaluations that are off by so much ask for a plain step
SURPRISES, MOST_PATIENCE = 3, 24  # so many of them; twice as many after each time that it taught nothing
MOST_BETWEEN = 256  # evaluations that are kept between two plain steps
# Factors by which one observation may differ from what was expected: machines pause, and never hurry.
FALL, RISE = math.log(4.0), math.log(1.5)
FOLLOW, DRIFT = 0.7, 0.1  # how fast the level follows two plain steps that say the same, and one
SURE = math.log(1.08)  # two that are off by more than that say the same
CREEP = 0.003  # how fast it is believed that a noisy moment will stay, with each plain step
FORGET = 6  # what was found when single tokens took x times as long weighs 1 / x**FORGET
POINT_GAIN = 0.15  # least weight of a new observation
RISING = 0.7  # of the weight, of one that says dearer: disturbances only ever add
NOISY_SHARE = 0.1  # of it in a noisy moment
PRIOR = 0.3  # observations that the assumed curve is worth
HEAVIEST = 8.0  # observations that are remembered
AGEING = 16  # plain steps after which what is known is worth less: what is never used is tried again
AGED = 0.99  # of it then
SLOPE_GAIN = 0.02


def filled(curve: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the seconds of at least so many tokens, by those of exactly so many.

    Kernels take rows in groups: on some machines eight cost a quarter less than six, and whoever has
    six adds two that are thrown away. One token alone stays alone.
    """
    found = np.minimum.accumulate(curve[::-1])[::-1]
    found[:2] = curve[:2]
    return found


@dataclass(slots=True)
class _Seen:
    """An evaluation between two plain steps."""

    table: CostTable
    n: int
    off: float  # log of its seconds / what was expected at level 1
    context: float  # the context's part in what was expected, over the slope


@dataclass(slots=True)
class Slowness:
    """How slow the machine is now, by the plain steps of a target; the tables of a pair share one.

    level: what a token takes, over what the points of the tables say. floor: the level in the quietest
    moments so far, in which ratios are learned.
    """

    level: float = 1.0
    floor: float | None = None
    tables: list[CostTable] = field(default_factory=list, repr=False, compare=False)  # the target's first
    _before: tuple[int, float] | None = field(default=None, repr=False, compare=False)  # the last plain step
    _between: list[_Seen] = field(default_factory=list, repr=False, compare=False)  # since then
    _surprises: list[float] = field(default_factory=list, repr=False, compare=False)  # of the target alone
    _patience: int = field(default=SURPRISES, repr=False, compare=False)
    _hurried: bool = field(default=False, repr=False, compare=False)  # was the last step far below the level?
    _steps: int = field(default=0, repr=False, compare=False)

    @property
    def noisy(self) -> bool:
        """True while other programs are at work, or the machine is slower than it was."""
        alone = self._before is None or self._before[0] == 1
        return self.floor is not None and alone and self.level > NOISY * self.floor

    @property
    def asks(self) -> bool:
        """True if a plain step should show whether machine or ratio is not what it was thought to be."""
        if self._hurried:
            return True
        if len(self._surprises) < self._patience:
            return False
        off = sorted(self._surprises[-SURPRISES:])[SURPRISES // 2] - math.log(self.level)
        return abs(off) > SURPRISE

    def note(self, seen: _Seen) -> None:
        """Keeps an evaluation until the next plain step shows in which moment it was made."""
        if seen.table is self.tables[0]:
            self._surprises.append(seen.off)
            del self._surprises[:-MOST_PATIENCE]
        self._between.append(seen)
        del self._between[:-MOST_BETWEEN]

    def plain_step(self, n: int, off: float) -> None:
        """Counts a plain step of n streams, and learns from what lies between it and the one before.

        off: log of its seconds / what was expected at level 1.
        """
        before = self._before[1] if self._before and self._before[0] == n else None
        self._before = n, off
        if self._between:
            if before is not None and abs(before - off) < AGREE:
                self._learn((before + off) / 2)
                self._patience = SURPRISES
            elif len(self._surprises) >= self._patience:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._between.clear()
            self._surprises.clear()
        self._follow(off, before)
        if n == 1:
            self._settle(off, before)
        self._steps += 1
        if not self._steps % AGEING:
            self._age(AGED)

    def _follow(self, off: float, before: float | None) -> None:
        """Moves the level: at once where two steps say the same."""
        level = math.log(self.level)
        off = max(-FALL, min(off - level, RISE))
        both = (
            before is not None and min(abs(off), abs(before - level)) > SURE and (before > level) == (off > 0)
        )
        self.level = math.exp(level + (FOLLOW if both else DRIFT) * off)
        self._hurried = off < -SURPRISE and not both

    def _settle(self, off: float, before: float | None) -> None:
        """Moves the floor. What was found in a noisier moment than the present one is forgotten."""
        if self.floor is None:
            self.floor = self.level
        quiet = math.exp(max(off, before)) if before is not None else math.inf
        if quiet < self.floor:
            self._age((quiet / self.floor) ** FORGET)
            self.floor = quiet
        elif self.level > self.floor:
            self.floor *= (self.level / self.floor) ** CREEP

    def _age(self, share: float) -> None:
        for table in self.tables:
            table.age(share)

    def _learn(self, moment: float) -> None:
        """Corrects each size by the middle of what was seen of it. moment: log of the level of all of it."""
        noisy = self.floor is not None and moment > math.log(NOISY * self.floor)
        found: dict[tuple[int, int], list[_Seen]] = {}
        for seen in self._between:
            found.setdefault((id(seen.table), seen.n), []).append(seen)
        for same in found.values():
            middle = sorted(same, key=lambda seen: seen.off)[(len(same) - 1) // 2]
            off = middle.off - moment
            middle.table.correct(middle.n, off, middle.context, times=min(len(same), SURPRISES), noisy=noisy)


@dataclass(slots=True)
class CostTable:
    """Seconds of one evaluation by its number of tokens and the context before them. Learns."""

    points: dict[int, float]  # number of tokens -> seconds assumed, without context, at level 1
    slope: float = SLOPE  # see SLOPE
    offsets: dict[int, float] = field(default_factory=dict)  # size -> log of what was found / assumed
    weights: dict[int, float] = field(default_factory=dict)  # size -> observations that this rests on
    slowness: Slowness = field(default_factory=Slowness)
    reach: dict[int, float] = field(default_factory=dict)  # rows -> what context adds to them, in one row's
    # evaluations of a new size that are dearer than those that follow: a card's graph is captured anew
    settling: int = field(default=0, compare=False)
    _curve: NDArray[np.float64] | None = field(default=None, init=False, repr=False, compare=False)
    _shared: NDArray[np.float64] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises ValueError if a point is no time."""
        if 1 not in self.points or not all(0 < s < math.inf for s in self.points.values()):
            raise ValueError(f"these are no seconds: {self.points}")
        self.follow(self.slowness)

    def follow(self, slowness: Slowness) -> None:
        """Shares the slowness of another table: that of its target, for a draft's."""
        self.slowness = slowness
        if not any(table is self for table in slowness.tables):
            slowness.tables.append(self)

    @property
    def level(self) -> float:
        """How much slower the machine is now than the points say."""
        return self.slowness.level

    @property
    def measured(self) -> frozenset[int]:
        """The sizes of which something is known; others are assumed."""
        return frozenset({1, *(n for n, weight in self.weights.items() if weight >= PRIOR)})

    def seconds(self, n: int, n_ctx: int = 0) -> float:
        """Returns the expected seconds of evaluating `n` tokens after `n_ctx` others."""
        return self.level * (self._base(n) + self.slope * self._context(n, n_ctx))

    def prices(self, up_to: int) -> NDArray[np.float64]:
        """Returns the expected seconds of at least 0 to `up_to` tokens (`filled`): (up_to + 1,) float64."""
        return filled(self.curve(up_to))

    def curve(self, up_to: int, n_ctx: int = 0) -> NDArray[np.float64]:
        """Returns the expected seconds of exactly 0 to `up_to` tokens: (up_to + 1,) float64."""
        context = self.points[1] * n_ctx / 1000 * self._rows(up_to)
        found: NDArray[np.float64] = self._up_to(up_to)[: up_to + 1] + self.slope * context
        return found * self.level

    def _context(self, n: int, n_ctx: int) -> float:
        """Returns the part of `n_ctx` tokens of context in the seconds of n rows, over the slope."""
        rows = float(self._rows(n)[n]) if n <= LARGEST else float(self._rows(LARGEST)[-1]) * n / LARGEST
        return self.points[1] * rows * n_ctx / 1000

    def _rows(self, up_to: int) -> NDArray[np.float64]:
        """Returns what context adds to 0 to `up_to` rows, in what it adds to one: (up_to + 1,) float64.

        Each row adds as much, unless `reach` has that rows share the reading of keys and values.
        """
        if self._shared is None or self._shared.size <= up_to:
            n = np.arange(max(up_to, LARGEST) + 1, dtype=np.float64)
            known = sorted(self.reach)
            self._shared = (
                np.interp(n, [0, *known], [0.0, *map(self.reach.__getitem__, known)]) if known else n
            )
        return self._shared[: up_to + 1]

    def _base(self, n: int) -> float:
        """Returns the seconds at level 1, without context."""
        return float(self._up_to(n)[n]) if n <= BULK else self._base(BULK) * n / BULK

    def _up_to(self, n: int) -> NDArray[np.float64]:
        """Returns the seconds of 0 to `n` tokens or more: what is assumed, corrected by what was found."""
        if self._curve is None or self._curve.size <= n:
            sizes = np.arange(max(n, LARGEST) + 1, dtype=np.float64)
            known, nodes = sorted(self.points), sorted({1, *self.offsets})
            curve = np.interp(sizes, known, [self.points[size] for size in known])
            curve[known[-1] + 1 :] = self.points[known[-1]] / known[-1] * sizes[known[-1] + 1 :]
            curve *= np.exp(np.interp(sizes, nodes, [self.offsets.get(size, 0.0) for size in nodes]))
            curve[0] = 0.0
            self._curve = curve
        return self._curve

    def learn(self, n: int, n_ctx: int, seconds: float, *, plain: bool = False) -> None:
        """Learns from one evaluation of `n` tokens after `n_ctx` others.

        plain: it was a step of the target without guesses, of as many streams.
        """
        if not 0 < seconds < math.inf or LARGEST < n < BULK:
            return
        if n >= BULK:
            n, seconds = BULK, seconds * BULK / n
        base, context = self._base(n), self._context(n, n_ctx)
        off = math.log(seconds / (base + self.slope * context))
        if plain:
            self._tilt(off - math.log(self.level), context / base)
            self.slowness.plain_step(n, off)
        elif n == BULK:  # a plain step is far away, and what is decided by it is not much
            self.correct(n, off - math.log(self.level), 0.0, noisy=self.slowness.noisy)
        else:
            self.slowness.note(_Seen(self, n, off, context / base))

    def correct(self, n: int, off: float, context: float, *, times: int = 1, noisy: bool = False) -> None:
        """Moves a size's ratio towards what `times` observations say. off: log of found / expected.

        context: its part in what was expected, over the slope.
        """
        self._tilt(off, context)
        share, weight = NOISY_SHARE if noisy else 1.0, self.weights.get(n, 0.0)
        if abs(off) > SURPRISE and not noisy:
            weight /= 2  # it may have been a moment like no other that was believed
        gain = share * max(1 - (1 - POINT_GAIN) ** times, times / (times + weight + PRIOR))
        gain *= RISING if off > 0 else 1.0
        if n not in self.offsets:  # what it follows from its neighbours to be now
            nodes = sorted({1, *self.offsets})
            self.offsets[n] = float(np.interp(n, nodes, [self.offsets.get(size, 0.0) for size in nodes]))
        self.offsets[n] += gain * max(-FALL, min(off, RISE))
        self.weights[n] = min(weight + share * times, HEAVIEST)
        self._curve = None

    def _tilt(self, off: float, context: float) -> None:
        """Gives the slope its part of an error."""
        off = max(-FALL, min(off, RISE))
        self.slope = max(0.0, self.slope + SLOPE_GAIN * off * min(context, 1.0) * max(self.slope, SLOPE / 4))

    def age(self, share: float) -> None:
        """Keeps a share of what is known of each size; for the rest, it is taken to be off as all are."""
        weights = {n: share * weight for n, weight in self.weights.items() if n < BULK}
        common = sum(weight * self.offsets[n] for n, weight in weights.items()) / (sum(weights.values()) + 1)
        for n in weights:
            self.offsets[n] = common + share * (self.offsets[n] - common)
        self.weights.update(weights)
        self._curve = None
