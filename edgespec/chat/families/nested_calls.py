"""MiniMax-M3: arguments as elements within elements, each tag after a mark of its own.

]<]minimax[>[<invoke name="f">]<]minimax[>[<list>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</list>
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.deltas import Calls, as_json
from edgespec.chat.families.reader import NotACall, Reader, Steps

ITEM = "item"  # the name of the elements of a list
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call whose arguments are elements. mark: comes before every tag."""

    mark: str

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if there is no name."""
        name, found = yield from reader.text_until(('">',))
        if found is None or not name.strip():
            raise NotACall
        yield calls.begin(name)
        schemas, opening = _properties(calls.tools.get(name, {})), "{"
        while tag := (yield from self._tag(reader)):
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

    def _tag(self, reader: Reader) -> Steps[str]:
        """Reads past the next tag and returns its content, "" if none comes."""
        _, tag = yield from self._inside(reader)
        return tag or ""

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
            tag = yield from self._tag(reader)
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
