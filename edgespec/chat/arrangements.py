"""Conversations arranged so that a strict template takes them: merged, split, or put into words.

Clients send system messages anywhere, two users in a row, answers first, and several calls at once. Many
templates refuse some of that, and some leave a message out without a word. An arrangement says the same
in another shape; `ARRANGEMENTS` are tried in their order, the one closest to what was sent first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Turns = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a conversation is arranged. in_words: calls and results are text, too."""

    steps: tuple[Callable[[Turns], Turns], ...] = ()
    in_words: bool = False

    def of(self, turns: Turns) -> Turns:
        """Returns the conversation in this shape."""
        for step in self.steps:
            turns = step(turns)
        return turns


def joined(texts: Sequence[str]) -> str:
    """Returns several messages' texts as one."""
    return "\n\n".join(text for text in texts if text)


def one_system_first(turns: Turns) -> Turns:
    """Joins the system messages at the beginning: most templates read only one."""
    n = next((i for i, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    if n < 2:
        return turns
    return [{"role": "system", "content": joined([turn["content"] for turn in turns[:n]])}, *turns[n:]]


def systems_within_users(turns: Turns) -> Turns:
    """Moves each system message into the user's next one; the last ones become the user's own."""
    found: Turns = []
    waiting: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            waiting.append(turn["content"])
        elif waiting and turn["role"] == "user":
            found.append({**turn, "content": joined([*waiting, turn["content"]])})
            waiting = []
        else:
            found.append(turn)
    if waiting:
        found.append({"role": "user", "content": joined(waiting)})
    return found


def later_systems_within_users(turns: Turns) -> Turns:
    """Leaves a system message at the beginning, and moves the others into the user's."""
    first = turns[:1] if turns and turns[0]["role"] == "system" else []
    return [*first, *systems_within_users(turns[len(first) :])]


def one_user_at_a_time(turns: Turns) -> Turns:
    """Merges consecutive messages of the user."""
    found: Turns = []
    for turn in turns:
        if found and turn["role"] == found[-1]["role"] == "user":
            found[-1] = {**turn, "content": f"{found[-1]['content']}\n{turn['content']}"}
        else:
            found.append(turn)
    return found


def one_call_each(turns: Turns) -> Turns:
    """Splits an answer with several calls: each has an answer of its own, with its results behind it."""
    found: Turns = []
    i = 0
    while i < len(turns):
        turn, i = turns[i], i + 1
        calls = turn.get("tool_calls") or []
        if len(calls) < 2:
            found.append(turn)
            continue
        results: Turns = []
        while i < len(turns) and turns[i]["role"] == "tool":
            results.append(turns[i])
            i += 1
        for n, call in enumerate(calls):
            answer = turn if n == 0 else {"role": turn["role"], "content": ""}
            ours = [result for result in results if result.get("tool_call_id") == call.get("id")]
            ours = ours or results[:1]  # they come in order where their ids say nothing
            results = [result for result in results if all(result is not one for one in ours)]
            found += [{**answer, "tool_calls": [call]}, *(ours if n < len(calls) - 1 else [*ours, *results])]
    return found


def text_apart(turns: Turns) -> Turns:
    """Splits an answer that has a text and calls: many templates leave out the text beside a call."""
    found: Turns = []
    for turn in turns:
        if turn.get("tool_calls") and turn["content"]:
            found.append({"role": turn["role"], "content": turn["content"]})
            turn = {**turn, "content": ""}
        found.append(turn)
    return found


def in_turn(turns: Turns) -> Turns:
    """Merges and adds messages until user and assistant take turns, the user first."""
    found: Turns = []
    for turn in turns:
        before = found[-1]["role"] if found else "system"
        if turn["role"] == "user" and before in ("user", "tool"):
            found[-1] = {**found[-1], "content": joined([found[-1]["content"], turn["content"]])}
        elif turn["role"] == before == "assistant":
            found[-1] = _together(found[-1], turn)
        else:
            if turn["role"] == "assistant" and before == "system":
                found.append({"role": "user", "content": ""})
            found.append(turn)
    return found


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns two answers as one."""
    both = {**one, **other, "content": joined([one["content"], other["content"]])}
    if calls := [*(one.get("tool_calls") or ()), *(other.get("tool_calls") or ())]:
        both["tool_calls"] = calls
    thoughts = [turn["reasoning_content"] for turn in (one, other) if turn.get("reasoning_content")]
    return {**both, "reasoning_content": joined(thoughts)} if thoughts else both


_LATER = later_systems_within_users
ARRANGEMENTS = (
    Arrangement(),
    Arrangement((_LATER,)),
    Arrangement((_LATER, one_call_each)),
    Arrangement((_LATER, one_call_each, text_apart)),
    Arrangement((_LATER, in_turn)),
    Arrangement((_LATER, in_turn, one_call_each)),
    Arrangement((_LATER, in_turn, one_call_each, text_apart)),
    Arrangement((_LATER, in_turn), in_words=True),
    Arrangement((systems_within_users, in_turn), in_words=True),
)
