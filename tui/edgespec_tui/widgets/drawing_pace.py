"""How often a growing text is drawn: the model needs every core, so drawing may take only a little of one.

On two cores, each hundredth of a core that the app takes costs the model a hundredth of its speed and more:
the threads that evaluate wait for each other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

SHARE = 0.08  # of a core, for all that this process does
SOONEST_S, LATEST_S = 0.12, 0.4  # between two drawings


@dataclass(slots=True)
class DrawingPace:
    """Says when to draw next. clock: processor seconds of this process."""

    clock: Callable[[], float] = time.process_time
    _before: float | None = None

    def pause(self) -> float:
        """Returns the seconds to wait, by what was computed since it was asked last."""
        now = self.clock()
        used = 0.0 if self._before is None else now - self._before
        self._before = now
        return min(max(SOONEST_S, used / SHARE), LATEST_S)
