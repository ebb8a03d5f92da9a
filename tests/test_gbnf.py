"""A GBNF grammar allows exactly its texts, however llguidance splits them into lexemes.

The texts of a grammar are found again by deriving all of them up to a length, without lexemes.
"""

from __future__ import annotations

import inspect
import itertools
import sys

import numpy as np
import pytest

from edgespec.errors import GrammarError
from edgespec.grammar.gbnf import Alternatives, Chars, GrammarRule, Node, Repeat, Sequence, read
from edgespec.grammar.grammar import Grammar
from edgespec.grammar.lark import LONGEST_LEXEME, as_lark
from edgespec.grammar.matchers import Matchers
from edgespec.sampling.masks import Masks

ALPHABET = "abc x"
LENGTH = 5
END = 5
letters = Matchers(lambda shown: [c.encode() for c in ALPHABET] + [b""], frozenset({END}), END + 1)
every = Matchers(lambda shown: [bytes([i]) for i in range(256)] + [b""], frozenset({256}), 257)
GRAMMARS = {
    "max munch": 'root ::= "a" "b" "c" | "ab" "x" root?',
    "greedy number": 'root ::= num unit root | ""\nnum ::= [ab]+\nunit ::= [a] "x"',
    "words": 'root ::= word (" " word)* root | "x"\nword ::= [a-c]+',
    "optional space": 'root ::= ws "a" ws root | ws "b"\nws ::= " "? " "?',
    "spaces that touch": 'root ::= "a" ws ws root | "x"\nws ::= " "{0,2}',
    "prefixes": 'root ::= ("a" | "ab" | "abc") root | "x"',
    "nested": 'root ::= "a" root "b" | "c"',
    "left": 'root ::= root "a" | "b"',
    "counts": 'root ::= ("a" | "bc"){2,3} "x"{0,1} | "c" root',
    "nested counts": 'root ::= (("a"?){2}){1,2} "b" | "x" root',
    "negated": 'root ::= [^a-c]+ "a" | "b" root',
    "regular": 'root ::= "a" ("b" | "bc")* [c-x]',
    "empty": 'root ::= "" | "a" root "a"',
    "string": 'root ::= "a" ([^ax] | "x" [ax])* "a" root | "b"',
}


def texts(rules: dict[str, Node], node: Node, known: dict[str, set[str]]) -> set[str]:
    """Returns the texts of a node up to a length, as far as the rules' own are known."""
    if isinstance(node, Chars):
        return {c for c in ALPHABET if any(a <= ord(c) <= b for a, b in node.ranges)}
    if isinstance(node, GrammarRule):
        return known[node.name]
    if isinstance(node, Alternatives):
        return set().union(*(texts(rules, part, known) for part in node.parts))
    if isinstance(node, Repeat):
        one, found, now = texts(rules, node.part, known), set(), {""}
        for times in itertools.count():
            if times >= node.least:
                if now <= found and times > node.least:
                    return found
                found |= now
            if times == node.most:
                return found
            now = {a + b for a in now for b in one if len(a + b) <= LENGTH}
    assert isinstance(node, Sequence)
    now = {""}
    for part in node.parts:
        behind = texts(rules, part, known)
        now = {a + b for a in now for b in behind if len(a + b) <= LENGTH}
    return now


def language(grammar: str) -> set[str]:
    """Returns all texts of a grammar up to a length: a fixed point, recursion and all."""
    rules = dict(read(grammar))
    known: dict[str, set[str]] = {name: set() for name in rules}
    while True:
        found = {name: texts(rules, node, known) for name, node in rules.items()}
        if found == known:
            return found["root"]
        known = found


def allowed(grammar: str) -> set[str]:
    """Returns the same by the masks."""
    masks, found = letters.masks(Grammar("gbnf", grammar), 0), set()

    def go_on(tokens: tuple[int, ...]) -> None:
        mask = masks.after(list(tokens))
        assert mask is not None
        for token in mask.ids.tolist():
            if token == END:
                found.add("".join(ALPHABET[t] for t in tokens))
            elif len(tokens) < LENGTH:
                go_on((*tokens, token))

    go_on(())
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_allows_exactly_its_texts(name: str) -> None:
    wanted = language(GRAMMARS[name])
    assert allowed(GRAMMARS[name]) == wanted and wanted


def random_grammar(rng: np.random.Generator) -> str:
    """Returns three rules that name each other and themselves."""

    def item(depth: int) -> str:
        kind = rng.integers(0, 9 if depth < 2 else 6)
        if kind < 3:
            return '"' + "".join(rng.choice(list("abc "), rng.integers(1, 3))) + '"'
        if kind < 5:
            return str(rng.choice(["[ab]", "[^ab]", "[bc]"]))
        if kind == 5:
            return str(rng.choice(["one", "two", "root"]))
        inner = " | ".join(" ".join(item(depth + 1) for _ in range(rng.integers(1, 3))) for _ in range(2))
        return f"({inner})" + str(rng.choice(["", "*", "?", "{1,2}", "+"]))

    def rule(name: str) -> str:
        ends = '"x"' if name == "root" else str(rng.choice(['"a"', '"bc"', "[ab]"]))
        return f"{name} ::= " + " ".join(item(0) for _ in range(rng.integers(1, 4))) + f" | {ends}"

    return "\n".join(map(rule, ("root", "one", "two")))


@pytest.mark.parametrize("some", [15, pytest.param(600, marks=pytest.mark.slow)])
def test_random_grammars_allow_exactly_their_texts(some: int) -> None:
    rng = np.random.default_rng(9)
    recursive = 0
    for _ in range(some):
        grammar = random_grammar(rng)
        assert allowed(grammar) == language(grammar), grammar
        recursive += "rule_" in as_lark(grammar)
    assert recursive > some / 10


def test_a_grammar_without_recursion_is_one_expression() -> None:
    lark = as_lark('root ::= item+\n# a list\nitem ::= "- " [^\\r\\n]+ "\\n"')
    assert lark.startswith("start: /") and lark.count("\n") == 1


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # escapes
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def takes(grammar: str, text: str) -> bool:
    masks: Masks = every.masks(Grammar("gbnf", grammar), 0)
    tokens = list(text.encode())
    mask = masks.after(tokens)
    return mask is not None and bool(mask.flags[256])


def test_strings_and_numbers_of_json_stay_whole_which_is_what_makes_it_fast() -> None:
    lark = as_lark(JSON)
    assert lark.count("/") < 80, "they are some thirty lexemes; characters would be many more"
    for text, right in (
        ('{"a": [1, -2.5e3, "x\\u00e9\\n", {}], "b":true}\n', True),
        ('{"π": "日本"}', True),
        ('{"a": [1,]}', False),
        ("[1]", False),
        ('{"a": "\\x"}', False),
    ):
        assert takes(JSON, text) == right, text


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" foo', ("'foo' is not defined",)),
        ('start ::= "a"', ("no rule named root",)),
        ("root = 1", ("::= is expected", "line 1")),
        ('root ::= "a"\nx ::= ("b" | "c"\n', ("not closed", "line")),
        ('root ::= "abc', ("not closed", "line 1")),
        ("root ::= [a-", ("not closed",)),
        ("root ::= [z-a]", ("ends before it begins",)),
        ('root ::= "\\q"', ("escape",)),
        ('root ::= "a"{5,2}', ("fewer to more",)),
        ('root ::= "a"{99999}', ("at most 2000",)),
        ('root ::= "a"{x}', ("number of times",)),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, ("parentheses",)),
        ("root ::= <[12]>", ("single tokens",)),
        ('root ::= "a"' + "*" * 500, ("more than 60 repetitions", "line 1")),
        ('root ::= "a"{' + "9" * 5000 + "}", ("at most 2000",)),
        ("root ::= this is (not valid GBNF", ("'",)),
        ('root ::= "a" )', ("new line",)),
    ],
)
def test_a_mistake_is_reported_with_its_line(grammar: str, words: tuple[str, ...]) -> None:
    with pytest.raises(GrammarError) as caught:
        as_lark(grammar)
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_rules_that_double_each_other_are_no_trap() -> None:
    doubling = "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
    lark = as_lark(f'root ::= r0\n{doubling}\nr60 ::= "a"')
    assert len(lark) < 2 * LONGEST_LEXEME


@pytest.mark.parametrize(
    "grammar",
    [
        "# a comment\n" * 1500 + 'root ::= "a"',
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(1000)) + '\nr1000 ::= "a"',
        'root ::= "a" | "b" r0\n'
        + "\n".join(f'r{i} ::= "c" r{i + 1}' for i in range(1000))
        + "\nr1000 ::= root",
        "root ::= " + "(" * 59 + '"a"' + ")" * 59,
        'root ::= "a"' + "?" * 60,
    ],
    ids=["comments", "chain", "recursive chain", "parentheses", "repetitions"],
)
def test_no_grammar_is_too_deep_to_read(grammar: str) -> None:
    """Reading recursed with every comment and every rule, and a RecursionError was the end of the worker's
    only reader: nobody was heard any more."""
    frames = len(inspect.stack())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(frames + 500)
    try:
        lark = as_lark(grammar)
    finally:
        sys.setrecursionlimit(limit)
    assert lark.startswith("start: ") and takes(grammar, "a")


def test_nothing_at_all_may_be_named_by_a_rule_that_names_itself() -> None:
    """`{0}` was handed on, and refused as the end of a range."""
    for grammar, text in (('root ::= "a" root{0}', "a"), ('root ::= "a" ("b" root){0} "c"', "ac")):
        assert takes(grammar, text) and not takes(grammar, text + text)


def test_a_list_of_words_costs_by_its_length() -> None:
    """Lexemes were compared in pairs, each by all of its characters: 2,000 words took 20 s."""

    def calls(n: int) -> int:
        """Counts calls, Python's and C's, which take no longer on a busy machine."""
        words = " | ".join(f'"{i:05d}x"' for i in range(n))
        counted = itertools.count()
        sys.setprofile(lambda *_: next(counted) and None)
        try:
            as_lark(f'root ::= w | "(" root ")"\nw ::= {words}')  # the longer list is too long for one lexeme
        finally:
            sys.setprofile(None)
        return next(counted)

    assert calls(10_000) < 25 * calls(500)  # linear is 20 times, quadratic 400
    words = " | ".join(f'"{i:05d}x"' for i in range(5000))
    assert takes(f'root ::= w | w "," root\nw ::= {words}', "04321x,00000x")
