"""llama.cpp's grammars (GBNF), read: rules of literals, character classes, groups and repetitions.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md says what may be written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from edgespec.errors import GrammarError

DEEPEST = 60  # parentheses in parentheses
MOST_TIMES = 2000  # of a repetition, as in llama.cpp
NAME = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
CODES = {"x": 2, "u": 4, "U": 8}
LAST = 0x10FFFF


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of some. ranges: (first, last) code points, ascending and apart."""

    ranges: tuple[tuple[int, int], ...]

    def __and__(self, other: Chars) -> bool:
        """True where a character is in both."""
        return any(a <= d and c <= b for a, b in self.ranges for c, d in other.ranges)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the grammar, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after another; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Again and again. most: None is without end."""

    part: Node
    least: int
    most: int | None


Node = Chars | Rule | Sequence | Choice | Repeat


def one_of(ranges: list[tuple[int, int]]) -> Chars:
    """Returns a class of characters from ranges in any order."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        else:
            merged.append((low, high))
    return Chars(tuple(merged))


def _all_but(chars: Chars) -> Chars:
    ranges, low = [], 0
    for first, last in chars.ranges:
        ranges.append((low, first - 1))
        low = last + 1
    return Chars(tuple((a, b) for a, b in [*ranges, (low, LAST)] if a <= b))


def read(text: str) -> Mapping[str, Node]:
    """Returns the rules that `root` leads to, by name. Raises GrammarError with the line of a mistake."""
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise GrammarError("the grammar cannot be used: it has no rule named root, where texts begin")
    reached, waiting = {}, ["root"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        if name not in rules:
            raise GrammarError(f"the grammar cannot be used: the rule {name!r} is not defined")
        reached[name] = rules[name]
        waiting += sorted(names_in(rules[name]))
    return reached


def names_in(node: Node) -> set[str]:
    """Returns the rules that a node names."""
    if isinstance(node, Rule):
        return {node.name}
    if isinstance(node, Repeat):
        return names_in(node.part)
    parts = node.parts if isinstance(node, Sequence | Choice) else ()
    return set().union(*(names_in(part) for part in parts))


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._space(lines=True)
        while self._at < len(self._text):
            name = self._name()
            self._space(lines=False)
            if not self._text.startswith("::=", self._at):
                raise self._wrong("::= is expected behind the name of a rule")
            self._at += 3
            self._space(lines=True)
            found[name] = self._choice(nested=False)
            if self._at < len(self._text) and self._next not in "\r\n":
                raise self._wrong("a new line is expected behind a rule")
            self._space(lines=True)
        return found

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _wrong(self, why: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        here = self._text[self._at : self._at + 20].split("\n")[0] or "its end"
        return GrammarError(f"the grammar cannot be used: {why}, in line {line} at {here!r}")

    def _space(self, *, lines: bool) -> None:
        while self._next and self._next in (" \t\r\n" if lines else " \t"):
            self._at += 1
        if self._next == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
            if lines:
                self._space(lines=True)

    def _name(self) -> str:
        found = NAME.match(self._text, self._at)
        if not found:
            raise self._wrong("the name of a rule is expected")
        self._at = found.end()
        return found[0]

    def _choice(self, *, nested: bool) -> Node:
        parts = [self._sequence(nested=nested)]
        while self._next == "|":
            self._at += 1
            self._space(lines=True)
            parts.append(self._sequence(nested=nested))
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while self._next and self._next not in "|)\r\n":
            node = self._item()
            self._space(lines=nested)
            while self._next and self._next in "*+?{":
                node = self._repeated(node)
                self._space(lines=nested)
            parts.append(node)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _item(self) -> Node:
        if self._next == '"':
            return self._literal()
        if self._next == "[":
            return self._class()
        if self._next == ".":
            self._at += 1
            return Chars(((0, LAST),))
        if self._next == "(":
            self._at, self._depth = self._at + 1, self._depth + 1
            if self._depth > DEEPEST:
                raise self._wrong(f"there are more than {DEEPEST} parentheses within each other")
            self._space(lines=True)
            node = self._choice(nested=True)
            if self._next != ")":
                raise self._wrong("a parenthesis is not closed")
            self._at, self._depth = self._at + 1, self._depth - 1
            return node
        if self._next in "<!":
            raise self._wrong("single tokens cannot be named yet; write their text")
        return Rule(self._name())

    def _literal(self) -> Node:
        self._at += 1
        parts = []
        while self._next != '"':
            code = self._character()
            parts.append(Chars(((code, code),)))
        self._at += 1
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _class(self) -> Node:
        self._at += 1
        negated = self._next == "^"
        self._at += negated
        ranges = []
        while self._next != "]":
            low = high = self._character()
            if self._next == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._character()
            if high < low:
                raise self._wrong("a range of characters ends before it begins")
            ranges.append((low, high))
        self._at += 1
        chars = one_of(ranges)
        return _all_but(chars) if negated else chars

    def _character(self) -> int:
        c = self._next
        if not c or c in "\r\n":
            raise self._wrong("a literal or a class is not closed")
        self._at += 1
        if c != "\\":
            return ord(c)
        kind = self._next
        self._at += 1
        if kind in ESCAPES:
            return ord(ESCAPES[kind])
        digits = self._text[self._at : self._at + CODES.get(kind, 0)]
        if not digits or len(digits) < CODES[kind] or not re.fullmatch("[0-9a-fA-F]+", digits):
            self._at -= 2
            raise self._wrong("this escape is not known")
        self._at += len(digits)
        if (code := int(digits, 16)) > LAST or 0xD800 <= code < 0xE000:
            raise self._wrong(f"there is no character {digits}")
        return code

    def _repeated(self, node: Node) -> Node:
        kind, self._at = self._next, self._at + 1
        if kind != "{":
            return Repeat(node, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[kind])
        found = re.compile(r"\s*(\d*)\s*(,?)\s*(\d*)\s*\}").match(self._text, self._at)
        if not found or not (found[1] or found[3]) or (found[3] and not found[2]):
            raise self._wrong("a number of times is expected, as in {2} or {2,5}")
        least = int(found[1] or 0)
        most = int(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MOST_TIMES or (most is not None and most < least):
            raise self._wrong(f"a repetition is from fewer to more times, at most {MOST_TIMES}")
        self._at = found.end()
        return Repeat(node, least, most)
