"""Short-lived messages: on the input's border, where they move and cover nothing.

One that needs more lines lies over the last ones of the transcript; a click removes it.
"""

from typing import Literal

from textual.widgets import Static

from edgespec_tui.terminal.shown_text import Content

Kind = Literal["note", "warning", "error"]
STYLES: dict[Kind, str] = {"note": "$text-success", "warning": "$text-warning", "error": "$text-error"}
SECONDS: dict[Kind, float] = {"note": 3.0, "warning": 10.0, "error": 8.0}
MOST = 4  # sentences at once


class NoticeLine(Static):
    """Shows messages, each for its time."""

    def __init__(self) -> None:
        super().__init__("", id="notice-line")
        self.sentences: list[tuple[str, Kind]] = []

    def tell(self, sentence: str, kind: Kind) -> None:
        """Shows a message below those that are still there; notes give way to it, and none is repeated."""
        kept = [one for one in self.sentences if one[0] != sentence and one[1] != "note"]
        told = sentence, kind
        self.sentences = [*kept[-MOST + 1 :], told]
        self._draw()
        self.set_timer(SECONDS[kind], lambda: self._end(told))

    def on_click(self) -> None:
        if self.text_selection is None:  # else it is being copied
            self.sentences.clear()
            self._draw()

    def on_resize(self) -> None:
        self.styles.offset = (0, 1 - self.outer_size.height)  # the last line lies on the input's border

    def _end(self, told: tuple[str, Kind]) -> None:
        self.sentences = [one for one in self.sentences if one is not told]  # an equal one is younger
        self._draw()

    def _draw(self) -> None:
        self.display = bool(self.sentences)
        lines = [Content.styled(sentence, STYLES[kind]) for sentence, kind in self.sentences]
        self.update(Content("\n").join(lines))
