"""Blocks of a text as rows of a given width."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from edgespec_tui.terminal.shown_text import Content

MARKS = "$text-primary"
MUTED = "$text 60%"  # $text-muted is not a colour that a text can have
COLUMNS = " │ "
CROSSING = "─┼─"
NARROWEST = 4  # cells of a column


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the screen."""

    text: Content
    inset: int = 0  # number of leading characters that are decoration
    joins: str | None = None  # with what it continues the row above: " " or ""; None begins a line


def places_in(rows: Sequence[Row], words: str) -> list[list[tuple[int, int, int]]]:
    """Returns where rows show words, in any case: (row, start, end), several for a wrapped place."""
    whole = ""
    places: list[tuple[int, int]] = []  # (row, column) of each character of `whole`; -1: between rows
    for y, row in enumerate(rows):
        start = row.inset if row.joins is not None else 0
        joins = "\n" if row.joins is None else row.joins
        shown = joins + row.text.plain[start:]
        whole += shown
        places += [(y, -1)] * len(joins) + [(y, start + i) for i in range(len(shown) - len(joins))]
    found = []
    for match in re.finditer(re.escape(words), whole, re.IGNORECASE) if words else ():
        spans: dict[int, list[int]] = {}
        for y, at in places[match.start() : match.end()]:
            if at >= 0:
                spans.setdefault(y, []).append(at)
        found.append([(y, at[0], at[-1] + 1) for y, at in spans.items()])
    return found


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A running text."""

    texts: tuple[Content, ...]
    first: str = ""  # what comes before its first row and its others (bullets, quotes)
    rest: str = ""
    gap: str | None = None  # a row above it, None if there is none
    at: int = 0  # where it begins in the source, in characters

    def rows(self, width: int) -> Iterator[Row]:
        """Yields its rows."""
        room = max(1, width - len(self.rest))
        head, joins = self.first, None
        for line in self.texts[0].split("\n", allow_blank=True):
            for part in line.wrap(room):
                yield Row(Content.styled(head, MARKS) + part if head else part, len(head), joins)
                head, joins = self.rest, " "
            joins = None


@dataclass(frozen=True, slots=True)
class LineAcross:
    """A line across."""

    texts: tuple[Content, ...] = ()
    gap: str | None = None
    at: int = 0

    def rows(self, width: int) -> Iterator[Row]:
        """Yields its row."""
        yield Row(Content.styled("─" * width, MUTED), inset=width)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells, row after row, the first of them the head. right: the columns that are aligned so."""

    texts: tuple[Content, ...]
    columns: int
    right: frozenset[int] = frozenset()
    gap: str | None = None
    at: int = 0

    def rows(self, width: int) -> Iterator[Row]:
        """Yields its rows; wraps cells if the table is too wide."""
        lines = [self.texts[i : i + self.columns] for i in range(0, len(self.texts), self.columns)]
        widths = [max(cell.cell_length for cell in column) for column in zip(*lines, strict=True)]
        while sum(widths) + len(COLUMNS) * (self.columns - 1) > width and max(widths) > NARROWEST:
            widths[widths.index(max(widths))] -= 1
        for number, line in enumerate(lines):
            yield from self._line([cell.stylize("bold") for cell in line] if not number else line, widths)
            if not number:
                yield Row(Content.styled(CROSSING.join("─" * n for n in widths), MUTED))

    def _line(self, cells: Sequence[Content], widths: Sequence[int]) -> Iterator[Row]:
        wrapped = [cell.wrap(max(1, n)) for cell, n in zip(cells, widths, strict=True)]
        for i in range(max(map(len, wrapped))):
            parts = []
            for column, (rows, n) in enumerate(zip(wrapped, widths, strict=True)):
                part = rows[i] if i < len(rows) else Content()
                parts.append(part.right(n) if column in self.right else part.truncate(n, pad=True))
            yield Row(Content.styled(COLUMNS, MUTED).join(parts))


@dataclass(frozen=True, slots=True)
class Listing:
    """Code."""

    texts: tuple[Content, ...]
    code: str
    language: str = ""
    indent: int = 0  # cells before it
    continued: bool = False  # its beginning is elsewhere, so it has no head
    gap: str | None = None
    at: int = 0

    def rows(self, width: int) -> Iterator[Row]:
        """Yields its rows: its language, and the code, folded if it is too wide."""
        if not self.continued:
            head = Content.styled(f"{self.language or 'text'}  copy: c or click", MUTED)
            yield Row(head.truncate(width, ellipsis=True), inset=len(head))
        for line in self.texts[0].split("\n", allow_blank=True):
            line = line.expand_tabs(4)
            found = folds(line.plain, width)
            ends = sorted({at for start, end, _ in found for at in (start, end) if 0 < at < len(line)})
            parts = dict(zip([0, *ends], line.divide(ends), strict=True))
            for start, _, joins in found:
                yield Row(parts.get(start, Content()), joins=joins)


def folds(text: str, width: int) -> list[tuple[int, int, str | None]]:
    """Returns the rows of a line of code: from where to where, and what joins each to the row above.

    A row ends after a word if one ends in its right half; the space after its last column is not shown.
    """
    found: list[tuple[int, int, str | None]] = []
    start, used, word = 0, 0, 0  # word: after the last space
    joins: str | None = None
    for i, character in enumerate(text):
        size = cell_len(character)
        if used + size > width and i > start:
            at = i if character == " " else word if word - start > width // 2 else i
            found.append((start, at, joins))
            joins = " " if character == " " else ""
            start = at + len(joins)
            used = cell_len(text[start:i])
            size = 0 if character == " " else size
        used += size
        if character == " ":
            word = i + 1
    return [*found, (start, len(text), joins)]
