"""What one token, or several, cost on a pair, and how that is measured.

Costs are not monotonic in shape, and differ by machine, number format and backend: on many CPUs four
tokens are cheaper than three. So they are timed when a pair is loaded (`look`), sizes that were not
follow from the others and from what is assumed (`row_costs`), and every later evaluation corrects the table
(`CostTable.learn`).
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.row_costs import FLOAT, Shape
from edgespec.core.pace.tuning import TUNING

# Sizes worth measuring, those first where groups of rows end: what lies between has the assumed shape.
SIZES = (4, 8, 12, 16, 2, 3, 5, 6, 7, 10, 24, 32, 48)


def assumed(shape: Shape, one: float) -> CostTable:
    """Returns a table of assumptions alone. one: seconds of one token."""
    return CostTable({n: ratio * one for n, ratio in shape.items()})


def from_measured(shape: Shape, found: Mapping[int, float]) -> CostTable:
    """Returns a table of measurements, and of assumptions past the largest measured size."""
    largest = max(found)
    unit = found[largest] / assumed(shape, 1.0).seconds(largest)
    return CostTable({**found, **{n: ratio * unit for n, ratio in shape.items() if n > largest}})


@dataclass(slots=True)
class Costs:
    """What one token, or several, cost on target and draft."""

    target: CostTable
    draft: CostTable
    rereads: bool = False  # the draft is a head, which reads a round's tokens again in the target's rows
    at_once: bool = False  # one step makes all guesses of a draft
    timed: bool = field(default=False, compare=False, repr=False)  # plain decoding of a light target
    _size: int = field(default=0, init=False, compare=False, repr=False)  # the target's last evaluation
    _times: int = field(default=0, init=False, compare=False, repr=False)  # in a row that it had this size

    def __post_init__(self) -> None:
        self.draft.follow(self.target.slowness)

    @property
    def light(self) -> bool:
        """True if a token is so cheap that looking for guesses shows."""
        return self.target.seconds(1) < TUNING.light_s

    @property
    def longest_rest(self) -> int:
        """For how many rounds nobody looks for guesses after none paid; 0 if looking does not show."""
        one = self.target.seconds(1)
        if one < TUNING.light_s:
            return TUNING.longest_rest
        return int(TUNING.look_s / TUNING.look_share / one) if one < TUNING.felt_s else 0

    @property
    def settling(self) -> int:
        """Evaluations of a new size by the target that are dearer than the next: its graph is built anew."""
        return max(self.target.settling, self.light)

    @property
    def settled(self) -> bool:
        """True if the target's last evaluation cost what others of this size will."""
        return self._times > self.settling

    def note_size(self, n: int) -> None:
        """Counts an evaluation of n tokens by the target."""
        self._times = self._times + 1 if n == self._size else 1
        self._size = n

    def note_plain(self, n_ctx: int, seconds: float) -> None:
        """Counts a step of one stream without looking for guesses."""
        if self.settled:
            self.target.learn(1, n_ctx, seconds, plain=True)
            self.timed |= self.light


def unmeasured() -> Costs:
    """Returns costs for those who weigh none."""
    return Costs(assumed(FLOAT, 1.0), CostTable({1: 0.1}))


def look(
    costs: Costs,
    verify: Callable[[int], float],
    step: Callable[[int], float] | None = None,
    *,
    sizes: Iterable[int],
    read: Iterable[int] = (),
    n_ctx: int,
    budget: float,
) -> float:
    """Times sizes on the target, each between two single tokens; returns what is left of `budget` seconds.

    verify, step: evaluate so many tokens on target and draft, and return the seconds. n_ctx: tokens before
    them. read: sizes for the draft besides single tokens. The draft works between the target's evaluations,
    as in use: for its first token, its weights are no longer in the caches; for the next they are. llama.cpp
    rebuilds its graph for each change of size, which takes a good part of a millisecond, and a card as much
    again to capture it. So single tokens are timed when that is done (`settling`), and a light model pays for
    both changes of a size: even two tokens may cost more than each alone.
    """
    target, draft, reading = costs.target, costs.draft, [(), *((n,) for n in read)]

    def single() -> float:
        spent = [verify(1) for _ in range(1 + costs.settling)]
        target.learn(1, n_ctx, min(spent), plain=True)
        return sum(spent)

    left = budget
    for i, n in enumerate(sizes):
        drafted = (1, 1, *reading[i % len(reading)]) if step else ()
        prices = target.curve(n, n_ctx)  # one that is wrongly thought dear is timed, too
        dearest = min(math.ceil(n / m) * float(prices[m]) for m in range(1, n + 1))
        expected = dearest + target.seconds(1) + sum(draft.seconds(m) for m in drafted)
        if expected > left:
            continue
        if left == budget:
            left -= single()
        for m in drafted:
            assert step
            seconds = step(m)
            draft.learn(m, n_ctx, seconds)
            left -= seconds
        if len(drafted) > 2 and step:
            left -= sum(step(1) for _ in range(draft.settling))
        seconds = verify(n)
        left -= seconds
        if costs.light:
            again = verify(1)
            left -= again
            seconds += max(0.0, again - target.seconds(1))
        target.learn(n, n_ctx, seconds)
        left -= single()
    return left
