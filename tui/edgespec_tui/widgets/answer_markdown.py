"""One segment of an answer, drawn as Markdown: code to copy, and the tint of who wrote what."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from edgespec.core.values import FREE
from edgespec_tui.widgets.block_rows import BlockRows
from edgespec_tui.widgets.drawn_rows import Listing
from edgespec_tui.widgets.growing import Column
from edgespec_tui.widgets.markdown_blocks import Block, blocks
from edgespec_tui.widgets.origins import by_character, spans
from edgespec_tui.widgets.segments import Segment

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
        origins = [""] * len(self.segment.prefix) + by_character(self._runs)
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
    if isinstance(first, Listing):  # what is above and beside code is not part of it
        margin = (0 if first.gap is None else 1, 0, 0, first.indent)
        if view.styles.margin != margin:
            view.styles.margin = margin
        first = replace(first, gap=None)
    view.show([first, *group[1:]])
