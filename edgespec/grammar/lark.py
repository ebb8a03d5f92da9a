"""GBNF -> llguidance's format, with exactly the same texts.

llguidance splits a text into lexemes, each a regular expression, and takes the longest that fits; what GBNF
allows only with a shorter one would be lost. So a part of a grammar becomes a lexeme only if that cannot
happen: no character with which a lexeme could continue may also follow it. Otherwise the part is split,
down to single characters, which are slower to follow and never ambiguous. A grammar without
recursion is one regular expression.

Sets of characters are the bits of a number: one for each stretch of characters that the grammar never tells
apart. So a list of thousands of words costs in proportion to its length.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping

from edgespec.grammar.gbnf import (
    Alternatives,
    Chars,
    GrammarRule,
    Node,
    Repeat,
    Sequence,
    names_in,
    read,
)
from edgespec.grammar.lexeme import Lexeme, chosen, class_of, joined

LONGEST_LEXEME = 100_000  # characters of a regular expression: a list of ten thousand words


def as_lark(text: str) -> str:
    """Returns a Lark grammar, whose `start` is the GBNF's `root`. Raises GrammarError."""
    rules = read(text)
    return _Translation(rules).text()


class _Sets:
    """The characters that a grammar names, as bits. Characters that no class distinguishes share one."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        edges = {0}
        for node in _all_chars(rules):
            for low, high in node.ranges:
                edges |= {low, high + 1}
        self._edges = sorted(edges)
        self._known: dict[Chars, int] = {}

    def bits(self, chars: Chars) -> int:
        """Returns the set of a class of characters."""
        if chars not in self._known:
            found = 0
            for low, high in chars.ranges:
                first = bisect.bisect_left(self._edges, low)
                behind = bisect.bisect_left(self._edges, high + 1)
                found |= (1 << behind) - (1 << first)
            self._known[chars] = found
        return self._known[chars]


def _all_chars(rules: Mapping[str, Node]) -> Iterator[Chars]:
    waiting, seen = list(rules.values()), set[Node]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Chars):
            yield node
        elif isinstance(node, Repeat):
            waiting.append(node.part)
        elif isinstance(node, Sequence | Alternatives):
            waiting += node.parts


class _Translation:
    """A grammar during its conversion to Lark."""

    def __init__(self, rules: Mapping[str, Node]) -> None:
        self._rules, self._sets = rules, _Sets(rules)
        self._apart: set[Node] = set()  # parts that may be no lexeme
        self._lexemes: dict[Node, Lexeme | None] = {}
        regular, self._order = _regular_first(rules)
        self._regular = set(regular)
        for name in regular:  # so that no rule is searched through another: chains may be long
            self._inner(rules[name])

    def text(self) -> str:
        while True:
            used = self._follows()
            wrong = _ambiguous(used)
            if not wrong:
                break
            for node in wrong:
                self._take_apart(node)
        names = {name: f"rule_{i}" for i, name in enumerate(self._rules)} | {"root": "start"}
        return "".join(
            f"{names[name]}: {self._written(node, names)}\n"
            for name, node in self._rules.items()
            if name == "root" or name in self._used
        )

    # ---- lexemes -------------------------------------------------------------------------------------

    def _lexeme(self, node: Node) -> Lexeme | None:
        """Returns a part as a lexeme; None unless it is one."""
        return None if node in self._apart else self._inner(node)

    def _take_apart(self, node: Node) -> None:
        """Makes a part no lexeme, nor the rules that it only names."""
        while node not in self._apart:
            self._apart.add(node)
            if isinstance(node, GrammarRule):
                node = self._rules[node.name]

    def _inner(self, node: Node) -> Lexeme | None:
        """Returns the same of a part of a lexeme, if nothing needs to be split."""
        if node not in self._lexemes:
            made = self._made(node)
            self._lexemes[node] = made if made and len(made.regex) <= LONGEST_LEXEME else None
        return self._lexemes[node]

    def _made(self, node: Node) -> Lexeme | None:
        if isinstance(node, Chars):
            return Lexeme(class_of(node), self._sets.bits(node), 0, 0, False)
        if isinstance(node, GrammarRule):
            return self._inner(self._rules[node.name]) if node.name in self._regular else None
        if isinstance(node, Repeat):
            return self._repeated(node)
        made = []
        length = 0
        for part in node.parts:
            lexeme = self._inner(part)
            length += len(lexeme.regex) if lexeme else 0
            if lexeme is None or length > LONGEST_LEXEME:
                return None
            made.append(lexeme)
        return chosen(made) if isinstance(node, Alternatives) else joined(made)

    def _repeated(self, node: Repeat) -> Lexeme | None:
        part = self._inner(node.part)
        if part is None:
            return None
        most = "" if node.most is None else str(node.most)
        again = part.first if node.most != 1 else 0
        regex = f"({part.regex}){{{node.least},{most}}}"
        empty = part.empty or node.least == 0
        return Lexeme(regex, part.first, part.last | again, part.inner | again, empty)

    # ---- what follows --------------------------------------------------------------------------------

    def _follows(self) -> dict[Node, Lexeme]:
        """Returns the grammar's current lexemes, each with what may follow it."""
        self._first = dict.fromkeys(self._rules, 0)
        self._empty = dict.fromkeys(self._rules, False)
        changed = True
        while changed:
            changed = False
            for name in self._order:  # mostly after those that it names, so that few rounds do
                node, known = self._rules[name], (self._first[name], self._empty[name])
                self._first[name] |= self._begins(node)
                self._empty[name] = self._may_be_empty(node)
                changed = changed or known != (self._first[name], self._empty[name])
        behind = dict.fromkeys(self._rules, 0)
        self._used: set[str] = set()
        found: dict[Node, Lexeme] = {}
        changed = True
        while changed:
            changed = False
            for name in reversed(self._order):
                if name != "root" and name not in self._used:
                    continue
                for part, follow in self._walk(self._rules[name], behind[name]):
                    if (lexeme := self._lexeme(part)) is not None:
                        if part not in found:
                            lexeme.follow = 0
                        kept = found.setdefault(part, lexeme)
                        wider = kept.follow | follow
                        changed, kept.follow = changed or wider != kept.follow, wider
                    elif isinstance(part, GrammarRule):
                        wider = behind[part.name] | follow
                        changed = changed or wider != behind[part.name] or part.name not in self._used
                        behind[part.name] = wider
                        self._used.add(part.name)
        return found

    def _begins(self, node: Node) -> int:
        if (lexeme := self._lexeme(node)) is not None:
            return lexeme.first
        if isinstance(node, GrammarRule):
            return self._first[node.name]
        if isinstance(node, Repeat):
            return self._begins(node.part)
        assert isinstance(node, Alternatives | Sequence)
        found = 0
        for part in node.parts:
            found |= self._begins(part)
            if isinstance(node, Sequence) and not self._may_be_empty(part):
                break
        return found

    def _may_be_empty(self, node: Node) -> bool:
        if (lexeme := self._lexeme(node)) is not None:
            return lexeme.empty
        if isinstance(node, GrammarRule):
            return self._empty[node.name]
        if isinstance(node, Repeat):
            return node.least == 0 or self._may_be_empty(node.part)
        assert isinstance(node, Alternatives | Sequence)
        kind = any if isinstance(node, Alternatives) else all
        return kind(self._may_be_empty(part) for part in node.parts)

    def _walk(self, node: Node, follow: int) -> Iterator[tuple[Node, int]]:
        """Yields lexemes and rules of a node, with what may follow each."""
        if self._lexeme(node) is not None or isinstance(node, GrammarRule | Chars):
            yield node, follow
        elif isinstance(node, Repeat):
            yield from self._walk(node.part, follow | self._begins(node.part))
        elif isinstance(node, Alternatives):
            for part in node.parts:
                yield from self._walk(part, follow)
        else:
            for part in reversed(node.parts):
                yield from self._walk(part, follow)
                begins = self._begins(part)
                follow = follow | begins if self._may_be_empty(part) else begins

    # ---- writing -------------------------------------------------------------------------------------

    def _written(self, node: Node, names: Mapping[str, str]) -> str:
        if (lexeme := self._lexeme(node)) is not None:
            return f"/{lexeme.regex}/" if lexeme.regex != "()" else '""'
        if isinstance(node, GrammarRule):
            return names[node.name]
        if isinstance(node, Repeat):
            most = "" if node.most is None else str(node.most)
            return f"({self._written(node.part, names)}){{{node.least},{most}}}"
        assert isinstance(node, Alternatives | Sequence)
        parts = [self._written(part, names) for part in node.parts]
        return f"({' | '.join(parts)})" if isinstance(node, Alternatives) else f"({' '.join(parts)})"


def _regular_first(rules: Mapping[str, Node]) -> tuple[list[str], list[str]]:
    """Returns the rules that lead to no recursion, each after those it names; and all, these first."""
    names = {name: names_in(node) for name, node in rules.items()}
    named_by: defaultdict[str, list[str]] = defaultdict(list)
    for name, found in names.items():
        for other in found:
            named_by[other].append(name)
    missing = {name: len(found) for name, found in names.items()}
    regular = [name for name, n in missing.items() if n == 0]
    for name in regular:  # it grows in the loop
        for other in named_by[name]:
            missing[other] -= 1
            if not missing[other]:
                regular.append(other)
    known = set(regular)
    return regular, [*regular, *(name for name in reversed(list(rules)) if name not in known)]


def _ambiguous(used: Mapping[Node, Lexeme]) -> list[Node]:
    """Returns the lexemes whose longest match might take what belongs to the next."""
    by_follow: defaultdict[int, list[Lexeme]] = defaultdict(list)
    for lexeme in used.values():
        by_follow[lexeme.follow].append(lexeme)
    firsts = dict.fromkeys(by_follow, 0)
    for follow, group in by_follow.items():
        for lexeme in group:
            firsts[follow] |= lexeme.first

    def takes_from_others(long: Lexeme) -> bool:
        """Returns whether it might continue where a shorter one has ended."""
        return any(
            long.inner & follow
            and long.first & first
            and any(short.first & long.first and short is not long for short in by_follow[follow])
            for follow, first in firsts.items()
        )

    return [
        node
        for node, lexeme in used.items()
        if lexeme.last & lexeme.follow
        or (lexeme.empty and lexeme.first & lexeme.follow)
        or takes_from_others(lexeme)
    ]
