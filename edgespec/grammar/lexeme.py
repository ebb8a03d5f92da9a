"""Lexemes: parts of a grammar as regular expressions, with the sets of characters around them."""

from dataclasses import dataclass, field

from edgespec.grammar.gbnf import (
    LAST,
    Chars,
)


@dataclass(slots=True)
class Lexeme:
    """A part of the grammar as a regular expression, and the sets of characters around it."""

    regex: str
    first: int
    last: int  # may follow a whole match and belong to it
    inner: int  # may follow its beginning
    empty: bool  # may be the empty text
    follow: int = field(default=0)


def chosen(parts: list[Lexeme]) -> Lexeme:
    """Returns one of several; what is whole in one may be the beginning of another."""
    first = last = inner = 0
    for part in parts:
        first, last, inner = first | part.first, last | part.last, inner | part.inner
    regex = f"({'|'.join(part.regex for part in parts)})" if parts else "()"
    return Lexeme(regex, first, last | inner, inner, any(part.empty for part in parts))


def joined(parts: list[Lexeme]) -> Lexeme:
    """Returns one after another."""
    first = last = inner = 0
    empty = True
    for part in parts:
        inner |= part.inner | (0 if empty and not first else part.first)
        last = part.last | (last | part.first if part.empty else 0)
        first = first | part.first if empty else first
        empty = empty and part.empty
    return Lexeme("".join(part.regex for part in parts) or "()", first, last, inner, empty)


def class_of(chars: Chars) -> str:
    """Returns a class of characters, every one by its number but for single letters and digits."""
    if not chars.ranges:
        return "[^\\u{0}-\\u{10FFFF}]"
    if chars.ranges == ((0, LAST),):
        return "(.|\\n)"
    (low, high), *more = chars.ranges
    if low == high and not more and chr(low).isalnum() and chr(low).isascii():
        return chr(low)
    spans = (f"\\u{{{a:X}}}" + (f"-\\u{{{b:X}}}" if b > a else "") for a, b in chars.ranges)
    return f"[{''.join(spans)}]"
