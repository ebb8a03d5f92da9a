"""Speed and acceptance of the last minutes, for the page: sums of five seconds each."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from edgespec.core.values import Round

STEP_S, STEPS = 5.0, 120
PAUSE_S = 2.0  # between two rounds: longer ones are pauses, in which nothing was written


@dataclass(slots=True)
class Sums:
    """What was done in one step of time."""

    step: int
    tokens: int = 0
    seconds: float = 0.0  # in which it was written
    drafted: int = 0
    accepted: int = 0

    @property
    def speed(self) -> float | None:
        """Tokens per second, of all answers together; None if nothing was written."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def acceptance(self) -> float | None:
        """Which part of the guesses was right; None without any."""
        return self.accepted / self.drafted if self.drafted else None


class Recent:
    """The sums of the last ten minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, -PAUSE_S
        self._sums: deque[Sums] = deque(maxlen=STEPS)

    def note(self, round_: Round) -> None:
        """Counts a round. The first after a pause has taken nobody knows how long."""
        now, step = self._clock(), int(self._clock() / STEP_S)
        if not self._sums or self._sums[-1].step != step:
            self._sums.append(Sums(step))
        sums, gap = self._sums[-1], now - self._last
        self._last = now
        if gap < PAUSE_S:
            sums.tokens += len(round_.tokens)
            sums.seconds += gap
        sums.drafted += round_.drafted
        sums.accepted += round_.accepted

    def steps(self) -> list[Sums]:
        """Returns all steps up to now, the oldest first."""
        now = int(self._clock() / STEP_S)
        known = {sums.step: sums for sums in self._sums}
        return [known.get(step, Sums(step)) for step in range(now - STEPS + 1, now + 1)]
