"""Where a long answer may be cut, so that each piece is Markdown of its own and cheap to draw.

A screen lays out every widget anew when a token comes; and Textual rebuilds the last block of a document
whole. So a document is shown in segments, and only the last one grows. A cut is made where reading goes on
unbroken: before a top-level block, before an item of a long list, or inside a long code block, which is
opened again in the next segment.
"""

from __future__ import annotations

from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token

MOST_BLOCKS = 16
MOST_ITEMS = 12
MOST_CODE_LINES = 80
LOOK_EVERY = 600  # characters: how often a growing segment is looked at


@dataclass(frozen=True, slots=True)
class Cut:
    """offset: where the next segment begins, in characters. prefix: what it needs in front; see `Segment`."""

    offset: int
    prefix: str = ""


def find_cut(source: str) -> Cut | None:
    """Returns where a growing segment should be cut; None where it is short enough, or cannot be."""
    tokens = MarkdownIt("gfm-like").parse(source)
    top = [token for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    if not top:
        return None
    lines = source.splitlines(keepends=True)
    last = top[-1]
    assert last.map is not None
    if len(top) > MOST_BLOCKS:
        return Cut(_offset(lines, last.map[0]))
    if last.type == "fence" and last.map[1] - last.map[0] > MOST_CODE_LINES:
        return _in_code(lines, last)
    if last.type in ("bullet_list_open", "ordered_list_open"):
        items = [t for t in tokens[tokens.index(last) :] if t.type == "list_item_open" and t.level == 1]
        if len(items) > MOST_ITEMS and items[-1].map:
            return Cut(_offset(lines, items[-1].map[0]))
    return None


def _in_code(lines: list[str], fence: Token) -> Cut | None:
    """Cuts an open code block before its last line that is still being written."""
    assert fence.map is not None
    body = lines[fence.map[0] + 1 :]
    if body and body[-1].strip().startswith(fence.markup):  # it is closed: the next block will be the cut
        return None
    return Cut(_offset(lines, len(lines) - 1), prefix=f"{fence.markup}{fence.info}\n")


def _offset(lines: list[str], line: int) -> int:
    return sum(map(len, lines[:line]))


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a text. start: its offset. prefix: opens again what the cut went through."""

    start: int
    prefix: str
    text: str

    @property
    def source(self) -> str:
        return self.prefix + self.text


def segments(text: str) -> list[Segment]:
    """Returns a whole text in segments, as streaming it would have cut it."""
    found, start, prefix, size, looked = [], 0, "", 0, 0
    for line in text.splitlines(keepends=True):
        size += len(line)
        if size - looked < LOOK_EVERY:
            continue
        looked = size
        if (cut := find_cut(prefix + text[start:size])) and cut.offset > len(prefix):
            at = start + cut.offset - len(prefix)
            found.append(Segment(start, prefix, text[start:at]))
            start, prefix = at, cut.prefix
    found.append(Segment(start, prefix, text[start:]))
    return found
