"""Markdown as blocks, and blocks as rows of a given width: what an answer is drawn from.

Textual's own Markdown makes a widget of every paragraph, bullet and cell, and lays all of them out anew
whenever one grows. Here a block is a value that knows its rows, and many blocks are one widget
(see `answer_body`). A model's text opens nothing: links are underlined and HTML is shown as text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Span
from textual.highlight import highlight

from edgespec_tui.terminal.shown_text import Content, visible
from edgespec_tui.widgets.drawn_rows import MARKS, LineAcross, Listing, Paragraph, Row, Table

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
BULLETS = ("• ", "◦ ", "- ")
QUOTE = "▌ "
HEADINGS = {"h1": "bold underline $primary", "h2": "bold $primary"}
INLINE = {"em_open": "italic", "strong_open": "bold", "s_open": "strike", "link_open": "underline"}
CODE = "$text-warning on $warning 10%"
LINE_END = re.compile("\r\n?|\n")  # as Markdown has it; `splitlines` knows further ones
BREAK = re.compile(r"<br\s*/?>", re.I)


def gap_above(block: Block) -> list[Row]:
    """Returns the row above a block, if it has one."""
    return [] if block.gap is None else [Row(Content.styled(block.gap, MARKS), inset=len(block.gap))]


Block = Paragraph | LineAcross | Table | Listing


def same(one: Block, other: Block) -> bool:
    """Returns whether two blocks look the same."""
    if replace(one, texts=(), at=0) != replace(other, texts=(), at=0) or len(one.texts) != len(other.texts):
        return False
    return all(a.is_same(b) for a, b in zip(one.texts, other.texts, strict=True))


def blocks(source: str, *, gap: bool = False, continued: bool = False) -> list[Block]:
    """Returns a Markdown text as blocks.

    gap: its first block has a row above it. continued: it begins within a code block.
    """
    found = _BlockReader(source).read()
    if found and gap:
        found[0] = replace(found[0], gap="")
    if found and continued and isinstance(found[0], Listing):
        found[0] = replace(found[0], continued=True)
    return found


def lines_of(text: str) -> list[Block]:
    """Returns a text that is not Markdown as blocks, one for each line, so that few are wrapped anew."""
    return [Paragraph((Content(line),)) for line in LINE_END.split(text)]


@dataclass(slots=True)
class _Mark:
    """What comes before the rows of a list's item or of a quote."""

    first: str
    rest: str
    used: bool = False


@dataclass(slots=True)
class _BlockReader:
    """Goes through the tokens of a text once."""

    source: str
    found: list[Block] = field(default_factory=list)
    _marks: list[_Mark] = field(default_factory=list)
    _lists: list[int | None] = field(default_factory=list)  # the next number; None where it has bullets
    _begins: bool = False  # a list that is in no other
    _tight: bool = False
    _style: str = ""

    def read(self) -> list[Block]:
        """Returns the blocks."""
        lines = [0, *(end.end() for end in LINE_END.finditer(self.source)), len(self.source)]
        at = 0
        tokens = iter(MARKDOWN.parse(self.source))
        for token in tokens:
            if token.map:
                at = lines[min(token.map[0], len(lines) - 1)]
            if token.type == "table_open":
                self._table([*takewhile(lambda one: one.type != "table_close", tokens)], at)
            else:
                self._take(token, at)
        return self.found

    def _take(self, token: Token, at: int) -> None:
        name, content = token.type, token.content
        if name == "inline":
            text = inline(token)
            self._add(Paragraph((text.stylize(self._style) if self._style else text,), at=at))
        elif name in ("fence", "code_block"):
            self._code(token, at)
        elif name == "html_block":
            self._add(Paragraph((Content(content.rstrip("\n")),), at=at))
        elif name == "hr":
            self._add(LineAcross(at=at))
        elif name == "paragraph_open":
            self._tight = token.hidden
        elif name == "heading_open":
            self._style = HEADINGS.get(token.tag, "bold")
        elif name == "heading_close":
            self._style = ""
        else:
            self._container(token)

    def _container(self, token: Token) -> None:
        if token.type in ("bullet_list_open", "ordered_list_open"):
            self._begins = self._begins or not self._lists
            ordered = token.type == "ordered_list_open"
            self._lists.append(int(token.attrs.get("start", 1)) if ordered else None)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
        elif token.type == "list_item_open":
            number = self._lists[-1]
            mark = BULLETS[(len(self._lists) - 1) % len(BULLETS)] if number is None else f"{number}. "
            if number is not None:
                self._lists[-1] = number + 1
            self._marks.append(_Mark(mark, " " * len(mark)))
        elif token.type == "blockquote_open":
            self._marks.append(_Mark(QUOTE, QUOTE))
        elif token.type in ("list_item_close", "blockquote_close"):
            if not self._marks[-1].used:  # nothing was in it
                self._add(Paragraph((Content(),)))
            self._marks.pop()

    def _code(self, token: Token, at: int) -> None:
        code = token.content.rstrip("\n")
        language = token.info.split()[0] if token.info.split() else ""
        indent = sum(len(mark.rest) for mark in self._marks)
        self._add(Listing((highlighted(code, language),), code, language, indent, at=at))

    def _table(self, tokens: list[Token], at: int) -> None:
        heads = [str(token.attrs.get("style", "")) for token in tokens if token.type == "th_open"]
        right = frozenset(column for column, style in enumerate(heads) if "right" in style)
        cells = tuple(inline(token) for token in tokens if token.type == "inline")
        self._add(Table(cells, len(heads), right, at=at))

    def _add(self, block: Block) -> None:
        """Adds a block, with its prefix if it is in lists and quotes."""
        inside = "".join(mark.rest for mark in self._marks if mark.used).rstrip()
        gap = inside if self.found and (self._begins or not self._tight) else None
        block = replace(block, gap=gap)
        if isinstance(block, Paragraph):
            first = "".join(mark.rest if mark.used else mark.first for mark in self._marks)
            block = replace(block, first=first, rest="".join(mark.rest for mark in self._marks))
        for mark in self._marks:
            mark.used = True
        self._begins = self._tight = False
        self.found.append(block)


def inline(token: Token) -> Content:
    """Returns the text of a paragraph, a heading or a cell."""
    texts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[str, int]] = []
    at = 0
    for child in token.children or ():
        begins, text = at, ""
        if child.type in ("text", "html_inline", "code_inline", "text_special"):
            text = "\n" if child.type == "html_inline" and BREAK.fullmatch(child.content) else child.content
        elif child.type in ("softbreak", "hardbreak"):
            text = " " if child.type == "softbreak" else "\n"
        elif child.type == "image":
            text = f"[image: {child.content}]" if child.content else "[image]"
        elif child.type in INLINE:
            opened.append((INLINE[child.type], at))
        elif child.type.endswith("_close") and opened:
            style, start = opened.pop()
            spans.append(Span(start, at, style))
        texts.append(text)
        at += len(text)
        if child.type == "code_inline":
            spans.append(Span(begins, at, CODE))
    return Content("".join(texts), spans)


@functools.lru_cache(maxsize=32)
def highlighted(code: str, language: str) -> Content:
    """Returns code in colours; unless it names a language it is left as it is (guessing one takes long)."""
    return highlight(visible(code), language=language or "text")


def code_blocks(text: str) -> list[str]:
    """Returns the fenced and indented code of a Markdown text, in order; an unclosed block counts too."""
    tokens = MARKDOWN.parse(text)
    return [token.content.rstrip("\n") for token in tokens if token.type in ("fence", "code_block")]


def whole_block(text: str, part: str) -> str:
    """Returns the code block of a text that contains this part of it; the part if none does."""
    return next((block for block in code_blocks(text) if part in block), part)


def last_code(answers: Sequence[str]) -> str | None:
    """Returns the newest code block of the answers, oldest first; None if there is none."""
    return next((blocks[-1] for text in reversed(answers) if (blocks := code_blocks(text))), None)
