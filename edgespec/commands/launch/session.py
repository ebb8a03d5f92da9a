"""What a model did before and while an agent used it: test calls, and the server's own counts."""

import json
import re
from dataclasses import dataclass, fields
from typing import Any, Self

from edgespec.client.client import Client
from edgespec.errors import EdgeSpecError

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file of the project.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "its path"}},
            "required": ["path"],
        },
    },
}
ASKED = (
    "Read the file README.md.",
    "Call read_file with the path src/main.py.",
    "What does setup.cfg say? Use the tool to find out.",
)
COUNTED = {
    "llamacpp:prompt_tokens_total": "evaluated",
    "llamacpp:prompt_tokens_cached_total": "reused",
    "llamacpp:tokens_predicted_total": "generated",
    "llamacpp:tokens_predicted_seconds_total": "seconds",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted",
}
PATIENCE_S = 600.0  # of one test question, on the slowest machines
LINE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has done, by its own counts."""

    evaluated: float = 0.0  # tokens of prompts
    reused: float = 0.0  # tokens of prompts that were in a cache
    generated: float = 0.0  # tokens
    seconds: float = 0.0  # in which they were generated
    accepted: float = 0.0  # of them guesses
    requests: float = 0.0

    def __sub__(self, other: Self) -> "Counts":
        return Counts(*(getattr(self, one.name) - getattr(other, one.name) for one in fields(self)))

    def sentence(self) -> str:
        """Says what was done."""
        if not self.requests:
            return "the agent asked the model nothing"
        speed = f" at {self.generated / self.seconds:.0f} tok/s" if self.seconds > 0 else ""
        gain = f", {self.accepted / self.generated:.0%} of them guesses" if self.accepted > 0 else ""
        return (
            f"{self.requests:,.0f} requests; of their prompts {self.evaluated:,.0f} tokens evaluated and "
            f"{self.reused:,.0f} reused; {self.generated:,.0f} tokens generated{speed}{gain}"
        )


def counts_of(client: Client) -> Counts | None:
    """Returns a server's counts; None if it does not tell."""
    try:
        text = _asked(client, "GET", "/metrics", root=True).decode("utf-8", "replace")
    except EdgeSpecError:
        return None
    found = {name: 0.0 for name in (*COUNTED.values(), "requests")}
    for name, value in LINE.findall(text):
        if name == "edgespec_requests_total":
            found["requests"] += float(value)
        elif name in COUNTED:
            found[COUNTED[name]] += float(value)
    return Counts(**found)


def called_in(client: Client, tries: int) -> int:
    """Returns in how many of some test questions the model calls the tool that it is offered.

    Raises EdgeSpecError if the server fails.
    """
    return sum(_calls(client, asked) for asked in ASKED[:tries])


def _asked(
    client: Client, method: str, path: str, body: dict[str, Any] | None = None, *, root: bool = False
) -> bytes:
    with client.server.connected(PATIENCE_S) as connection:
        return client.server.read(client.server.ask(connection, method, path, body, root=root))


def _calls(client: Client, asked: str) -> bool:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": asked}],
        "tools": [TOOL],
        "max_tokens": 200,
        "temperature": 0,
        "reasoning_effort": "none",
    }
    answered = _asked(client, "POST", "/chat/completions", body)
    try:
        answer = json.loads(answered)
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        return bool(calls) and isinstance(json.loads(calls[0]["function"]["arguments"]).get("path"), str)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return False
