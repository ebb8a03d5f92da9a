"""The text of an answer on the screen: segments of Markdown, of which only the last one grows."""

import re

from textual.app import ComposeResult
from textual.widgets import Button

from edgespec_tui.sessions.conversation import Runs
from edgespec_tui.widgets.answer_markdown import AnswerSegment, CodeFence
from edgespec_tui.widgets.growing import Column
from edgespec_tui.widgets.markdown_blocks import whole_block
from edgespec_tui.widgets.origins import join, part
from edgespec_tui.widgets.segments import LOOK_EVERY, Segment, cut_of, segments

SHOWN = 2  # segments of one answer that are widgets; those above are shown on request
MORE = 3
BLANK = re.compile(r"\n[ \t]*\n\s*$")


class AnswerBody(Column):
    """Shows a text that may grow. Long ones show their end; the rest comes with one key or click."""

    def __init__(self, text: str, runs: Runs, *, tinted: bool) -> None:
        super().__init__()
        self._segments = segments(text) if text else []
        self._runs = list(runs)
        self._tinted = tinted
        self._first = max(0, len(self._segments) - SHOWN)
        self._looked = 0  # characters of the last segment that were searched for a cut

    def compose(self) -> ComposeResult:
        if self._first:
            yield self._above()
        yield from self._views(self._first, len(self._segments))

    def _above(self) -> Button:
        above = Button("earlier part: scroll up or click here", classes="above", compact=True)
        above.can_focus = False  # what is typed next is for the input
        return above

    def _views(self, first: int, end: int) -> list[AnswerSegment]:
        """Returns widgets for segments; one that begins after an empty line keeps that line."""
        return [
            AnswerSegment(segment, self._runs_of(segment), gap=number > 0 and self._is_apart(number))
            for number, segment in enumerate(self._segments[first:end], first)
        ]

    def _is_apart(self, number: int) -> bool:
        return bool(BLANK.search(self._segments[number - 1].text))

    def _runs_of(self, segment: Segment) -> list[tuple[str, int]]:
        """Returns who produced a segment's text; empty if that is not shown."""
        return part(self._runs, segment.start, segment.start + len(segment.text)) if self._tinted else []

    @property
    def has_more(self) -> bool:
        """True if a part of the text above is not shown."""
        return self._first > 0

    async def set_tinted(self, tinted: bool) -> None:
        """Colours the text by who produced it, or not."""
        self._tinted = tinted
        for view in self.query(AnswerSegment):
            await view.show(view.segment, self._runs_of(view.segment))

    def on_code_fence_copied(self, event: CodeFence.Copied) -> None:
        """Copies the whole of a code block that the screen shows in parts."""
        event.code = whole_block("".join(segment.text for segment in self._segments), event.code)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        await self.show_more()

    async def show_more(self) -> None:
        """Shows more of the text above."""
        low, self._first = self._first, max(0, self._first - MORE)
        button = self.query_one(".above")
        await self.mount_all(self._views(self._first, low), after=button)
        if not self._first:
            await button.remove()

    async def feed(self, text: str, runs: list[tuple[str, int]]) -> None:
        """Adds text at the end; runs: its own. However much comes at once, only its end is drawn."""
        for source, n in runs:
            join(self._runs, source, n)
        known = len(self._segments)
        self._lengthen(text)
        if self.is_attached:
            with self.app.batch_update():
                await self._draw(known)

    async def _draw(self, known: int) -> None:
        """Shows the end; known: how many segments there were."""
        first = max(self._first, len(self._segments) - SHOWN)
        views = list(self.query_children(AnswerSegment))
        if first > self._first:
            if not self._first:
                await self.mount(self._above(), before=0)
            start = self._segments[first].start
            await self.remove_children([view for view in views if view.segment.start < start])
            self._first = first
        if known > first:
            grown = self._segments[known - 1]
            await views[-1].show(grown, self._runs_of(grown))
        await self.mount_all(self._views(max(first, known), len(self._segments)))

    def _lengthen(self, text: str) -> None:
        """Adds text to the last segment, and cuts it if it has become too long to be drawn at once."""
        last = self._segments.pop() if self._segments else Segment(0, "", "")
        last = Segment(last.start, last.prefix, last.text + text)
        while len(last.text) - self._looked > LOOK_EVERY and (cut := cut_of(last)):
            self._segments.append(cut[0])
            last, self._looked = cut[1], 0
        if len(last.text) - self._looked > LOOK_EVERY:
            self._looked = len(last.text)
        self._segments.append(last)
