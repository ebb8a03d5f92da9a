"""Calls that are JSON: an object with name and arguments, or a name followed by the arguments."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.call_form import Rules, Tools, literal, of_arguments
from edgespec.chat.families.calls import Calls
from edgespec.chat.families.mending import mended
from edgespec.chat.families.reader import NotACall, Reader, Steps

NAMES, ARGUMENTS = ("name", "tool_name"), ("arguments", "parameters")
OTHER_KEYS = ("id", "tool_call_id", "type", "function", "thought")  # other keys that may be there


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Objects, one after another or in a list: {"name": ..., "arguments": {...}}.

    A call begins with its arguments, or where its object ends: what is broken before that is content.
    """

    keyed: bool = False  # the name is the key of the arguments, {"name": {...}}
    # how they are written, where several forms are read:
    listed: bool = False  # in a list
    names: tuple[str, str] = ("name", "arguments")  # the keys of name and arguments
    around: tuple[str, str] = ("", "")  # what comes between tag and calls, and behind them

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads calls while there are any. Raises NotACall unless the first is one."""
        begun = calls.count
        next_one = yield from reader.skip_space()
        fenced = yield from reader.starts_with(("```json", "```"))
        if fenced:
            next_one = yield from reader.skip_space()
        while next_one in ("[", "{", ",", ";", "]"):
            if next_one == "{":
                yield from self._keyed(reader, calls) if self.keyed else self._object(reader, calls)
                reader.settle()
            else:
                reader.take(1)
                if next_one == "]":
                    break
            next_one = yield from reader.skip_space()
        if calls.count == begun:
            raise NotACall
        if fenced:
            yield from reader.starts_with(("```",), spaced=True)

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of calls behind a tag."""
        schema: dict[str, Any] = {"anyOf": [self._schema(*one, i) for i, one in enumerate(tools.items())]}
        if self.listed:
            schema = {"type": "array", "items": schema, "minItems": 1}
        before, behind = self.around
        return f"{literal(tag + before)} {rules.json(schema)} {literal(behind)}"

    def _schema(self, tool: str, arguments: Mapping[str, Any], number: int) -> dict[str, Any]:
        inner = of_arguments(arguments, number)
        if self.keyed:
            return {
                "type": "object",
                "properties": {tool: inner},
                "required": [tool],
                "additionalProperties": False,
            }
        name, key = self.names
        return {
            "type": "object",
            "properties": {name: {"const": tool}, key: inner},
            "required": [name, key],
            "additionalProperties": False,
        }

    @property
    def _ends(self) -> tuple[str, ...]:
        """What shows that nothing more of a call comes."""
        behind = self.around[1].strip()
        return (behind,) if behind else ()

    def _object(self, reader: Reader, calls: Calls) -> Steps[None]:
        name, id, waiting, bounded = "", "", "{}", True
        reader.take(1)
        while (next_one := (yield from reader.skip_space())) != "}":
            if next_one == ",":
                reader.take(1)
                continue
            key = _text((yield from reader.json()))
            yield from _colon(reader)
            if key in ARGUMENTS and name:
                yield from _arguments(reader, calls, name, id, self._ends)
                yield from _rest(reader)
                return
            if key in ARGUMENTS:
                waiting, bounded = yield from reader.json_before(self._ends)
            elif key in NAMES:
                name = _text((yield from reader.json()))
                calls.check(name)
            elif key in OTHER_KEYS or name:
                value = yield from reader.json()
                id = value.strip('"') if key in ("id", "tool_call_id") else id
            else:
                raise NotACall
        reader.take(1)
        whole = calls.whole(name, waiting, bounded=bounded)
        yield calls.begin(name, id)
        yield calls.arguments(whole)

    def _keyed(self, reader: Reader, calls: Calls) -> Steps[None]:
        reader.take(1)
        if (yield from reader.skip_space()) not in ('"', "'"):
            raise NotACall
        name = _text((yield from reader.json()))
        calls.check(name)
        yield from _colon(reader)
        yield from _arguments(reader, calls, name, "", self._ends)
        yield from _rest(reader)


@dataclass(frozen=True, slots=True)
class NamedCall:
    """A name, something that ends it, and the arguments as JSON.

    Lines of Markdown around the arguments are ignored.
    """

    name_ends: tuple[str, ...]  # what ends it
    before: str = ""  # what may come before the name and is no part of it
    id_ends: str = ""  # what separates the name from an id of the call
    id_first: bool = False
    ends: tuple[str, ...] = ()  # what may follow at once, if there are no arguments
    # how a call is written: before the name, between name and arguments, behind them; "#": an id or number
    written: tuple[str, str, str] = ("", "", "")

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of a call behind a tag."""
        before, between, behind = self.written
        start, number, end = between.partition("#")
        joint = f"/[0-9]{{1,4}}/ {literal(end)}" if number else ""
        calls = (
            f"{literal(tool + start)} {joint} {rules.json(of_arguments(schema, i))}"
            for i, (tool, schema) in enumerate(tools.items())
        )
        first, _, rest = before.partition("#")
        id = f"/[0-9a-zA-Z]{{1,16}}/ {literal(rest)}" if "#" in before else ""
        return f"{literal(tag + first)} {id} ({' | '.join(calls)}) {literal(behind)}"

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if no arguments follow, and no end."""
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
        name = name.strip()
        calls.check(name)
        yield from reader.skip_space()
        fenced = yield from reader.starts_with(("```json", "```"))
        if (yield from reader.skip_space()) in ("{", '"'):
            yield from _arguments(reader, calls, name, id.strip(), self.ends)
            if fenced:
                yield from reader.starts_with(("```",), spaced=True)
        elif (yield from reader.starts_with(self.ends)):
            yield calls.begin(name, id.strip())
            yield calls.arguments("{}")
        else:
            raise NotACall


def _colon(reader: Reader) -> Steps[None]:
    if (yield from reader.skip_space()) != ":":
        raise NotACall
    reader.take(1)


def _arguments(reader: Reader, calls: Calls, name: str, id: str, ends: tuple[str, ...]) -> Steps[None]:
    """Reads arguments: an object as it comes, if it has its form; others once they are complete."""
    if calls.governed and (yield from reader.skip_space()) == "{":
        yield calls.begin(name, id)
        yield from reader.json(calls.arguments)
        return
    text, bounded = yield from reader.json_before(ends)
    whole = calls.whole(name, text, bounded=bounded)
    yield calls.begin(name, id)
    yield calls.arguments(whole)


def _rest(reader: Reader) -> Steps[None]:
    """Reads past what is left of an object behind its arguments, as far as it is well-formed."""
    while (next_one := (yield from reader.skip_space())) in (",", '"'):
        if next_one == ",":
            reader.take(1)
            continue
        try:
            yield from reader.json()
            yield from _colon(reader)
            yield from reader.json()
        except NotACall:
            return
    if next_one == "}":
        reader.take(1)


def _text(text: str) -> str:
    value = mended(text, bounded=True)
    if not isinstance(value, str) or not value:
        raise NotACall
    return value
