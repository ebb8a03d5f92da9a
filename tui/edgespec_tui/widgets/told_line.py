"""Short-lived messages: above the input, where they cover nothing."""

from __future__ import annotations

from typing import Literal

from textual.content import Content
from textual.widgets import Static

Kind = Literal["note", "warning", "error"]
STYLES: dict[Kind, str] = {"note": "$text-success", "warning": "$text-warning", "error": "$text-error"}
SECONDS: dict[Kind, float] = {"note": 3.0, "warning": 10.0, "error": 8.0}
MOST = 4  # sentences at once


class ToldLine(Static):
    """Shows messages, each for its time."""

    def __init__(self) -> None:
        super().__init__("", id="told")
        self.display = False
        self.sentences: list[tuple[str, Kind]] = []

    def tell(self, sentence: str, kind: Kind) -> None:
        """Shows a message below those that are still there; one that is already there is not repeated."""
        self.sentences = [one for one in self.sentences if one[0] != sentence][-MOST + 1 :]
        self.sentences.append((sentence, kind))
        self._draw()
        self.set_timer(SECONDS[kind], lambda: self._end((sentence, kind)))

    def _end(self, told: tuple[str, Kind]) -> None:
        if told in self.sentences:
            self.sentences.remove(told)
            self._draw()

    def _draw(self) -> None:
        self.display = bool(self.sentences)
        lines = [Content.styled(sentence, STYLES[kind]) for sentence, kind in self.sentences]
        self.update(Content("\n").join(lines))
