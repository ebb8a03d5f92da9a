"""GBNF -> what llguidance reads, with exactly the same texts.

llguidance cuts a text into lexemes, each a regular expression, and takes the longest that fits; what GBNF
allows only with a shorter one would be lost. So a part of a grammar becomes a lexeme only where that cannot
happen: no character with which a lexeme could go on may also follow it. Where it could, the part is taken
apart, down to single characters, which are slower to follow and never ambiguous. A grammar without
recursion is one regular expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edgespec.gbnf import LAST, Chars, Choice, Node, Repeat, Rule, Sequence, names_in, one_of, read

LONGEST_LEXEME = 20_000  # characters of a regular expression
NONE = Chars(())


def as_lark(text: str) -> str:
    """Returns a Lark grammar, whose `start` is the GBNF's `root`. Raises GrammarError."""
    rules = read(text)
    return _Translation(rules).text()


def _union(*sets: Chars) -> Chars:
    return one_of([piece for chars in sets for piece in chars.ranges])


@dataclass(slots=True)
class _Lexeme:
    """A part of the grammar as a regular expression, and with what it begins and goes on."""

    regex: str
    first: Chars
    last: Chars  # may come behind a whole match and belong to it
    inner: Chars  # may come behind its beginning
    empty: bool  # may be the empty text
    follow: Chars = field(default=NONE)


class _Translation:
    """One grammar on its way to Lark."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules = rules
        self._regular = _regular(rules)
        self._apart: set[Node] = set()  # parts that may be no lexeme
        self._lexemes: dict[Node, _Lexeme | None] = {}

    def text(self) -> str:
        while True:
            used = self._follows()
            wrong = _ambiguous(used)
            if not wrong:
                break
            self._apart |= wrong
        names = {name: f"rule_{i}" for i, name in enumerate(self._rules)} | {"root": "start"}
        return "".join(
            f"{names[name]}: {self._written(node, names)}\n"
            for name, node in self._rules.items()
            if name == "root" or name in self._used
        )

    # ---- lexemes -------------------------------------------------------------------------------------

    def _lexeme(self, node: Node) -> _Lexeme | None:
        """Returns a part as a lexeme; None where it is none."""
        return None if node in self._apart else self._inner(node)

    def _made(self, node: Node) -> _Lexeme | None:
        if isinstance(node, Chars):
            return _Lexeme(_class(node), node, NONE, NONE, False)
        if isinstance(node, Rule):
            return self._inner(self._rules[node.name])
        if isinstance(node, Repeat):
            return self._repeated(node)
        parts = [self._inner(part) for part in node.parts]
        made = [part for part in parts if part is not None]
        if len(made) < len(parts):
            return None
        return _chosen(made) if isinstance(node, Choice) else _joined(made)

    def _inner(self, node: Node) -> _Lexeme | None:
        """Returns the same of a part of a lexeme, where nothing needs to be taken apart."""
        if node not in self._lexemes:
            made = self._made(node) if names_in(node) <= self._regular else None
            self._lexemes[node] = made if made and len(made.regex) <= LONGEST_LEXEME else None
        return self._lexemes[node]

    def _repeated(self, node: Repeat) -> _Lexeme | None:
        part = self._inner(node.part)
        if part is None:
            return None
        most = "" if node.most is None else str(node.most)
        again = part.first if node.most != 1 and node.most != 0 else NONE
        last = _union(part.last, again)
        empty = part.empty or node.least == 0
        return _Lexeme(
            f"({part.regex}){{{node.least},{most}}}", part.first, last, _union(part.inner, again), empty
        )

    # ---- what follows --------------------------------------------------------------------------------

    def _follows(self) -> dict[Node, _Lexeme]:
        """Returns the lexemes that the grammar is made of now, each with what may follow it."""
        self._first = {name: NONE for name in self._rules}
        self._empty = {name: False for name in self._rules}
        behind = {name: NONE for name in self._rules}
        changed = True
        while changed:
            changed = False
            for name, node in self._rules.items():
                known = self._first[name], self._empty[name]
                self._first[name] = _union(self._first[name], self._begins(node))
                self._empty[name] = self._may_be_empty(node)
                changed = changed or known != (self._first[name], self._empty[name])
        changed = True
        self._used: set[str] = set()
        found: dict[Node, _Lexeme] = {}
        while changed:
            changed = False
            for name in [name for name in self._rules if name == "root" or name in self._used]:
                for part, follow in self._walk(self._rules[name], behind[name]):
                    if (lexeme := self._lexeme(part)) is not None:
                        kept = found.setdefault(part, lexeme)
                        wider = _union(kept.follow, follow)
                        changed, kept.follow = changed or wider != kept.follow, wider
                    elif isinstance(part, Rule):
                        wider = _union(behind[part.name], follow)
                        changed = changed or wider != behind[part.name] or part.name not in self._used
                        behind[part.name] = wider
                        self._used.add(part.name)
        return found

    def _begins(self, node: Node) -> Chars:
        if (lexeme := self._lexeme(node)) is not None:
            return lexeme.first
        if isinstance(node, Rule):
            return self._first[node.name]
        if isinstance(node, Repeat):
            return self._begins(node.part)
        assert isinstance(node, Choice | Sequence)
        found = NONE
        for part in node.parts:
            found = _union(found, self._begins(part))
            if isinstance(node, Sequence) and not self._may_be_empty(part):
                break
        return found

    def _may_be_empty(self, node: Node) -> bool:
        if (lexeme := self._lexeme(node)) is not None:
            return lexeme.empty
        if isinstance(node, Rule):
            return self._empty[node.name]
        if isinstance(node, Repeat):
            return node.least == 0 or self._may_be_empty(node.part)
        assert isinstance(node, Choice | Sequence)
        kind = any if isinstance(node, Choice) else all
        return kind(self._may_be_empty(part) for part in node.parts)

    def _walk(self, node: Node, follow: Chars) -> Iterator[tuple[Node, Chars]]:
        """Yields lexemes and rules of a node, with what may follow each."""
        if self._lexeme(node) is not None or isinstance(node, Rule | Chars):
            yield node, follow
        elif isinstance(node, Repeat):
            yield from self._walk(node.part, _union(follow, self._begins(node.part)))
        elif isinstance(node, Choice):
            for part in node.parts:
                yield from self._walk(part, follow)
        else:
            for part in reversed(node.parts):
                yield from self._walk(part, follow)
                begins = self._begins(part)
                follow = _union(follow, begins) if self._may_be_empty(part) else begins

    # ---- writing -------------------------------------------------------------------------------------

    def _written(self, node: Node, names: Mapping[str, str]) -> str:
        if (lexeme := self._lexeme(node)) is not None:
            return f"/{lexeme.regex}/" if lexeme.regex != "()" else '""'
        if isinstance(node, Rule):
            return names[node.name]
        if isinstance(node, Repeat):
            most = "" if node.most is None else str(node.most)
            return f"({self._written(node.part, names)}){{{node.least},{most}}}"
        assert isinstance(node, Choice | Sequence)
        parts = [self._written(part, names) for part in node.parts]
        return f"({' | '.join(parts)})" if isinstance(node, Choice) else f"({' '.join(parts)})"


def _regular(rules: Mapping[str, Node]) -> set[str]:
    """Returns the rules that lead to no recursion."""
    found: set[str] = set()
    while True:
        more = {name for name, node in rules.items() if name not in found and names_in(node) <= found}
        if not more:
            return found
        found |= more


def _ambiguous(used: Mapping[Node, _Lexeme]) -> set[Node]:
    """Returns the lexemes whose longest match might take what belongs to the next."""
    wrong = {
        node
        for node, lexeme in used.items()
        if lexeme.last & lexeme.follow or (lexeme.empty and lexeme.first & lexeme.follow)
    }
    for node, long in used.items():
        others = (short for other, short in used.items() if other != node)
        if any(short.first & long.first and long.inner & short.follow for short in others):
            wrong.add(node)
    return wrong


def _chosen(parts: list[_Lexeme]) -> _Lexeme:
    """Returns one of several; what is whole in one may be the beginning of another."""
    inner = _union(*(part.inner for part in parts))
    return _Lexeme(
        f"({'|'.join(part.regex for part in parts)})" if parts else "()",
        _union(*(part.first for part in parts)),
        _union(*(part.last for part in parts), inner),
        inner,
        any(part.empty for part in parts),
    )


def _joined(parts: list[_Lexeme]) -> _Lexeme:
    """Returns one after another."""
    first = last = inner = NONE
    empty = True
    for part in parts:
        inner = _union(inner, part.inner, NONE if empty and first == NONE else part.first)
        last = _union(part.last, _union(last, part.first) if part.empty else NONE)
        first = _union(first, part.first) if empty else first
        empty = empty and part.empty
    return _Lexeme("".join(part.regex for part in parts) or "()", first, last, inner, empty)


def _class(chars: Chars) -> str:
    """Returns a class of characters, every one by its number."""
    if not chars.ranges:
        return "[^\\u{0}-\\u{10FFFF}]"
    if chars.ranges == ((0, LAST),):
        return "(.|\\n)"
    spans = (f"\\u{{{a:X}}}" + (f"-\\u{{{b:X}}}" if b > a else "") for a, b in chars.ranges)
    return f"[{''.join(spans)}]"
