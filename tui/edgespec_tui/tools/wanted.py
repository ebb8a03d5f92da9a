"""The calls of a message, put together from the pieces of its stream, whatever a server sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgespec.system.odd_text import as_text
from edgespec_tui.tools.loop import Wanted

LONGEST = 2**20  # characters of arguments


@dataclass(slots=True)
class WantedCalls:
    """The calls of one message so far."""

    _found: dict[int, list[str]] = field(default_factory=dict)  # by index: id, name, arguments

    def add(self, piece: Mapping[str, Any]) -> None:
        """Adds a piece, as OpenAI's stream has it; one without an index is a whole call."""
        index, function = piece.get("index"), piece.get("function")
        place = index if isinstance(index, int) else len(self._found)
        call = self._found.setdefault(place, ["", "", ""])
        named = function if isinstance(function, Mapping) else {}
        for at, value in enumerate((piece.get("id"), named.get("name"), named.get("arguments"))):
            if isinstance(value, str) and (at == 2 or not call[at]):
                call[at] = (call[at] + as_text(value))[:LONGEST]

    def taken(self, before: int) -> list[Wanted]:
        """Returns the calls, and forgets them. before: how many the answer had, for those without an id."""
        found, self._found = self._found, {}
        calls = [one for _, one in sorted(found.items()) if one[1]]
        return [
            Wanted(id or f"call_{number}", name, arguments or "{}")
            for number, (id, name, arguments) in enumerate(calls, before)
        ]
