"""The calls of one turn as they are read, and the tools that they may name."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgespec.chat.families.argument_schema import ArgumentSchema
from edgespec.chat.families.deltas import CallArguments, CallBegun
from edgespec.chat.families.json_text import as_json, value_of
from edgespec.chat.families.mending import mended
from edgespec.chat.families.reader import NotACall


@dataclass(slots=True)
class Calls:
    """Numbers calls, and knows the tools. tools: name -> JSON schema of its arguments.

    governed: a grammar keeps calls to their form, so arguments can be passed on as they come.
    """

    tools: Mapping[str, Mapping[str, Any]]
    governed: bool = True
    count: int = 0
    _tool: str = ""  # of the latest call
    _given: list[str] = field(default_factory=list)  # its arguments

    def begin(self, name: str, id: str = "") -> CallBegun:
        """Begins the next call; raises NotACall if no tool of this name was offered."""
        self.check(name)
        self.count += 1
        self._tool = name
        self._given.clear()
        return CallBegun(self.count - 1, name, id)

    def check(self, name: str) -> None:
        """Raises NotACall if no tool of this name was offered."""
        if name not in self.tools:
            raise NotACall

    def arguments(self, text: str) -> CallArguments:
        """Adds a piece of arguments to the latest call."""
        self._given.append(text)
        return CallArguments(self.count - 1, text)

    def closed(self) -> Iterator[CallArguments]:
        """Yields the bracket that is missing at the end of the latest call, if it fits its tool then."""
        with suppress(NotACall, ValueError):
            self.fitting(self._tool, value_of("".join([*self._given, "}"])))
            yield self.arguments("}")

    def whole(self, tool: str, text: str, *, bounded: bool) -> str:
        """Returns arguments as JSON; mended, if they can be read in exactly one way and fit the tool.

        bounded: something shows that no more of them was to come. Raises NotACall or ValueError.
        """
        try:
            value = value_of(text)
            if isinstance(value, str):
                value = value_of(value) if value.strip() else {}
            return "{}" if value is None else text if text.startswith("{") else as_json(value)
        except ValueError:
            return self.fitting(tool, mended(text, bounded=bounded))

    def fitting(self, tool: str, value: object) -> str:
        """Returns arguments as JSON; raises NotACall if they do not fit the tool."""
        if not (isinstance(value, dict) and self.schema(tool).fits(value)):
            raise NotACall
        return as_json(value)

    def schema(self, tool: str) -> ArgumentSchema:
        """Returns the schema of a tool's arguments."""
        return ArgumentSchema(self.tools.get(tool), self.tools.get(tool))
