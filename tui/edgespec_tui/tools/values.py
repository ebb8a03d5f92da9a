"""A tool, a call of one, and what came of it: values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, Literal, get_args

CALLS = "calls"  # the setting of a turn that has its calls
Outcome = Literal["asked", "done", "failed", "refused", "stopped"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as its server describes it. What the server says of it is shown, and not relied on."""

    server: str
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    reads_only: bool = False
    hints: tuple[str, ...] = ()  # in words

    @property
    def title(self) -> str:
        """Its server and its name, which no other tool has."""
        return f"{self.server}: {self.name}"

    @property
    def key(self) -> str:
        """Returns what stands for this very tool: another description or schema makes another tool."""
        parts = [self.server, self.name, self.description, dict(self.schema)]
        return sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Result:
    """What a server answered to a call."""

    text: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an answer, as a chat saves it."""

    id: str
    name: str  # as the model was given it
    arguments: str  # JSON text
    server: str = ""  # whose tool it is; "" if there is none of that name
    tool: str = ""
    outcome: Outcome = "asked"
    result: str = ""  # as the model got it
    seconds: float = 0.0
    round: int = 0  # calls of one round were made in one message
    at: int = 0  # characters of the answer before it
    kept: str = ""  # the file that has the whole result, if it was cut

    @property
    def title(self) -> str:
        return f"{self.server}: {self.tool}" if self.server else self.name

    def requested(self) -> dict[str, Any]:
        """Returns it as a request has it."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


def saved(calls: Iterable[Call]) -> dict[str, str]:
    """Returns the settings of a turn that keep its calls."""
    listed = [asdict(call) for call in calls]
    return {CALLS: json.dumps(listed)} if listed else {}


def calls_of(settings: Mapping[str, object]) -> tuple[Call, ...]:
    """Returns the calls of a turn; none if what was saved cannot be read."""
    text = settings.get(CALLS)
    try:
        listed = json.loads(text) if isinstance(text, str) else []
        return tuple(_call(one) for one in listed)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


def _call(entry: Mapping[str, Any]) -> Call:
    call = Call(**{one.name: entry[one.name] for one in fields(Call) if one.name in entry})
    texts = (call.id, call.name, call.arguments, call.server, call.tool, call.result, call.kept)
    numbers = (call.round, call.at)
    right = all(isinstance(one, str) for one in texts) and all(isinstance(one, int) for one in numbers)
    if not (right and call.outcome in get_args(Outcome) and isinstance(call.seconds, int | float)):
        raise ValueError
    return call
