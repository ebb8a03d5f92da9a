"""The loop of an answer that may call tools: a message of the model's, its calls, their results, the next.

It knows neither screen nor servers: what asks the model, what asks the user and what runs a call are given to
it. There is one line that runs a call, behind the one that asks whether it may.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edgespec.errors import EdgeSpecError
from edgespec.system.odd_text import as_text
from edgespec_tui.endpoint.endpoint import Role
from edgespec_tui.tools.values import Call, Result, Tool

Decision = Literal["once", "always", "no"]
MOST_ROUNDS = 10
CHARACTERS_PER_TOKEN = 3
MOST_CALLS = 16  # of one message
LEAST_ROOM, MOST_ROOM = 1000, 40_000  # characters of a result
REFUSED = "The user did not allow this call. Do not repeat it: answer without it, or ask what to do instead."
STOPPED = "The user stopped this call; nothing is known of its result."
TOO_MANY = "No more tools can be called in this answer: answer with what you know."


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call that the model wants to make."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call that waits for the user."""

    tool: Tool
    arguments: Mapping[str, Any]


async def nothing(_call: Call) -> None:
    """Does nothing with a call that has changed."""


@dataclass(slots=True)
class ToolLoop:
    """The calls of one answer."""

    offered: Mapping[str, Tool]  # by the names that the model was given
    run: Callable[[Tool, Mapping[str, Any]], Awaitable[Result]]  # raises EdgeSpecError
    decide: Callable[[Proposal], Awaitable[Decision]]  # asks the user
    changed: Callable[[Call], Awaitable[None]] = nothing  # a call was added, or has another outcome
    clean: Callable[[str], str] = as_text  # removes from a result what no text has
    keep: Callable[[str], str] = lambda _: ""  # keeps a whole result; returns the file
    always: set[str] = field(default_factory=set)  # keys of tools that need not be asked about
    most_rounds: int = MOST_ROUNDS
    room: int = MOST_ROOM  # characters of a result that the model gets
    calls: list[Call] = field(default_factory=list)

    async def answer(self, ask: Callable[[bool], Awaitable[tuple[Sequence[Wanted], int]]]) -> None:
        """Has the model answer until it calls nothing more.

        ask: one message of the model's. It is given whether tools may be called, and returns the calls, and
        how many characters the answer has now. A cancelled call stays, marked as stopped.
        """
        for number in range(self.most_rounds + 1):
            wanted, place = await ask(number < self.most_rounds)
            if not wanted:
                return
            first = len(self.calls)
            round_ = self.calls[-1].round + 1 if self.calls else 0
            for one in wanted[:MOST_CALLS]:
                tool = self.offered.get(one.name)
                whose = (tool.server, tool.name) if tool else ("", "")
                self.calls.append(Call(one.id, one.name, one.arguments, *whose, round=round_, at=place))
            try:
                for index in range(first, len(self.calls)):
                    await self._perform(index, may=number < self.most_rounds)
            finally:
                for index in range(first, len(self.calls)):
                    if self.calls[index].outcome == "asked":
                        self.calls[index] = replace(self.calls[index], outcome="stopped", result=STOPPED)

    def n_tokens(self) -> int:
        """Returns about how many tokens the tools take in a prompt, rather too many than too few."""
        return sum(
            len(json.dumps([name, tool.description, dict(tool.schema)])) // CHARACTERS_PER_TOKEN + 16
            for name, tool in self.offered.items()
        )

    async def _perform(self, index: int, *, may: bool) -> None:
        """Makes one call, if the user allows it."""
        call = self.calls[index]
        await self.changed(call)
        tool, arguments = self.offered.get(call.name), as_arguments(call.arguments)
        if not may:
            call = replace(call, outcome="refused", result=TOO_MANY)
        elif tool is None:
            wrong = f"There is no tool {call.name!r}: there is {', '.join(self.offered) or 'none'}."
            call = replace(call, outcome="failed", result=wrong)
        elif arguments is None:
            wrong = "The arguments are not a JSON object: write them as the tool's schema has them."
            call = replace(call, outcome="failed", result=wrong)
        elif await self._allowed(Proposal(tool, arguments)):
            call = await self._run(call, tool, arguments)
        else:
            call = replace(call, outcome="refused", result=REFUSED)
        self.calls[index] = call
        await self.changed(call)

    async def _allowed(self, proposal: Proposal) -> bool:
        key = proposal.tool.key
        if key in self.always:
            return True
        decision = await self.decide(proposal)
        if decision == "always":
            self.always.add(key)
        return decision in ("once", "always")

    async def _run(self, call: Call, tool: Tool, arguments: Mapping[str, Any]) -> Call:
        began = time.monotonic()
        try:
            result = await self.run(tool, arguments)
        except EdgeSpecError as error:
            result = Result(f"The call failed: {error}.", failed=True)
        whole = self.clean(result.text)
        text, kept = cut(whole, self.room), ""
        if text != whole:
            kept = self.keep(whole)
        return replace(
            call,
            outcome="failed" if result.failed else "done",
            result=text or "(the tool returned nothing)",
            seconds=round(time.monotonic() - began, 3),
            kept=kept,
        )


def as_arguments(text: str) -> dict[str, Any] | None:
    """Returns the arguments of a call; None for what is no object."""
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def cut(text: str, room: int) -> str:
    """Returns a text of about `room` characters: of a longer one, the beginning and the end."""
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def room_in(n_ctx: int | None) -> int:
    """Returns how many characters of a result a context of so many tokens takes: a third of it, about."""
    return MOST_ROOM if n_ctx is None else min(MOST_ROOM, max(LEAST_ROOM, n_ctx))


async def by_rule(rule: str, proposal: Proposal) -> Decision:
    """Decides without asking: "all" allows every call, "read" those of tools that only read, "none" none."""
    return "once" if rule == "all" or (rule == "read" and proposal.tool.reads_only) else "no"


def messages_of_calls(text: str, calls: Sequence[Call]) -> list[tuple[Role, str, dict[str, Any]]]:
    """Returns an answer with calls as messages: role, text, and the further fields of each."""
    messages: list[tuple[Role, str, dict[str, Any]]] = []
    begin = 0
    for number in sorted({call.round for call in calls}):
        these = [call for call in calls if call.round == number]
        end = max(begin, these[0].at)
        wanted = {"tool_calls": [one.requested() for one in these]}
        messages.append(("assistant", text[begin:end].strip("\n"), wanted))
        for one in these:
            messages.append(("tool", one.result or STOPPED, {"tool_call_id": one.id, "name": one.name}))
        begin = end
    if rest := text[begin:].strip("\n") if calls else text:
        messages.append(("assistant", rest, {}))
    return messages
