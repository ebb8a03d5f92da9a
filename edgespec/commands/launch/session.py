"""What a model did before and while an agent used it: test calls, and the server's own counts."""

import json
import re
from collections.abc import Mapping
from typing import Any

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
COUNTED = {  # figures of /metrics
    "edgespec_requests_total": "requests",
    "llamacpp:prompt_tokens_total": "evaluated",
    "llamacpp:prompt_tokens_cached_total": "reused",
    "llamacpp:tokens_predicted_total": "generated",
    "llamacpp:tokens_predicted_seconds_total": "seconds",
    "llamacpp:spec_decode_num_accepted_tokens_total": "accepted",
}
PATIENCE_S = 600.0  # of one test question, on the slowest machines
LINE = re.compile(r"^([\w:]+)(?:\{[^}]*\})? ([0-9.eE+-]+)$", re.MULTILINE)


def counts_of(client: Client) -> dict[str, float] | None:
    """Returns what a server has done, by its own counts, named as in `COUNTED`; None if it does not say."""
    try:
        text = _asked(client, "GET", "/metrics", root=True).decode("utf-8", "replace")
    except EdgeSpecError:
        return None
    found = dict.fromkeys(COUNTED.values(), 0.0)
    for name, value in LINE.findall(text):
        if name in COUNTED:
            found[COUNTED[name]] += float(value)
    return found


def in_words(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Says what was done in between, by its counts."""
    done = {name: after[name] - before[name] for name in COUNTED.values()}
    if not done["requests"]:
        return "the agent asked the model nothing"
    generated, seconds, accepted = done["generated"], done["seconds"], done["accepted"]
    speed = f" at {generated / seconds:.0f} tok/s" if seconds > 0 else ""
    gain = f", {accepted / generated:.0%} of them guesses" if accepted > 0 else ""
    return (
        f"{done['requests']:,.0f} requests; of their prompts {done['evaluated']:,.0f} tokens evaluated and "
        f"{done['reused']:,.0f} reused; {generated:,.0f} tokens generated{speed}{gain}"
    )


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
