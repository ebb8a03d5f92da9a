"""One segment of an answer, drawn as Markdown: code that can be copied, and the tint of who wrote what."""

from __future__ import annotations

import itertools
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.style import Style
from textual.widgets import Label, Markdown, Static
from textual.widgets.markdown import MarkdownBlock, MarkdownFence

from edgespec_tui.origins import by_character, spans
from edgespec_tui.segments import Segment

TINTED = ("model", "lookup", "recycling")
COMPONENTS = frozenset(f"origin-{name}" for name in TINTED)


class CodeHeader(Static):
    """Names the language of a code block; a click copies the code."""

    def on_click(self, event: events.Click) -> None:
        event.stop()
        fence = self.parent
        assert isinstance(fence, CodeFence)
        fence.action_copy()


class CodeFence(MarkdownFence, can_focus=True):
    """A code block that is reached with Tab and copied with one key."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c,y,enter", "copy", "Copy code", id="code.copy"),
    ]

    class Copied(Message):
        """The code is wanted on the clipboard."""

        def __init__(self, code: str) -> None:
            super().__init__()
            self.code = code

    def compose(self) -> ComposeResult:
        language = self.lexer.split()[0] if self.lexer.split() else "text"
        yield CodeHeader(f"{language}  [dim]copy: c or click[/dim]", classes="code-header")
        yield from super().compose()

    def action_copy(self) -> None:
        """Copies the code."""
        self.post_message(self.Copied(self.code))


class AnswerSegment(Markdown):
    """A segment of an answer. Links are named and not followed: a model's text opens nothing by itself."""

    COMPONENT_CLASSES: ClassVar[set[str]] = set(COMPONENTS)
    BLOCKS = {**Markdown.BLOCKS, "fence": CodeFence, "code_block": CodeFence}

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.source, open_links=False)
        self.segment = segment

    def tint(self, runs: list[tuple[str, int]]) -> None:
        """Colours what this segment shows; runs: of its text. None of them takes the colours away.

        Tables are left as they are: their cells are widgets that Textual keeps to itself.
        """
        origins = [""] * len(self.segment.prefix) + by_character(runs)
        styles = {name: self._style(name) for name in TINTED} if runs else {}
        source = self.source
        lines = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
        for top in self.children:
            if isinstance(top, MarkdownBlock):
                at = lines[min(top.source_range[0], len(lines) - 1)]
                for block in (top, *top.walk_children(MarkdownBlock)):
                    at = _tint(block, source, origins, at, styles)

    def _style(self, name: str) -> Style:
        """Returns the tint of an origin: its background, and marks where there are no colours."""
        style = self.get_visual_style(f"origin-{name}")
        return Style(
            background=style.background, bold=style.bold, italic=style.italic, underline=style.underline
        )


def _tint(block: MarkdownBlock, source: str, origins: list[str], at: int, styles: dict[str, Style]) -> int:
    """Colours one block; returns where in the source it ends."""
    is_code = isinstance(block, MarkdownFence)
    shown = block._highlighted_code if isinstance(block, MarkdownFence) else block._content
    if not shown.plain:
        return at
    if styles:
        at = source.find("\n", at) + 1 if is_code else at  # past the line that opens it
        found, at = spans(shown.plain, source, origins, at)
        for start, end, origin in found:
            if origin in styles:
                shown = shown.stylize(styles[origin], start, end)
    if is_code:
        block.query_one("#code-content", Label).update(shown)
    else:
        block.update(shown)
    return at
