"""What every widget around a growing answer has: it is cheap to draw again and again.

While an answer streams, all that is above its end moves up with each drawing. Textual then paints each
container row by row before it finds it covered by its children, and paints what has grown a second time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.strip import Strip
from textual.widget import Widget


class Growing(Widget):
    """Has a height that grows. Textual's own `virtual_size` lays out and paints again after each change."""

    virtual_size = Reactive(Size(0, 0), repaint=False)


class Bare(Growing):
    """A container without looks of its own: what is behind it shows where its children are not."""

    def render_lines(self, crop: Region) -> list[Strip]:
        """Returns nothing to paint."""
        return []


class Column(Vertical, Bare):
    """A bare column, as high as what is in it."""

    DEFAULT_CSS: ClassVar[str] = "Column { height: auto; }"


SHARE = 0.08  # of a core, for all that this process does
SOONEST_S, LATEST_S = 0.12, 0.4  # between two drawings


@dataclass(slots=True)
class DrawingPace:
    """Says when to draw next. clock: processor seconds of this process.

    On two cores, each hundredth of a core that the app takes costs the model a hundredth of its speed and
    more: the threads that evaluate wait for each other.
    """

    clock: Callable[[], float] = time.process_time
    _before: float | None = None

    def pause(self) -> float:
        """Returns the seconds to wait, by what was computed since it was asked last."""
        now = self.clock()
        used = 0.0 if self._before is None else now - self._before
        self._before = now
        return min(max(SOONEST_S, used / SHARE), LATEST_S)
