"""Lanes: requests that are to be compared take turns in short blocks, and run as if each were alone.

A slow phase of the machine then hits all of them, and none shares an evaluation with another. A request
without a lane takes part in every step.
"""

from collections.abc import Callable

from edgespec.engine.slots import Slot

BLOCK = 4  # rounds of a turn
MOST_TURNS = 2  # in a row: one that met a pause of the machine is not made up for in a quiet time


class Lanes:
    """Says whose turn it is, and how long the rounds of each lane took."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}  # seconds, by lane
        self._lane, self._left = "", 0  # whose turn it is, and for how many rounds
        self._in_a_row = 0  # turns
        self._since: float | None = None  # when the last round of any lane ended

    def taking_part(self, running: list[Slot]) -> list[Slot]:
        """Returns who takes part in the next step. The lane that has run for the shortest time is next."""
        present = sorted({lane for slot in running if (lane := slot.request.wanted.lane)})
        if not present:
            self._spent, self._left, self._since = {}, 0, None
            return running
        if self._since is None:
            self._since = self._clock()
        least = min((self._spent[lane] for lane in present if lane in self._spent), default=0.0)
        for lane in present:
            self._spent.setdefault(lane, least)
        if self._left <= 0 or self._lane not in present:
            self._next_turn(present)
        return [slot for slot in running if slot.request.wanted.lane in ("", self._lane)]

    def _next_turn(self, present: list[str]) -> None:
        chosen = min(present, key=self._spent.__getitem__)
        if chosen == self._lane and self._in_a_row >= MOST_TURNS and len(present) > 1:
            self._spent = dict.fromkeys(present, 0.0)
            chosen = next(lane for lane in present if lane != self._lane)
        self._in_a_row = self._in_a_row + 1 if chosen == self._lane else 1
        self._lane, self._left = chosen, BLOCK

    def charge(self, slot: Slot) -> float:
        """Charges a lane with its round; returns the seconds that it took, 0 without a lane."""
        lane, now = slot.request.wanted.lane, self._clock()
        if not lane or self._since is None:
            return 0.0
        seconds, self._since = now - self._since, now
        self._spent[lane] += seconds
        self._left -= 1
        return seconds
