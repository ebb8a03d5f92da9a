"""Turns of the assistant -> OpenAI's responses: items of reasoning, message and calls, whole or as events."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sse_starlette import ServerSentEvent

from edgespec.chat.families.deltas import CallArguments, CallBegun, Content, Delta, Reasoning
from edgespec.server.dialects.responses.requests import INPUT, KnownTool
from edgespec.server.event_stream import event
from edgespec.server.generation import AnswerChoices
from edgespec.server.refusal import Refusal
from edgespec.server.turns import TurnReader

Event = tuple[str, dict[str, Any]]


@dataclass(slots=True)
class Item:
    """One item of the output, as far as it is written."""

    kind: str  # "reasoning", "message" or "call"
    id: str
    index: int
    text: str = ""
    name: str = ""
    call_id: str = ""


@dataclass(slots=True)
class ResponseAnswer:
    """How one request is answered."""

    model: str
    turn: TurnReader
    echoed: Mapping[str, Any]  # what a response repeats of its request
    tools: Mapping[str, KnownTool]
    plain_s: float
    timings: bool = False  # in every event
    id: str = field(default_factory=lambda: "resp_" + secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))
    _items: list[Item] = field(default_factory=list)
    _sent: int = 0  # events so far

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        """Returns the response in one piece. Raises Refusal."""
        async for part in generation.rounds():
            for delta in self.turn.feed(part.round):
                self._events(delta)
        status = _status(generation.choices[0].finish)
        return {**self._response(status, generation), **self._timings(generation)}

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a response. Raises Refusal."""
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, {"response": self._response("in_progress", None)})
        finish = None
        async for part in generation.rounds():
            more = self._timings(generation) if self.timings else {}
            if part.reading:
                progress = {"prompt_progress": generation.choices[0].progress(), **more}
                now = self._response("in_progress", None)
                yield self._event("response.in_progress", {"response": now, **progress})
            for delta in self.turn.feed(part.round):
                for name, data in self._events(delta):
                    yield self._event(name, {**data, **more})
            finish = part.round.finish or finish
        for last_event in self._end():
            yield self._event(*last_event)
        status = _status(finish)
        last = {"response": self._response(status, generation), **self._timings(generation)}
        yield self._event(f"response.{status}", last)

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> ServerSentEvent:
        """Returns the last event of a stream that has failed."""
        error = {"code": "server_error", "message": refusal.message}
        failed = {**self._response("failed", generation), "error": error}
        return self._event("response.failed", {"response": failed})

    def _timings(self, generation: AnswerChoices) -> dict[str, Any]:
        choice = generation.choices[0]
        timings = choice.timings(self.plain_s)
        return {"timings": timings, **choice.edgespec_object(self.turn.parser.unread)}

    def _event(self, name: str, data: dict[str, Any]) -> ServerSentEvent:
        self._sent += 1
        numbered = {"type": name, "sequence_number": self._sent - 1, **data}
        return event(numbered, name)

    def _response(self, status: str, generation: AnswerChoices | None) -> dict[str, Any]:
        ended = status != "in_progress"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": [self._item(item, status) for item in self._items] if ended else [],
            **self.echoed,
            "usage": self._usage(generation) if ended and generation else None,
        }

    def _usage(self, generation: AnswerChoices) -> dict[str, Any]:
        choice = generation.choices[0]
        return {
            "input_tokens": choice.prompt_tokens,
            "input_tokens_details": {"cached_tokens": choice.cached_tokens},
            "output_tokens": choice.n_tokens,
            "output_tokens_details": {"reasoning_tokens": self.turn.reasoning_tokens},
            "total_tokens": choice.prompt_tokens + choice.n_tokens,
        }

    # -- items

    def _events(self, delta: Delta) -> list[Event]:
        """Returns the events of a delta, and adds it to the items."""
        match delta:
            case Content(text):
                return [*self._begin("message", "msg_"), *self._more(text)]
            case Reasoning(text):
                return [*self._begin("reasoning", "rs_"), *self._more(text)]
            case CallBegun(_, name, id):
                ended = self._end()
                item = Item("call", "fc_" + secrets.token_hex(16), len(self._items), name=name, call_id=id)
                self._items.append(item)
                return [*ended, self._added(item)]
            case CallArguments(_, text):
                return self._more(text)

    def _begin(self, kind: str, prefix: str) -> list[Event]:
        if self._items and self._items[-1].kind == kind:
            return []
        events = self._end()
        item = Item(kind, prefix + secrets.token_hex(16), len(self._items))
        self._items.append(item)
        events.append(self._added(item))
        if kind == "message":
            added = {**_place(item), "content_index": 0, "part": _part("")}
            events.append(("response.content_part.added", added))
        return events

    def _added(self, item: Item) -> Event:
        whole = self._item(item, "in_progress")
        return "response.output_item.added", {"output_index": item.index, "item": whole}

    def _more(self, text: str) -> list[Event]:
        item = self._items[-1]
        item.text += text
        delta = {**_place(item), "delta": text}
        if item.kind == "message":
            return [("response.output_text.delta", {**delta, "content_index": 0, "logprobs": []})]
        if item.kind == "reasoning":
            return [("response.reasoning_text.delta", {**delta, "content_index": 0})]
        return [] if self._is_custom(item) else [("response.function_call_arguments.delta", delta)]

    def _end(self) -> list[Event]:
        """Ends the item that was begun last."""
        if not self._items:
            return []
        item = self._items[-1]
        whole, place = self._item(item, "completed"), _place(item)
        events: list[Event] = []
        if item.kind == "message":
            text = {**place, "content_index": 0, "text": item.text, "logprobs": []}
            part = {**place, "content_index": 0, "part": whole["content"][0]}
            events = [("response.output_text.done", text), ("response.content_part.done", part)]
        elif item.kind == "reasoning":
            events = [("response.reasoning_text.done", {**place, "content_index": 0, "text": item.text})]
        elif self._is_custom(item):
            done = {**place, "input": whole["input"]}
            events = [
                ("response.custom_tool_call_input.delta", {**place, "delta": whole["input"]}),
                ("response.custom_tool_call_input.done", done),
            ]
        else:
            done = {**place, "name": item.name, "arguments": item.text}
            events = [("response.function_call_arguments.done", done)]
        return [*events, ("response.output_item.done", {"output_index": item.index, "item": whole})]

    def _is_custom(self, item: Item) -> bool:
        tool = self.tools.get(item.name)
        return tool is not None and tool.custom

    def _item(self, item: Item, status: str) -> dict[str, Any]:
        """Returns an item as clients read it."""
        begun = status == "in_progress"
        state = "in_progress" if begun else "completed" if status != "incomplete" else "incomplete"
        if item.kind == "message":
            content = [] if begun else [_part(item.text)]
            return {
                "type": "message",
                "id": item.id,
                "role": "assistant",
                "status": state,
                "content": content,
            }
        if item.kind == "reasoning":
            content = [] if begun else [{"type": "reasoning_text", "text": item.text}]
            rest = {"summary": [], "content": content, "encrypted_content": None}
            return {"type": "reasoning", "id": item.id, **rest, "status": state}
        tool = self.tools.get(item.name)
        space = {"namespace": tool.namespace} if tool and tool.namespace else {}
        called = {"id": item.id, "call_id": item.call_id, "name": item.name, "status": state, **space}
        if self._is_custom(item):
            return {"type": "custom_tool_call", **called, "input": "" if begun else _input(item.text)}
        return {"type": "function_call", **called, "arguments": "" if begun else item.text}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index}


def _status(finish: str | None) -> str:
    return "incomplete" if finish == "length" else "completed"


def _input(arguments: str) -> str:
    """Returns the text argument of a custom tool."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
