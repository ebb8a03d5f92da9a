"""llama.cpp's grammars (GBNF), read: rules of literals, character classes, groups and repetitions.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md describes the format. Equal parts of
a grammar are one node, so nodes are compared and hashed by identity, however large they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from edgespec.errors import GrammarError

DEEPEST = 60  # parentheses in parentheses, repetitions of repetitions
MOST_TIMES = 2000  # of a repetition, as in llama.cpp
NAME = re.compile(r"[A-Za-z0-9_-]+")
SPACE = re.compile(r"[ \t]*(#[^\n]*)?")
SPACE_AND_LINES = re.compile(r"([ \t\r\n]+|#[^\n]*)*")
TIMES = re.compile(r"\s*([0-9]*)\s*(,?)\s*([0-9]*)\s*\}")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
CODES = {"x": 2, "u": 4, "U": 8}
LAST = 0x10FFFF


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character out of some. ranges: (first, last) code points, ascending and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GrammarRule:
    """A rule of the grammar, by name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """One after another; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternatives:
    """One of several."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Repetition. most: None is unlimited."""

    part: Node
    least: int
    most: int | None


Node = Chars | GrammarRule | Sequence | Alternatives | Repeat


def merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns ranges in any order as those of a class of characters."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return tuple(found)


def _all_but(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    rest, low = [], 0
    for first, last in ranges:
        rest.append((low, first - 1))
        low = last + 1
    return tuple((a, b) for a, b in [*rest, (low, LAST)] if a <= b)


def read(text: str) -> Mapping[str, Node]:
    """Returns the rules that `root` leads to, by name. Raises GrammarError with the line of a mistake."""
    rules = _Reader(text).rules()
    if "root" not in rules:
        raise GrammarError("the grammar cannot be used: it has no rule named root, the start of the grammar")
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
    found: set[str] = set()
    waiting: list[Node] = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, GrammarRule):
            found.add(one.name)
        elif isinstance(one, Repeat):
            waiting.append(one.part)
        elif isinstance(one, Sequence | Alternatives):
            waiting += one.parts
    return found


class _Nodes:
    """The nodes of one grammar: equal ones are the same node."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Node] = {}

    def chars(self, ranges: tuple[tuple[int, int], ...]) -> Node:
        return self._one((Chars, ranges), lambda: Chars(ranges))

    def rule(self, name: str) -> Node:
        return self._one((GrammarRule, name), lambda: GrammarRule(name))

    def sequence(self, parts: list[Node]) -> Node:
        if len(parts) == 1:
            return parts[0]
        return self._one((Sequence, *map(id, parts)), lambda: Sequence(tuple(parts)))

    def choice(self, parts: list[Node]) -> Node:
        if len(parts) == 1:
            return parts[0]
        return self._one((Alternatives, *map(id, parts)), lambda: Alternatives(tuple(parts)))

    def repeat(self, part: Node, least: int, most: int | None) -> Node:
        if most == 0:  # whatever it is, it is absent
            return self.sequence([])
        return self._one((Repeat, id(part), least, most), lambda: Repeat(part, least, most))

    def _one(self, key: tuple[object, ...], new: Callable[[], Node]) -> Node:
        if key not in self._made:
            self._made[key] = new()
        return self._made[key]


class _Reader:
    """Reads a text from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth, self._nodes = text, 0, 0, _Nodes()

    def rules(self) -> dict[str, Node]:
        found: dict[str, Node] = {}
        self._space(lines=True)
        while self._at < len(self._text):
            name = self._name()
            self._space(lines=False)
            if not self._text.startswith("::=", self._at):
                raise self._wrong("::= is expected after the name of a rule")
            self._at += 3
            self._space(lines=True)
            found[name] = self._choice(nested=False)
            if self._at < len(self._text) and self._next not in "\r\n":
                raise self._wrong("a new line is expected after a rule")
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
        self._at = (SPACE_AND_LINES if lines else SPACE).match(self._text, self._at).end()  # type: ignore[union-attr]

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
        return self._nodes.choice(parts)

    def _sequence(self, *, nested: bool) -> Node:
        parts: list[Node] = []
        while self._next and self._next not in "|)\r\n":
            node = self._item()
            self._space(lines=nested)
            times = 0
            while self._next and self._next in "*+?{":
                times += 1
                if times > DEEPEST:
                    raise self._wrong(f"there are more than {DEEPEST} repetitions of one another")
                node = self._repeated(node)
                self._space(lines=nested)
            parts.append(node)
        return self._nodes.sequence(parts)

    def _item(self) -> Node:
        if self._next == '"':
            return self._literal()
        if self._next == "[":
            return self._class()
        if self._next == ".":
            self._at += 1
            return self._nodes.chars(((0, LAST),))
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
        return self._nodes.rule(self._name())

    def _literal(self) -> Node:
        self._at += 1
        parts = []
        while self._next != '"':
            code = self._character()
            parts.append(self._nodes.chars(((code, code),)))
        self._at += 1
        return self._nodes.sequence(parts)

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
        found = merged(ranges)
        return self._nodes.chars(_all_but(found) if negated else found)

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
            return self._nodes.repeat(node, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[kind])
        found = TIMES.match(self._text, self._at)
        if not found or not (found[1] or found[3]) or (found[3] and not found[2]):
            raise self._wrong("a number of times is expected, as in {2} or {2,5}")
        least = _number(found[1])
        most = _number(found[3]) if found[3] else None if found[2] else least
        if max(least, most or 0) > MOST_TIMES or (most is not None and most < least):
            raise self._wrong(f"a repetition is from fewer to more times, at most {MOST_TIMES}")
        self._at = found.end()
        return self._nodes.repeat(node, least, most)


def _number(digits: str) -> int:
    """Returns a number; one of more than ten digits is cut, and too large even so."""
    return int(digits.lstrip("0")[:10] or 0)
