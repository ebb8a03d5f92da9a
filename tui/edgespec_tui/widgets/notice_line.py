"""Short-lived messages: on the input's border, where they move and cover nothing.

What needs more lines stands at the top of the talk, where the oldest text is; a click removes it.
"""

from typing import Literal

from rich.cells import cell_len
from textual.widgets import Static

from edgespec_tui.terminal.shown_text import Content

Kind = Literal["note", "warning", "error"]
STYLES: dict[Kind, str] = {"note": "$text-success", "warning": "$text-warning", "error": "$text-error"}
SECONDS: dict[Kind, float] = {"note": 3.0, "warning": 10.0, "error": 8.0}
MOST = 4  # sentences at once
WIDEST = 106  # columns of the input
AROUND = 6  # columns of margin and padding


class NoticeBlock(Static):
    """Shows messages that need several lines."""

    def __init__(self) -> None:
        super().__init__("", id="notice-block")

    def on_click(self) -> None:
        if self.text_selection is None:  # else it is being copied
            self.screen.query_one(NoticeLine).clear()


class NoticeLine(Static):
    """Shows messages, each for its time; in the screen's `NoticeBlock` if they need several lines."""

    def __init__(self) -> None:
        super().__init__("", id="notice-line")
        self.sentences: list[tuple[str, Kind]] = []

    def tell(self, sentence: str, kind: Kind) -> None:
        """Shows a message below those that are still there; notes give way to it, and none is repeated."""
        kept = [one for one in self.sentences if one[0] != sentence and one[1] != "note"]
        notice = sentence, kind
        self.sentences = [*kept[-MOST + 1 :], notice]
        self.draw()
        self.set_timer(SECONDS[kind], lambda: self._end(notice))

    def on_click(self) -> None:
        if self.text_selection is None:
            self.clear()

    def clear(self) -> None:
        """Removes all."""
        self.sentences.clear()
        self.draw()

    def _end(self, notice: tuple[str, Kind]) -> None:
        self.sentences = [one for one in self.sentences if one is not notice]  # an equal one is younger
        self.draw()

    def draw(self) -> None:
        """Shows what there is, where there is room for it now."""
        room = min(self.screen.query_one("#writing").content_size.width, WIDEST) - AROUND
        sentences = [sentence for sentence, _ in self.sentences]
        tall = len(sentences) > 1 or any(cell_len(sentence) > room for sentence in sentences)
        lines = [Content.styled(sentence, STYLES[kind]) for sentence, kind in self.sentences]
        block = self.screen.query_one(NoticeBlock)
        for place, shown in ((self, bool(sentences) and not tall), (block, tall)):
            place.display = shown
            place.update(Content("\n").join(lines) if shown else "")
