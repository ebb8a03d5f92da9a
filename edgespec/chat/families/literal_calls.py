"""Calls in a notation of their own that is read once it is complete: Gemma's, and Python's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.argument_schema import ArgumentSchema
from edgespec.chat.families.call_form import (
    NoForm,
    Rules,
    Tools,
    arguments,
    formats_of,
    is_any,
    lengths_of,
    literal,
    ways_of,
)
from edgespec.chat.families.calls import Calls
from edgespec.chat.families.json_calls import JsonCalls
from edgespec.chat.families.json_text import DEEPEST, as_json, value_of
from edgespec.chat.families.mending import missing
from edgespec.chat.families.python_values import python_calls
from edgespec.chat.families.reader import NotACall, Reader, Steps

QUOTE = '<|"|>'


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written, for the form of a call."""

    quotes: tuple[str, str]
    true: str
    false: str
    null: str
    pair: str  # between key and value
    bare_keys: bool
    escapes: bool  # strings have escapes, so a quote may be in them
    between: str = ","

    def value(self, rules: Rules, schema: ArgumentSchema, depth: int = 0) -> str:
        """Returns the form of a value. Raises NoForm."""
        if depth > DEEPEST_FORM:
            raise NoForm
        if is_any(schema):
            return self._any(rules)
        if listed := schema.values():
            return f"({' | '.join(self._written(one) for one in listed)})"
        if any(word in one for one in schema.all() for word in ("anyOf", "oneOf", "allOf", "not")):
            return f"({' | '.join(self.value(rules, way, depth + 1) for way in ways_of(schema))})"
        return f"({' | '.join(self._kind(rules, kind, schema, depth) for kind in sorted(schema.kinds()))})"

    def _kind(self, rules: Rules, kind: str, schema: ArgumentSchema, depth: int) -> str:
        if kind == "string":
            return self._string(rules, schema)
        if kind in ("number", "integer"):
            here = schema.here if isinstance(schema.here, Mapping) else {}
            return rules.json({**here, "type": kind}, schema.root)
        if kind == "boolean":
            return f"{literal(self.true)} | {literal(self.false)}"
        if kind == "null":
            return literal(self.null)
        if kind == "array":
            return self._array(rules, schema, depth)
        named = arguments(schema)
        if not named:
            return self._any_object(rules)
        pairs = [
            (f"{literal(self.key(name))} {self.value(rules, of, depth + 1)}", must)
            for name, of, must in named
        ]
        return f"{literal('{')} {rules.in_order(pairs, self.between)} {literal('}')}"

    def _array(self, rules: Rules, schema: ArgumentSchema, depth: int) -> str:
        least, most = lengths_of(schema, "Items")
        item = rules.rule(self.value(rules, schema.item(), depth + 1))
        again = f"({literal(self.between)} {item})"
        if most == 0:
            return f"{literal('[')} {literal(']')}"
        upper = "" if most is None else most - 1
        filled = f"{item} {again}{{{max(least - 1, 0)},{upper}}}"
        return f"{literal('[')} {filled if least else f'({filled})?'} {literal(']')}"

    def pairs(self, rules: Rules, schema: Mapping[str, Any], sign: str, end: str) -> str:
        """Returns the form of a call's arguments up to its end; those without a form are any text."""
        try:
            pairs = [
                (f"{literal(name + sign)} {self.value(rules, of)}", must)
                for name, of, must in arguments(ArgumentSchema(schema, schema))
            ]
        except NoForm:
            return rules.string(ArgumentSchema({}, None), end)
        return f"{rules.in_order(pairs, self.between)} {literal(end)}"

    def key(self, name: str) -> str:
        """Returns a key with what separates it from its value."""
        return (name if self.bare_keys else f"{self.quotes[0]}{name}{self.quotes[1]}") + self.pair

    def _string(self, rules: Rules, schema: ArgumentSchema) -> str:
        before, behind = self.quotes
        if not self.escapes:
            return f"{literal(before)} {rules.string(schema, behind)}"
        least, most = lengths_of(schema, "Length")
        if any("pattern" in one for one in schema.all()):
            raise NoForm
        if formats := formats_of(schema):
            return f"{literal(before)} {formats[0]} {literal(behind)}"
        return f'/"([^"\\\\\\x00-\\x1f\\x7f]|\\\\["\\\\nrt]){{{least},{"" if most is None else most}}}"/'

    def _written(self, value: object) -> str:
        """Returns the form of one value. Raises NoForm."""
        if isinstance(value, bool) or value is None:
            return literal(self.null if value is None else self.true if value else self.false)
        if isinstance(value, str):
            text = as_json(value)[1:-1] if self.escapes else value
            if self.quotes[1] in value or not value.isprintable():
                raise NoForm
            return literal(f"{self.quotes[0]}{text}{self.quotes[1]}")
        if isinstance(value, int | float):
            return literal(as_json(value))
        raise NoForm

    def _any(self, rules: Rules) -> str:
        leaf = ArgumentSchema({"type": ["string", "number", "boolean", "null"]}, None)
        return f"({self.value(rules, leaf)} | {self._any_object(rules)})"

    def _any_object(self, rules: Rules) -> str:
        string = ArgumentSchema({"type": "string"}, None)
        key = "/[a-zA-Z_][a-zA-Z0-9_]{0,30}/" if self.bare_keys else self._string(rules, string)
        leaf = ArgumentSchema({"type": ["string", "number", "boolean", "null"]}, None)
        pair = f"{key} {literal(self.pair)} {self.value(rules, leaf)}"
        return f"{literal('{')} ({pair} ({literal(self.between)} {pair})*)? {literal('}')}"


DEEPEST_FORM = 8  # levels of values within values
GEMMAS = Notation((QUOTE, QUOTE), "true", "false", "null", ":", bare_keys=True, escapes=False)
PYTHONS = Notation(('"', '"'), "True", "False", "None", ": ", bare_keys=False, escapes=True, between=", ")


@dataclass(frozen=True, slots=True)
class GemmaCall:
    """call:name{key:<|"|>text<|"|>,other:5}, up to `ends`."""

    ends: str

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of a call behind a tag."""
        calls = []
        for tool, schema in tools.items():
            inner = GEMMAS.pairs(rules, schema, ":", "}" + self.ends)
            calls.append(f"{literal(tool + '{')} {inner}")
        return f"{literal(tag + 'call:')} ({' | '.join(calls)})"

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall."""
        text, end = yield from reader.text_until((self.ends,))
        found = re.match(r"\s*call:([^{]+)\{", text)
        if not found or (end is None and reader.cut):
            raise NotACall
        name, given = found[1].strip(), text[found.end() - 1 :]
        calls.check(name)
        try:
            arguments = as_json(_GemmaText(given).whole())
        except IndexError:  # it ends too soon
            behind = missing(given.rstrip(), bounded=end is not None, quotes=(QUOTE, '"'))
            arguments = calls.fitting(name, _GemmaText(given + behind).whole())
        yield calls.begin(name)
        yield calls.arguments(arguments)


class _GemmaText:
    """Reads values in Gemma's notation from a text, forward."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._depth = text, 0, 0

    def whole(self) -> Any:
        """Returns the value that is all of the text; raises IndexError or ValueError."""
        value = self.value()
        if self._text[self._at :].strip():
            raise ValueError
        return value

    def value(self) -> Any:
        """Returns the value that begins here; raises IndexError or ValueError."""
        if self._passes(QUOTE):
            return self._up_to(QUOTE)
        if self._passes('"'):
            return self._up_to('"')
        if self._passes("{"):
            return dict(self._several("}", self._pair))
        if self._passes("["):
            return self._several("]", self.value)
        bare = re.compile(r"[^,}\]]*").match(self._text, self._at)
        assert bare
        self._at = bare.end()
        word = bare[0].strip()
        known = {"true": True, "false": False, "null": None, "none": None}
        return known[word.lower()] if word.lower() in known else _number(word)

    def _pair(self) -> tuple[str, Any]:
        if self._passes(QUOTE):
            key = self._up_to(QUOTE)
            if not self._passes(":"):
                raise ValueError
        else:
            key = self._up_to(":").strip()
        return key, self.value()

    def _several(self, end: str, read: Any) -> list[Any]:
        found: list[Any] = []
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError
        while not self._passes(end):
            if found and not self._passes(","):
                raise ValueError
            found.append(read())
        self._depth -= 1
        return found

    def _passes(self, text: str) -> bool:
        while self._text[self._at].isspace():
            self._at += 1
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _up_to(self, end: str) -> str:
        until = self._text.index(end, self._at)
        text, self._at = self._text[self._at : until], until + len(end)
        return text


def _number(word: str) -> int | float | str:
    try:
        value: object = value_of(word)
    except ValueError:
        return word
    return value if isinstance(value, int | float) else word


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """[name(key="text", other=5), ...], or the same as JSON, up to `ends`: read, never run."""

    ends: str

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of calls behind a tag."""
        calls = []
        for tool, schema in tools.items():
            calls.append(f"{literal(tool + '(')} {PYTHONS.pairs(rules, schema, '=', ')')}")
        call = rules.rule(" | ".join(calls))
        return f"{literal(tag + '[')} {call} ({literal(', ')} {call})* {literal(']' + self.ends)}"

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads the calls. Raises NotACall or ValueError if it is no list of calls with plain values."""
        text, end = yield from reader.text_until((self.ends,))
        if end is None and reader.cut:
            raise NotACall
        if re.match(r"\s*\[?\s*\{", text):
            listed = Reader()
            listed.held, listed.ended, listed.cut = text, True, False
            yield from JsonCalls().read(listed, calls)
            return
        try:
            found = [(name, as_json(values)) for name, values in python_calls(text)]
        except ValueError:
            closed = python_calls(text + missing(text.rstrip(), bounded=end is not None))
            found = [(name, calls.fitting(name, values)) for name, values in closed]
        for name, _ in found:
            calls.check(name)
        for name, given in found:
            yield calls.begin(name)
            yield calls.arguments(given)
