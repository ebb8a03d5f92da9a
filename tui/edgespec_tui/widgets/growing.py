"""What every widget around a growing answer has: it is cheap to draw again and again.

While an answer streams, all that is above its end moves up with each drawing. Textual then paints each
container row by row before it finds it covered by its children, and paints what has grown a second time.
"""

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
