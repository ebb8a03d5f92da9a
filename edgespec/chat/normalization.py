"""Lines that clients write into their system prompt and change with every request.

Everything behind such a line would be evaluated again each time. Which these are is a table, and each is
there because a client is known to send it: what merely looks like a date stays. A line that says nothing to a
model is left out; one that does goes to the end of the last message, where it costs itself.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VolatileLine:
    """One line that a client is known to add."""

    client: str
    name: str  # as answers report it
    pattern: re.Pattern[str]
    varies: str
    since: str  # version or date
    source: str
    moves: bool = True  # else it is left out


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^{pattern}[ \t]*$\n?", re.MULTILINE)


CLOCK = r"[^\n]{0,60}\d{1,2}:\d{2}[^\n]{0,40}"  # a time of day
LINES = (
    VolatileLine(
        "Claude Code",
        "x-anthropic-billing-header",
        re.compile(r"\Ax-anthropic-billing-header:(?:[ \t]*[\w.-]{1,40}=[^;\n]{0,200};){1,20}\n?"),
        "`cch` with each request; the suffix of `cc_version` with the first message; since 2.1.181 no `cch` "
        "to other hosts, later other fields",
        "2.1.36",
        "ggml-org/llama.cpp#20623, BYK/loreai#806",
        moves=False,
    ),
    VolatileLine(
        "pi",
        "Current date and time",
        _line(rf"Current date and time: {CLOCK}"),
        "the second, with each start or reload",
        "before 2026-03",
        "earendil-works/pi#2013",
    ),
    VolatileLine(
        "Home Assistant",
        "Current time is",
        _line(r"Current time is \d{2}:\d{2}:\d{2}\. Today's date is \d{4}-\d{2}-\d{2}\."),
        "the second",
        "2024; left out since 2025-09 where a tool tells the time",
        "home-assistant/core#152408",
    ),
    VolatileLine(
        "nanobot",
        "## Current Time",
        _line(rf"## Current Time\n{CLOCK}"),
        "the minute",
        "before 2026-02",
        "HKUDS/nanobot#226",
    ),
    VolatileLine(
        "OpenClaw",
        "## Current Date & Time",
        _line(rf"## Current Date & Time\n{CLOCK}"),
        "the minute",
        "before 2026-02",
        "openclaw/openclaw#26750",
    ),
)  # fmt: skip


def normalized(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Returns a conversation whose system prompt stays the same, and what was changed."""
    found, changed, moved = [dict(message) for message in messages], list[str](), list[str]()
    last = next((m for m in reversed(found) if m["role"] in ("user", "tool")), None)
    for message in found:
        if message["role"] == "system":
            message["content"] = _cleaned(message["content"], changed, moved if last else None)
    if last and moved:
        last["content"] = _with(last["content"], "\n".join(moved))
    if changed:
        found = [m for m in found if m["role"] != "system" or m["content"]]
    return found, tuple(dict.fromkeys(changed))


def _cleaned(content: Any, changed: list[str], moved: list[str] | None) -> Any:
    """Returns a system prompt without volatile lines. moved: takes those that move; None: they stay."""
    if isinstance(content, list):
        return [
            {**part, "text": _cleaned(part["text"], changed, moved)} if part.get("text") else part
            for part in content
        ]
    for line in LINES:
        match = line.pattern.search(content)
        if match and not (line.moves and moved is None):
            content = content[: match.start()] + content[match.end() :]
            changed.append(f"{line.client}: {line.name}")
            if line.moves and moved is not None:
                moved.append(match[0].strip())
    return content


def _with(content: Any, text: str) -> Any:
    """Returns a message's content with one more text at its end."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": f"\n\n{text}"}]
    return f"{content}\n\n{text}" if content else text
