"""Calls that are JSON: an object with name and arguments, or a name followed by the arguments."""

import json
import re
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.deltas import Calls, as_json
from edgespec.chat.families.reader import NotACall, Reader, Steps

NAMES, ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
BESIDE = ("id", "tool_call_id", "type", "function", "thought")  # other keys that may be there


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Objects, one after another or in a list: {"name": ..., "arguments": {...}}."""

    # an object that names none of the tools is content (unless a tag announces calls)
    only_known: bool = False
    keyed: bool = False  # the name is the key of the arguments, {"name": {...}}

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads calls while there are any. Raises NotACall unless the first is one."""
        begun = calls.count
        next_one = yield from reader.skip_space()
        while next_one in ("[", "{", ",", ";", "]"):
            if next_one == "{":
                yield from self._keyed(reader, calls) if self.keyed else self._object(reader, calls)
            else:
                reader.take(1)
                if next_one == "]":
                    return
            next_one = yield from reader.skip_space()
        if calls.count == begun:
            raise NotACall

    def _object(self, reader: Reader, calls: Calls) -> Steps[None]:
        name, id, waiting, given = "", "", None, False
        reader.take(1)
        while (yield from reader.skip_space()) not in ("}", ""):
            if reader.held[0] == ",":
                reader.take(1)
                continue
            key = _text((yield from reader.json()))
            if (yield from reader.skip_space()) != ":":
                raise NotACall
            reader.take(1)
            if key in ARGUMENTS and name:
                given = True
                yield from _arguments(reader, calls)
            elif key in ARGUMENTS:
                waiting = yield from reader.json()
            elif key in NAMES:
                name = _text((yield from reader.json()))
                if self.only_known and name not in calls.tools:
                    raise NotACall
                yield calls.begin(name, id)
                if waiting is not None:
                    given = True
                    yield calls.arguments(_object_text(waiting))
            elif key in BESIDE or name:
                value = yield from reader.json()
                id = value.strip('"') if key in ("id", "tool_call_id") else id
            else:
                raise NotACall
        if not name:
            raise NotACall
        if reader.held:
            reader.take(1)
            if not given:
                yield calls.arguments("{}")

    def _keyed(self, reader: Reader, calls: Calls) -> Steps[None]:
        reader.take(1)
        if (yield from reader.skip_space()) != '"':
            raise NotACall
        name = _text((yield from reader.json()))
        if (yield from reader.skip_space()) != ":":
            raise NotACall
        reader.take(1)
        yield calls.begin(name)
        yield from _arguments(reader, calls)
        if (yield from reader.skip_space()) == "}":
            reader.take(1)


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A name, something that ends it, and the arguments as JSON.

    Lines of Markdown around the arguments are ignored.
    """

    name_ends: tuple[str, ...]  # what ends it
    before: str = ""  # what may come before the name and is no part of it
    id_ends: str = ""  # what separates the name from an id of the call
    id_first: bool = False
    only_known: bool = False

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if no arguments follow."""
        head, end = yield from reader.text_until(self.name_ends)
        if end is None:
            raise NotACall
        name, _, id = head.partition(self.id_ends) if self.id_ends else (head, "", "")
        if self.id_first:
            name, id = id, name
        if self.before:
            name, number = re.sub(self.before, "", name, count=1), name
            id = id or (number if ":" in number else "")
            name = name.rpartition(":")[0] if ":" in name else name
        if not name.strip() or "\n" in name.strip() or (self.only_known and name.strip() not in calls.tools):
            raise NotACall
        yield from reader.skip_space()
        yield from reader.starts_with(("```json", "```"))
        first = yield from reader.skip_space()
        yield calls.begin(name.strip(), id.strip())
        if first == "{":
            yield from reader.json(calls.arguments)
        else:
            yield calls.arguments("{}")


def _arguments(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads arguments: an object as it comes; a string that contains one, once it is complete."""
    first = yield from reader.skip_space()
    if first == "{":
        yield from reader.json(calls.arguments)
    else:
        yield calls.arguments(_object_text((yield from reader.json())))


def _object_text(text: str) -> str:
    """Returns the JSON object that a JSON value stands for."""
    try:
        value: Any = json.loads(text)
        if isinstance(value, str):
            value = json.loads(value) if value.strip() else {}
    except ValueError:
        return text
    return "{}" if value is None else text if text.startswith("{") else as_json(value)


def _text(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        raise NotACall from None
    if not isinstance(value, str) or not value:
        raise NotACall
    return value
