"""The text of an answer on the screen: segments of Markdown, of which only the last one grows."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Button

from edgespec.core.values import FREE
from edgespec_tui.sessions.conversation import Runs
from edgespec_tui.widgets.block_rows import BlockRows
from edgespec_tui.widgets.drawn_rows import Listing
from edgespec_tui.widgets.growing import Column
from edgespec_tui.widgets.markdown_blocks import Block, blocks, whole_block
from edgespec_tui.widgets.origins import join, part, spans
from edgespec_tui.widgets.segments import LOOK_EVERY, Segment, cut_of

TINTS = {name: f"on $origin-{name}" for name in ("model", *FREE)}
MARKS = {name: "italic underline" for name in TINTS}  # without colours
MARKS |= {"model": "underline", "lookup": "bold underline"}
FENCES = ("```", "~~~")


class Prose(BlockRows):
    """Everything but code."""


class CodeFence(BlockRows, can_focus=True):
    """A code block that is reached with Tab and copied with one key, or a click on its head."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,y,enter", "copy", "Copy code", id="code.copy"),
    ]

    @dataclass
    class Copied(Message):
        """The code should go to the clipboard."""

        code: str

    @property
    def listing(self) -> Listing:
        listing = self.blocks[0]
        assert isinstance(listing, Listing)
        return listing

    def on_click(self, event: events.Click) -> None:
        if event.y == 0 and not self.listing.continued:
            event.stop()
            self.action_copy()

    def action_copy(self) -> None:
        """Copies the code."""
        self.post_message(self.Copied(self.listing.code))


class AnswerSegment(Column):
    """A segment of an answer, as few widgets: runs of prose, and blocks of code."""

    def __init__(self, segment: Segment, runs: Sequence[tuple[str, int]] = (), *, gap: bool = False) -> None:
        """runs: who produced its text; none of them leaves it uncoloured. gap: a row above it."""
        super().__init__()
        self.segment, self._runs, self._gap = segment, list(runs), gap
        self._showing = asyncio.Lock()  # keys and the stream may both change what is shown

    def compose(self) -> ComposeResult:
        for group in self._groups():
            yield _view(group)

    async def show(self, segment: Segment, runs: Sequence[tuple[str, int]] = ()) -> None:
        """Shows the segment as it is now; unchanged widgets stay as they are."""
        async with self._showing:
            if self.is_attached:  # else the app is ending
                self.segment, self._runs = segment, list(runs)
                await self._change()

    async def _change(self) -> None:
        groups = self._groups()
        views = [child for child in self.children if isinstance(child, BlockRows)]
        kept = 0
        for view, group in zip(views, groups, strict=False):
            if isinstance(view, CodeFence) != isinstance(group[0], Listing):
                break
            _put(view, group)
            kept += 1
        if views[kept:]:
            await self.remove_children(views[kept:])
        if groups[kept:]:
            await self.mount_all([_view(group) for group in groups[kept:]])

    def _groups(self) -> list[list[Block]]:
        segment = self.segment
        found = blocks(segment.source, gap=self._gap, continued=bool(segment.prefix))
        if self._runs:
            found = self._tinted(found)
        return [[*group] for _, group in groupby(found, key=lambda b: id(b) if isinstance(b, Listing) else 0)]

    def _tinted(self, found: list[Block]) -> list[Block]:
        """Colours what this segment shows by who produced it."""
        styles = MARKS if self.app.no_color else TINTS
        source = self.segment.source
        origins = [""] * len(self.segment.prefix) + [source for source, n in self._runs for _ in range(n)]
        at, tinted = 0, []
        for block in found:
            at = max(at, block.at)
            if isinstance(block, Listing) and source[at:].lstrip().startswith(FENCES):
                at = source.find("\n", at) + 1  # past the line that opens it
            texts = []
            for text in block.texts:
                found_spans, at = spans(text.plain, source, origins, at)
                for start, end, origin in found_spans:
                    if origin in styles:
                        text = text.stylize(styles[origin], start, end)
                texts.append(text)
            tinted.append(replace(block, texts=tuple(texts)))
        return tinted


def _view(group: list[Block]) -> BlockRows:
    view = CodeFence([]) if isinstance(group[0], Listing) else Prose([])
    _put(view, group)
    return view


def _put(view: BlockRows, group: list[Block]) -> None:
    first = group[0]
    if isinstance(first, Listing):  # what is above and next to code is not part of it
        margin = (0 if first.gap is None else 1, 0, 0, first.indent)
        if view.styles.margin != margin:
            view.styles.margin = margin
        first = replace(first, gap=None)
    view.show([first, *group[1:]])


SHOWN = 2  # segments of one answer that are widgets; those above are shown on request
MORE = 3
BLANK = re.compile(r"\n[ \t]*\n\s*$")


class AnswerBody(Column):
    """Shows a text that may grow. Long ones show their end; the rest comes with one key or click."""

    def __init__(self, text: str, runs: Runs, *, tinted: bool) -> None:
        super().__init__()
        self._segments: list[Segment] = []
        self._looked = 0  # characters of the last segment that were searched for a cut
        if text:
            self._lengthen(text)
        self._runs = list(runs)
        self._tinted = tinted
        self._first = max(0, len(self._segments) - SHOWN)

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
