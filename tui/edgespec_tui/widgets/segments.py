"""Where a long answer may be cut, so that each piece is Markdown of its own and cheap to draw.

A screen lays out every widget anew when a token comes; and Textual rebuilds the last block of a document
whole. So a document is shown in segments, and only the last one grows. A cut is made where reading is
not interrupted: before a top-level block, before an item of a long list, or in a long code block, which is
opened again in the next segment.
"""

import re
from dataclasses import dataclass

from markdown_it.token import Token

from edgespec_tui.widgets.markdown_blocks import MARKDOWN

MOST_BLOCKS = 8
MOST_ITEMS = 8
MOST_CODE_LINES = 60
MOST_ROWS = 40  # of a table
MOST_CHARACTERS = 3000  # of a paragraph
WINDOW = 8000  # characters that are searched for one cut
WITH_END = re.compile("[^\r\n]*(?:\r\n?|\n|$)")  # a line as Markdown has it
LOOK_EVERY = 600  # characters: how often a growing segment is searched


def find_cut(source: str) -> tuple[int, str]:
    """Returns where a segment should be cut first, in characters, and the prefix of the next (`Segment`).

    0 if it is short enough, or cannot be cut.
    """
    source = source[:WINDOW]
    tokens = MARKDOWN.parse(source)
    top = [token for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    lines = [line for line in WITH_END.findall(source) if line]
    for number, token in enumerate(top):
        assert token.map is not None
        if number >= MOST_BLOCKS:
            return _offset(lines, token.map[0]), ""
        if token.type == "fence" and token.map[1] - token.map[0] > MOST_CODE_LINES + 2:
            return _offset(lines, token.map[0] + 1 + MOST_CODE_LINES), f"{token.markup}{token.info}\n"
        if token.type in ("bullet_list_open", "ordered_list_open"):
            items = [item for item in tokens[tokens.index(token) + 1 :] if _is_item_of(item, token)]
            if len(items) > MOST_ITEMS and (lines_of_item := items[MOST_ITEMS].map):
                return _offset(lines, lines_of_item[0]), ""
        if token.type == "table_open" and token.map[1] - token.map[0] > MOST_ROWS + 2:
            head = "".join(lines[token.map[0] : token.map[0] + 2])
            return _offset(lines, token.map[0] + 2 + MOST_ROWS), head
        if token.type == "paragraph_open" and (at := _cut_in_words(source, lines, token.map)):
            return at, ""
    return 0, ""


def _cut_in_words(source: str, lines: list[str], where: list[int]) -> int:
    """Returns where the last word begins that may stay in a paragraph; 0 if that is not too long."""
    start, end = _offset(lines, where[0]), _offset(lines, where[1])
    at = source.rfind(" ", start, start + MOST_CHARACTERS) + 1
    return at if end - start > MOST_CHARACTERS and at > start else 0


def _is_item_of(item: Token, list_: Token) -> bool:
    if item.type != "list_item_open" or item.level != 1 or item.map is None or list_.map is None:
        return False
    return list_.map[0] <= item.map[0] < list_.map[1]


def _offset(lines: list[str], line: int) -> int:
    return sum(map(len, lines[:line]))


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a text."""

    start: int  # its offset
    prefix: str  # opens again what the cut went through
    text: str

    @property
    def source(self) -> str:
        return self.prefix + self.text


def cut_of(segment: Segment) -> tuple[Segment, Segment] | None:
    """Returns a segment in two, the first as long as one may be; None if it is no longer."""
    if len(segment.text) < LOOK_EVERY:
        return None
    offset, prefix = find_cut(segment.source)
    at = offset - len(segment.prefix)
    if not 0 < at < len(segment.text):
        return None
    done = Segment(segment.start, segment.prefix, segment.text[:at])
    return done, Segment(segment.start + at, prefix, segment.text[at:])
