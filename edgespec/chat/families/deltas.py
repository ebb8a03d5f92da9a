"""What parsers give: the parts of an assistant's turn, as they come."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from edgespec.chat.families.json_text import as_object


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
