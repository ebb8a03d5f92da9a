"""A widget that draws blocks row by row: one for many paragraphs, so that a screen has few to lay out."""

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style

from edgespec_tui.widgets.drawn_rows import Row, places_in
from edgespec_tui.widgets.growing import Growing
from edgespec_tui.widgets.markdown_blocks import Block, gap_above, same

FOUND, FOUND_HERE = "reverse", "reverse bold underline"  # what a search has found


class BlockRows(Growing):
    """Shows blocks. Draws only rows on the screen, and wraps only what has changed."""

    DEFAULT_CSS: ClassVar[str] = "BlockRows { width: 1fr; height: auto; }"

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = list(blocks)
        self._width = 0
        self._made: list[list[Row]] = []  # of each block
        self._rows: list[Row] = []
        self._sought, self._here = "", -1
        self._marks: dict[int, list[tuple[int, int, str]]] | None = None  # of each row, for what is sought

    def show(self, blocks: Sequence[Block]) -> None:
        """Shows other blocks; the screen is laid out anew only if their height changes."""
        kept = 0
        for old, new in zip(self.blocks, blocks, strict=False):
            if not same(old, new):
                break
            kept += 1
        if kept == len(blocks) == len(self.blocks):
            return
        self.blocks = list(blocks)
        del self._made[kept:]
        height = len(self._rows)
        if self._width:
            self._wrap(self._width)
        if len(self._rows) != height:
            self.clear_cached_dimensions()
        self.refresh(layout=len(self._rows) != height)

    def _wrap(self, width: int) -> None:
        if width != self._width:
            self._width, self._made = width, []
        for block in self.blocks[len(self._made) :]:
            self._made.append([*gap_above(block), *block.rows(width)])
        self._rows = list(chain.from_iterable(self._made))
        self._marks = None

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if width != self._width or len(self._made) != len(self.blocks):
            self._wrap(max(1, width))
        return len(self._rows)

    def on_resize(self) -> None:
        """Lays out anew if Textual remembers another height of this width: that of an older text."""
        if self._width and self.content_size.height != len(self._rows_at(self.content_size.width)):
            self.clear_cached_dimensions()
            self.refresh(layout=True)

    def _rows_at(self, width: int) -> list[Row]:
        """Returns the rows; for a width that it has seen before, Textual does not ask for the height."""
        if width and width != self._width:
            self._wrap(width)
        return self._rows

    def render_line(self, y: int) -> Strip:
        base, width = self.visual_style, self.content_size.width
        self._rows_at(width)
        if y >= len(self._rows):
            return Strip.blank(width, base.rich_style)
        text = self._rows[y].text
        for start, end, style in self._marked().get(y, ()):
            text = text.stylize(style, start, end)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            chosen = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            text = text.stylize(chosen, span[0], len(text) if span[1] == -1 else span[1])
        drawn = text.render(base, end="", parse_style=self._get_style)
        strip = Strip([Segment(part, (base + style).rich_style) for part, style in drawn], text.cell_length)
        return strip.apply_offsets(0, y).adjust_cell_length(width, base.rich_style)

    def mark(self, words: str, here: int = -1) -> list[int]:
        """Marks words wherever they are shown; returns the row of each place. here: the place to stress."""
        if self._sought or words:
            self._sought, self._here, self._marks = words, here, None
            self.refresh()
        return [spans[0][0] for spans in places_in(self._rows, words)]

    def _marked(self) -> dict[int, list[tuple[int, int, str]]]:
        if self._marks is None:
            self._marks = {}
            for n, spans in enumerate(places_in(self._rows, self._sought)):
                for y, start, end in spans:
                    mark = (start, end, FOUND_HERE if n == self._here else FOUND)
                    self._marks.setdefault(y, []).append(mark)
        return self._marks

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """Returns the selection as it was written: rows joined, without decoration."""
        text = ""
        for y, row in enumerate(self._rows):
            span = selection.get_span(y)
            if span is None:
                continue
            start, end = span[0], len(row.text) if span[1] == -1 else span[1]
            part = row.text.plain[max(start, row.inset if row.joins is not None else 0) : end]
            joins = "\n" if row.joins is None else row.joins
            text += (joins if text else "") + part
        return text, "\n"
