"""The calls of one turn as they are read, and the tools that they may name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.argument_schema import ArgumentSchema
from edgespec.chat.families.deltas import CallArguments, CallBegun
from edgespec.chat.families.reader import NotACall


@dataclass(slots=True)
class Calls:
    """Numbers calls, and knows the tools. tools: name -> JSON schema of its arguments."""

    tools: Mapping[str, Mapping[str, Any]]
    count: int = 0

    def begin(self, name: str, id: str = "") -> CallBegun:
        """Begins the next call; raises NotACall if no tool of this name was offered."""
        self.check(name)
        self.count += 1
        return CallBegun(self.count - 1, name, id)

    def check(self, name: str) -> None:
        """Raises NotACall if no tool of this name was offered."""
        if name not in self.tools:
            raise NotACall

    def arguments(self, text: str) -> CallArguments:
        """Adds a piece of arguments to the latest call."""
        return CallArguments(self.count - 1, text)

    def schema(self, tool: str) -> ArgumentSchema:
        """Returns the schema of a tool's arguments."""
        return ArgumentSchema(self.tools.get(tool), self.tools.get(tool))
