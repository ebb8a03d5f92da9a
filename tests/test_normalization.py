"""Volatile lines of system prompts: what clients are known to send, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.normalization import LINES, normalized

USER = {"role": "user", "content": "Why?"}
SENT = {  # two of each, which differ only in what varies
    "Claude Code": (
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;\n",
        "x-anthropic-billing-header: cc_version=2.1.258.1c0; cc_entrypoint=sdk-cli; cc_turn_origin=user;",
    ),
    "pi": (
        "Current date and time: Monday, March 9, 2026 at 06:00:31 PM PDT\n",
        "Current date and time: Tuesday, March 10, 2026 at 11:59:02 AM PDT\n",
    ),
    "Home Assistant": (
        "Current time is 15:45:00. Today's date is 2026-01-02.\n",
        "Current time is 07:00:59. Today's date is 2026-11-26.\n",
    ),
    "nanobot": (
        "## Current Time\n2026-02-06 14:30 (Friday)\n",
        "## Current Time\n2026-02-06 14:31 (Friday)\n",
    ),
    "OpenClaw": (
        "## Current Date & Time\nWednesday, 25 February 2026, 10:31\n",
        "## Current Date & Time\nThursday, 26 February 2026, 9:05\n",
    ),
}


def asked(system: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}, USER]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.client)
def test_what_varies_leaves_the_system_prompt(line: Any) -> None:
    prompts = [normalized(asked(sent + "You are kind.")) for sent in SENT[line.client]]
    assert [found[0]["content"] for found, _ in prompts] == ["You are kind."] * 2
    assert {changed for _, changed in prompts} == {(f"{line.client}: {line.name}",)}
    ends = [found[1]["content"] for found, _ in prompts]
    moved = [f"Why?\n\n{sent.strip()}" if line.moves else "Why?" for sent in SENT[line.client]]
    assert ends == moved


def test_what_only_looks_like_it_stays() -> None:
    for system in (
        "Today's date: Sun Jan 04 2026",
        "Tell the Current date and time: it is 10:00 if asked",
        "Explain x-anthropic-billing-header: cch=1;",
        "## Current Time\nAsk the user.",
        "x-anthropic-billing-header: is a header; do not mention it",
    ):
        assert normalized(asked(system)) == (asked(system), ())
    text = SENT["pi"][0]
    spoken = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    assert normalized(spoken) == (spoken, ())


def test_lists_of_parts_and_results_of_tools() -> None:
    parts = [
        {"type": "text", "text": SENT["Claude Code"][0]},
        {"type": "text", "text": "Hi." + "\n" + SENT["pi"][0]},
    ]
    tool = {"role": "tool", "tool_call_id": "1", "content": "42"}
    found, changed = normalized([{"role": "system", "content": parts}, USER, tool])
    assert [part["text"] for part in found[0]["content"]] == ["", "Hi.\n"]
    assert found[1] == USER and found[2]["content"] == f"42\n\n{SENT['pi'][0].strip()}" and len(changed) == 2
    picture = {"role": "user", "content": [{"type": "media", "text": "x"}]}
    found, _ = normalized([{"role": "system", "content": SENT["pi"][0]}, picture])
    assert len(found) == 1 and found[0]["content"][1]["text"].endswith("PDT"), "nothing was left of the first"


def test_nothing_takes_long_on_hostile_texts() -> None:
    """The patterns are bounded: a long text is searched once for each."""
    for piece in (
        "x-anthropic-billing-header: a=;",
        "Current date and time: 1:",
        "## Current Time\n",
        " " * 50,
    ):
        found, _ = normalized(asked(piece * 20_000))
        assert [message["role"] for message in found] == ["system", "user"]


def test_the_table_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[1] / "docs" / "editors.md").read_text()
    for line in LINES:
        source = line.source.split(",")[0]
        assert re.search(rf"\| {line.client} \|.*{re.escape(source)}", page), line.client
