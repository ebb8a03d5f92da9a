"""The form of a text, as a value: a JSON schema, a GBNF or Lark grammar, or a regular expression.

Values only, so that they travel between processes; `matchers` turns them into masks.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from edgespec.errors import GrammarError

GrammarKind = Literal["json_schema", "gbnf", "lark", "regex"]  # gbnf: or Lark, where it is none
LONGEST_GRAMMAR = 256 * 1024  # characters; what takes longer to read than to answer is useless
DEEPEST = 64  # levels of a schema: llguidance's compiler recurses
SPELT_OUT = set("\\.+*?()|[]{}^$#&-~/\"' ")


CONTROL = b"\xff"  # no text begins with it; a grammar that means the token says <name>


@dataclass(frozen=True, slots=True)
class Triggers:
    """Where a grammar begins to govern a text that is free otherwise: at a tag, with which it begins."""

    tags: tuple[str, ...] = ()
    first: tuple[str, ...] = ()  # tags only where the text begins
    thoughts: tuple[tuple[str, str], ...] = ()  # what opens and closes reasoning, in which no tag counts
    opened: bool = False  # the text begins within the reasoning


@dataclass(frozen=True, slots=True)
class Grammar:
    """The allowed texts. Raises GrammarError if it is too long, no text, or a schema that is not JSON."""

    kind: GrammarKind
    text: str
    lenient: bool = False  # ignore what a JSON schema says and cannot be enforced, instead of refusing it
    # the grammar begins after this text, before which anything may come (reasoning that the prompt
    # opened)
    behind: str = ""
    opening: str = ""  # only if the text begins with this one
    triggers: Triggers | None = None  # it governs what begins with one of these; all else is free

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise GrammarError(
                f"{self.kind!r} is not a kind of grammar: say {', '.join(get_args(GrammarKind))}"
            )
        if not isinstance(self.text, str) or not self.text.strip():
            raise GrammarError(f"the {NAMES[self.kind]} is empty: give one, or leave it out")
        if len(self.text) > LONGEST_GRAMMAR:
            n = f"{len(self.text):,} characters"
            raise GrammarError(f"the {NAMES[self.kind]} has {n}: at most {LONGEST_GRAMMAR:,} are read")
        try:
            self.text.encode()
        except UnicodeEncodeError:  # a terminal that is not in UTF-8, or half of a pair of surrogates
            raise GrammarError(f"the {NAMES[self.kind]} is not text in UTF-8: {self.text[:60]!r}") from None
        if self.kind == "json_schema":
            _check_schema(self.text)


TOOL_ID = "urn:edgespec:tool:"  # begins the `$id` of the schema of a tool's arguments
NOT_ENFORCED = "which cannot be enforced: leave it out"  # the end of a sentence about a part of a schema
NAMES = {
    "json_schema": "JSON schema",
    "gbnf": "grammar",
    "lark": "grammar",
    "regex": "regular expression",
}


def _check_schema(text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise GrammarError(f"the JSON schema is not JSON: {why}") from None
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(f"the JSON schema is {text[:60]}: it must be an object in braces")
    if _depth(schema) > DEEPEST:
        raise GrammarError(f"the JSON schema is nested more than {DEEPEST} levels deep: make it flatter")


def _depth(value: Any) -> int:
    """Returns how many levels of objects and arrays there are; does not recurse."""
    deepest, level = 0, [value]
    while level:
        inner = [part for part in level if isinstance(part, (dict, list))]
        deepest += bool(inner)
        level = [part for one in inner for part in (one.values() if isinstance(one, dict) else one)]
        if deepest > DEEPEST:
            break
    return deepest


def json_schema(schema: object, *, lenient: bool = False) -> Grammar:
    """Returns the grammar of the JSON texts that a schema (as parsed) describes. Raises GrammarError."""
    try:
        return Grammar("json_schema", json.dumps(schema), lenient)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the JSON schema cannot be written as JSON: {error}") from None


def any_json_object() -> Grammar:
    """Returns the grammar of all JSON objects."""
    return Grammar("json_schema", '{"type": "object"}')


def grammar_text(text: str) -> Grammar:
    """Returns a grammar in llama.cpp's GBNF or in llguidance's Lark: whoever reads it tries both."""
    return Grammar("gbnf", text)


def one_of(choices: Sequence[str]) -> Grammar:
    """Returns the grammar of a choice between texts. Raises GrammarError if there is none to choose."""
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise GrammarError(f"the choices are {choices!r}: give texts of at least one character")
    return Grammar("regex", "|".join(_spelt_out(choice) for choice in choices))


def _spelt_out(text: str) -> str:
    """Returns the regular expression of one text."""
    return "".join(f"\\x{ord(c):02x}" if c in SPELT_OUT or ord(c) < 32 else c for c in text)
