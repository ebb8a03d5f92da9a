"""What parsers give: the parts of an assistant's turn, as they come."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool is called."""

    index: int  # from 0, in order
    name: str
    id: str = ""  # the model's own, "" if it gives none


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of a call: a piece of JSON text."""

    index: int
    text: str


Delta = Content | Reasoning | CallBegun | CallArguments


@dataclass(slots=True)
class Call:
    """One call, complete."""

    name: str
    id: str
    arguments: str = ""

    @property
    def parsed(self) -> dict[str, Any]:
        """Returns the arguments as an object; malformed ones are kept as text."""
        return as_object(self.arguments)


@dataclass(slots=True)
class AssembledTurn:
    """An assistant's turn, assembled from its deltas."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, deltas: Iterable[Delta]) -> None:
        """Adds a delta."""
        for delta in deltas:
            match delta:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallBegun(_, name, id):
                    self.calls.append(Call(name, id))
                case CallArguments(index, text):
                    self.calls[index].arguments += text


@dataclass(slots=True)
class Calls:
    """Numbers calls, and knows the tools. tools: name -> JSON schema of its arguments."""

    tools: Mapping[str, Mapping[str, Any]]
    count: int = 0

    def begin(self, name: str, id: str = "") -> CallBegun:
        """Begins the next call."""
        self.count += 1
        return CallBegun(self.count - 1, name, id)

    def arguments(self, text: str) -> CallArguments:
        """Adds a piece of arguments to the latest call."""
        return CallArguments(self.count - 1, text)

    def is_text(self, tool: str, name: str) -> bool | None:
        """Returns whether the tool's schema makes an argument a string; None if it does not say."""
        schema = self.tools.get(tool, {}).get("properties", {})
        kind = schema.get(name, {}).get("type") if isinstance(schema, Mapping) else None
        if isinstance(kind, list):
            kinds = [one for one in kind if one != "null"]
            kind = kinds[0] if len(kinds) == 1 else None
        return None if not isinstance(kind, str) else kind == "string"


def as_object(arguments: str) -> dict[str, Any]:
    """Returns arguments as an object; malformed text of a model is kept under a name."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def as_json(value: object) -> str:
    """Returns JSON in the format of arguments."""
    return json.dumps(value, ensure_ascii=False)
