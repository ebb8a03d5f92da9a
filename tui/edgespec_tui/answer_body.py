"""The text of an answer on the screen: segments of Markdown, of which only the last one grows."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Button, Markdown
from textual.widgets.markdown import MarkdownStream

from edgespec_tui.answer_markdown import AnswerSegment
from edgespec_tui.conversation import Runs
from edgespec_tui.origins import join, part
from edgespec_tui.segments import LOOK_EVERY, Segment, find_cut, segments

SHOWN = 8  # segments of one answer that are widgets; those above them are shown when asked for
MORE = 8


class AnswerBody(Vertical):
    """Shows a text that may grow. Long ones show their end; what is above comes with one key or click."""

    DEFAULT_CSS: ClassVar[str] = "AnswerBody { height: auto; }"

    class Grew(Message):
        """The text takes more room, or less."""

    def __init__(self, text: str, runs: Runs, *, tinted: bool) -> None:
        super().__init__()
        self._segments = segments(text) if text else []
        self._runs = list(runs)
        self._tinted = tinted
        self._first = max(0, len(self._segments) - SHOWN)
        self._open: AnswerSegment | None = None
        self._stream: MarkdownStream | None = None
        self._looked = 0  # characters of the open segment that were looked at for a cut

    def compose(self) -> ComposeResult:
        above = Button("show what is above", classes="above", compact=True)
        above.display = self._first > 0
        yield above
        for segment in self._segments[self._first :]:
            yield AnswerSegment(segment)

    def on_mount(self) -> None:
        if self._tinted and self._runs:
            self.call_after_refresh(self._tint_all)

    def _tint_all(self) -> None:
        for view in self.query(AnswerSegment):
            self._tint(view)

    def _tint(self, view: AnswerSegment) -> None:
        start, size = view.segment.start, len(view.segment.text)
        view.tint(part(self._runs, start, start + size) if self._tinted else [])

    def set_tinted(self, tinted: bool) -> None:
        """Colours the text by who produced it, or not."""
        self._tinted = tinted
        self._tint_all()

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        low = max(0, self._first - MORE)
        views = [AnswerSegment(segment) for segment in self._segments[low : self._first]]
        self._first = low
        await self.mount_all(views, after=event.button)
        event.button.display = low > 0
        if self._tinted:
            self.call_after_refresh(self._tint_all)

    async def feed(self, text: str, runs: list[tuple[str, int]]) -> None:
        """Adds text at the end; runs: its own."""
        for source, n in runs:
            join(self._runs, source, n)
        if self._open is None:
            await self._begin(Segment(sum(len(s.text) for s in self._segments), "", ""))
        assert self._open is not None and self._stream is not None
        last = self._segments[-1]
        self._segments[-1] = self._open.segment = Segment(last.start, last.prefix, last.text + text)
        await self._open.append(text) if self._tinted else await self._stream.write(text)
        if self._tinted:
            self._tint(self._open)
        if len(self._segments[-1].text) - self._looked > LOOK_EVERY:
            await self._cut()

    async def _begin(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._open, self._looked = AnswerSegment(segment), 0
        await self.mount(self._open)
        self._stream = Markdown.get_stream(self._open)

    async def _cut(self) -> None:
        """Ends the open segment where it got long, and begins the next with the rest."""
        segment = self._segments[-1]
        self._looked = len(segment.text)
        cut = find_cut(segment.source)
        if cut is None or (at := cut.offset - len(segment.prefix)) <= 0 or self._open is None:
            return
        await self._close_stream()
        done = Segment(segment.start, segment.prefix, segment.text[:at])
        self._segments[-1] = self._open.segment = done
        await self._open.update(done.source)
        if self._tinted:
            self._tint(self._open)
        await self._begin(Segment(segment.start + at, cut.prefix, segment.text[at:]))
        self._looked = len(segment.text) - at
        await self._drop_above()

    async def _drop_above(self) -> None:
        """Takes the oldest segments off the screen, so that a long answer costs what a short one does."""
        views = list(self.query(AnswerSegment))
        for view in views[: max(0, len(views) - SHOWN)]:
            self._first += 1
            await view.remove()
        self.query_one(".above", Button).display = self._first > 0

    async def _close_stream(self) -> None:
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None

    async def end(self) -> None:
        """Draws what is still to be drawn; the text grows no more."""
        await self._close_stream()
        self._open = None
        if self._tinted:
            self._tint_all()
