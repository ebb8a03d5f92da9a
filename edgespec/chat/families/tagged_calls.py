"""Calls with arguments between tags, each as its own text: the tool's schema says which are strings and
which are numbers.
"""

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.deltas import Calls, as_json
from edgespec.chat.families.reader import NotACall, Reader, Steps

PYTHONS = {"True": "true", "False": "false", "None": "null"}
LONGEST_NAME = 256


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name and arguments between tags."""

    # what ends the name (`key` and `ends` too, if nothing else is there)
    name_ends: tuple[str, ...]
    key: str  # what opens an argument, with its name up to key_ends
    key_ends: str
    value_ends: str
    ends: tuple[str, ...]
    value: str = ""  # what then opens its value, "" if nothing comes between
    lines: bool = False  # the value is on lines of its own, whose ends are no part of it
    # what separates the name from a word that says whether the value is a string ("true", "string")
    attribute: str = ""
    around: tuple[str, str] | None = None  # what may surround a value

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if there is no name."""
        name, tag = yield from reader.text_until(self.name_ends)
        name = name.strip()
        if tag is None or not name or len(name) > LONGEST_NAME:
            raise NotACall
        yield calls.begin(name)
        opening = "{"
        while True:
            if tag in self.ends:
                break
            if tag != self.key:
                tag = yield from reader.until((self.key, *self.ends))
                if tag is None:
                    return
                continue
            key, found = yield from reader.text_until((self.key_ends,))
            if found is None:
                return
            key, _, said = key.partition(self.attribute) if self.attribute else (key, "", "")
            yield calls.arguments(f"{opening}{as_json(key.strip())}: ")
            opening = ", "
            if self.value:
                yield from reader.until((self.value,))
            is_text = said.startswith(("true", "string")) if said else calls.is_text(name, key.strip())
            if not (yield from self._value(reader, calls, is_text)):
                return
            tag = ""
        yield calls.arguments("{}" if opening == "{" else "}")

    def _value(self, reader: Reader, calls: Calls, is_text: bool | None) -> Steps[bool]:
        """Reads a value up to its end; False if the text ends first."""
        ends = (f"\n{self.value_ends}", self.value_ends) if self.lines else (self.value_ends,)
        if self.lines:
            yield from reader.starts_with(("\n",))
        if self.around and (yield from reader.starts_with((self.around[0],))):
            ends = (self.around[1] + self.value_ends, self.value_ends)
        if is_text:
            yield calls.arguments('"')
            end = yield from reader.until(ends, lambda text: calls.arguments(as_json(text)[1:-1]))
            if end is None:
                return False
            yield calls.arguments('"')
            return True
        text, end = yield from reader.text_until(ends)
        if end is None:
            return False
        yield calls.arguments(_typed(text))
        return True


def _typed(text: str) -> str:
    """Returns the JSON of a value that is not a string, or may be one."""
    bare = text.strip()
    if bare in PYTHONS:
        return PYTHONS[bare]
    try:
        json.loads(bare, parse_constant=int)  # NaN and Infinity are neither: ValueError
    except ValueError:
        return as_json(_literal(bare) or text)
    return bare


def _literal(text: str) -> object:
    """Returns the object or list that Python writes this way, as some templates do; None for others."""
    if not text.startswith(("{", "[")):
        return None
    try:
        value: object = ast.literal_eval(text)
        as_json(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value


ITEM = "item"  # the name of the elements of a list
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call whose arguments are elements within elements (MiniMax-M3). mark: comes before every tag.

    ]<]minimax[>[<invoke name="f">]<]minimax[>[<list>]<]minimax[>[<item>1]<]minimax[>[</item>...
    """

    mark: str

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if there is no name."""
        name, found = yield from reader.text_until(('">',))
        if found is None or not name.strip():
            raise NotACall
        yield calls.begin(name)
        schemas, opening = _properties(calls.tools.get(name, {})), "{"
        while tag := (yield from self._inside(reader))[1]:
            if tag.startswith("/"):
                yield calls.arguments("{}" if opening == "{" else "}")
                return
            schema = schemas.get(tag, {})
            text, inner = yield from self._inside(reader)
            if inner is None:
                return
            value = yield from self._value(reader, schema, text, inner)
            yield calls.arguments(f"{opening}{as_json(tag)}: {as_json(value)}")
            opening = ", "

    def _inside(self, reader: Reader) -> Steps[tuple[str, str | None]]:
        """Reads past the next tag; returns the text before it, and its content."""
        text, found = yield from reader.text_until((f"{self.mark}<",))
        if found is None:
            return text, None
        tag, found = yield from reader.text_until((">",))
        return text, tag if found else None

    def _value(self, reader: Reader, schema: Schema, text: str, tag: str | None) -> Steps[object]:
        """Reads a value up to the end of its element. text, tag: its beginning."""
        if tag is None or tag.startswith("/"):
            return _leaf(text, schema)
        fields, items, schemas = {}, [], _properties(schema)
        while tag and not tag.startswith("/"):
            within = schema.get("items") if tag == ITEM else schemas.get(tag)
            text, inner = yield from self._inside(reader)
            value = yield from self._value(reader, within if isinstance(within, Mapping) else {}, text, inner)
            fields[tag] = value
            items.append(value)
            _, tag = yield from self._inside(reader)
        return items if set(fields) == {ITEM} and ITEM not in schemas else fields


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _leaf(text: str, schema: Schema) -> object:
    """Returns the value of an element without others in it."""
    kind = schema.get("type")
    if kind == "string":
        return text
    if not text.strip():
        return [] if kind == "array" else {} if kind == "object" else text
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
