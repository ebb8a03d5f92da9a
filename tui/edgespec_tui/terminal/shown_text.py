"""Text that others wrote becomes what a terminal shows, and never what it obeys.

`Content` here is Textual's, and the only one that the app makes: control characters, and those that reorder a
line, are one visible character each, so that places in a text stay what they are. `Unobeyed` removes what
gets past it, in Textual's own inputs for example.
"""

import re
from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.color import Color
from textual.content import Content as TextualContent
from textual.content import Span
from textual.filter import LineFilter

UNKNOWN = "\ufffd"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
PICTURES = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {0x7F: "\u2421"}


def visible(text: str) -> str:
    """Returns a text of the same length in which a terminal finds nothing to obey."""
    return OBEYED.sub(lambda found: PICTURES.get(ord(found[0]), UNKNOWN), text)


class VisibleContent(TextualContent):
    """Text for the screen, whoever wrote it."""

    def __init__(
        self,
        text: str = "",
        spans: list[Span] | None = None,
        cell_length: int | None = None,
        strip_control_codes: bool = False,
    ) -> None:
        super().__init__(visible(text), spans, cell_length, strip_control_codes=False)

    @classmethod
    def from_markup(cls, markup: str | TextualContent, **variables: object) -> TextualContent:
        """Returns markup of our own as text. variables: texts for it, whoever wrote them."""
        return super().from_markup(markup, **{name: visible(str(value)) for name, value in variables.items()})


if TYPE_CHECKING:
    Content = TextualContent  # which its methods return
else:
    Content = VisibleContent


class Unobeyed(LineFilter):
    """Removes, from every line that is drawn, what a terminal would obey."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if not any(OBEYED.search(segment.text) for segment in segments):
            return segments
        return [Segment(OBEYED.sub("", text), style, control) for text, style, control in segments]
