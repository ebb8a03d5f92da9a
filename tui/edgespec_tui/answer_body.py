"""The text of an answer on the screen: segments of Markdown, of which only the last one grows."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Button, Markdown
from textual.widgets.markdown import MarkdownStream

from edgespec_tui.answer_markdown import AnswerSegment, CodeFence
from edgespec_tui.code_blocks import whole_block
from edgespec_tui.conversation import Runs
from edgespec_tui.origins import join, part
from edgespec_tui.segments import LOOK_EVERY, Segment, cut_of, segments

SHOWN = 2  # segments of one answer that are widgets; those above them are shown when asked for
MORE = 3


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
        if self._first:
            yield self._above()
        for segment in self._segments[self._first :]:
            yield AnswerSegment(segment)

    def _above(self) -> Button:
        return Button("the part above: scroll up or press here", classes="above", compact=True)

    @property
    def has_more(self) -> bool:
        """True where a part of the text above is not shown."""
        return self._first > 0

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

    def on_code_fence_copied(self, event: CodeFence.Copied) -> None:
        """Gives the whole of a code block where the screen shows it in parts."""
        event.code = whole_block("".join(segment.text for segment in self._segments), event.code)

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        await self.show_more()

    async def show_more(self) -> None:
        """Shows more of what is above."""
        low = max(0, self._first - MORE)
        views = [AnswerSegment(segment) for segment in self._segments[low : self._first]]
        self._first = low
        button = self.query_one(".above")
        await self.mount_all(views, after=button)
        if not low:
            await button.remove()
        if self._tinted:
            self.call_after_refresh(self._tint_all)

    async def feed(self, text: str, runs: list[tuple[str, int]]) -> None:
        """Adds text at the end; runs: its own."""
        for source, n in runs:
            join(self._runs, source, n)
        if self._open is None:
            await self._begin(Segment(sum(len(s.text) for s in self._segments), "", ""))
        last = self._segments[-1]
        rest = Segment(last.start, last.prefix, last.text + text)
        while len(rest.text) - self._looked > LOOK_EVERY:
            self._looked = len(rest.text)
            cut = cut_of(rest)
            if cut is None:
                break
            await self._grow(cut[0])
            await self._close_stream()
            rest = cut[1]
            await self._begin(Segment(rest.start, rest.prefix, ""))
        await self._grow(rest)
        await self._drop_above()

    async def _begin(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._open, self._looked = AnswerSegment(segment), 0
        await self.mount(self._open)
        self._stream = Markdown.get_stream(self._open)

    async def _grow(self, segment: Segment) -> None:
        """Shows the open segment as it is now: longer, or cut before its end."""
        assert self._open is not None and self._stream is not None
        if not self._open.is_mounted:  # the app is ending
            return
        before = self._open.segment.text
        self._segments[-1] = self._open.segment = segment
        if len(segment.text) < len(before):
            await self._close_stream()
            await self._open.update(segment.source)
        elif self._tinted:
            await self._open.append(segment.text[len(before) :])
        else:
            await self._stream.write(segment.text[len(before) :])
        if self._tinted:
            self._tint(self._open)

    async def _drop_above(self) -> None:
        """Takes the oldest segments off the screen, so that a long answer costs what a short one does."""
        views = [child for child in self.children if isinstance(child, AnswerSegment)]
        surplus = views[: max(0, len(views) - SHOWN)]
        if surplus:
            if not self._first:
                await self.mount(self._above(), before=0)
            self._first += len(surplus)
            await self.remove_children(surplus)

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
