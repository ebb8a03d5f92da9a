"""Turns of the assistant -> Anthropic's messages: blocks of text, thinking and tools, whole or as events."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from sse_starlette import ServerSentEvent

from edgespec.chat.families.deltas import CallArguments, CallBegun, Content, Delta, Reasoning
from edgespec.server.event_stream import EventStream, event
from edgespec.server.generation import AnswerChoices
from edgespec.server.refusal import Refusal
from edgespec.server.turns import TurnReader


@dataclass(slots=True)
class MessageAnswer:
    """How one conversation is answered. asked_stops: the client's stop strings."""

    model: str
    turn: TurnReader
    request_id: str
    asked_stops: tuple[str, ...] = ()
    id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(12))
    _stopped_by: str = ""
    _blocks: int = 0  # started so far
    _open: str = ""  # the type of the open block

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        """Returns the message in one piece. Raises Refusal."""
        async for part in generation.rounds():
            self.turn.feed(part.round)
            self._stopped_by = part.round.stopped_by
        ended = self._ended(generation.choices[0].finish)
        message = self._message(self._usage(generation))
        return {**message, "content": self._content(), **ended, **self._ours(generation)}

    def _ours(self, generation: AnswerChoices) -> dict[str, Any]:
        choice = generation.choices[0]
        return choice.edgespec_object(self.turn.parser.unread, choice.reuse())

    def _message(self, usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _content(self) -> list[dict[str, Any]]:
        turn = self.turn.turn
        blocks: list[dict[str, Any]] = []
        if turn.reasoning:
            blocks.append({"type": "thinking", "thinking": turn.reasoning, "signature": ""})
        if turn.content or not turn.calls:
            blocks.append({"type": "text", "text": turn.content})
        for call in turn.calls:
            blocks.append({"type": "tool_use", "id": _id(call.id), "name": call.name, "input": call.parsed})
        return blocks

    def _ended(self, finish: str | None) -> dict[str, Any]:
        stopped = self._stopped_by if self._stopped_by in self.asked_stops else None
        reason = {"length": "max_tokens", "tool_calls": "tool_use"}.get(
            self.turn.finish(finish) or "", "stop_sequence" if stopped else "end_turn"
        )
        return {"stop_reason": reason, "stop_sequence": stopped if reason == "stop_sequence" else None}

    def _usage(self, generation: AnswerChoices) -> dict[str, Any]:
        choice = generation.choices[0]
        return {
            "input_tokens": choice.prompt_tokens - choice.cached_tokens,
            "cache_read_input_tokens": choice.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": choice.n_tokens,
        }

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a message. Raises Refusal."""
        yield _event("message_start", {"message": self._message(self._usage(generation))})
        yield _event("ping", {})
        finish = None
        async for part in generation.rounds():
            for delta in self.turn.feed(part.round):
                for one in self._events(delta):
                    yield one
            finish = part.round.finish or finish
            self._stopped_by = part.round.stopped_by
        begun = [] if self._blocks else self._begin("text", {"type": "text", "text": ""})
        for one in [*begun, *self._end()]:
            yield one
        ended = {"delta": self._ended(finish), "usage": self._usage(generation)}
        yield _event("message_delta", {**ended, **self._ours(generation)})
        yield _event("message_stop", {})

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> ServerSentEvent:
        """Returns the last event of a stream that has failed."""
        return event(error_of(refusal, self.request_id), "error")

    def _events(self, delta: Delta) -> list[ServerSentEvent]:
        match delta:
            case Content(text):
                begun = self._begin("text", {"type": "text", "text": ""})
                return [*begun, self._more({"type": "text_delta", "text": text})]
            case Reasoning(text):
                begun = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                return [*begun, self._more({"type": "thinking_delta", "thinking": text})]
            case CallBegun(_, name, id):
                return self._begin(
                    f"call {id}", {"type": "tool_use", "id": _id(id), "name": name, "input": {}}
                )
            case CallArguments(_, text):
                return [self._more({"type": "input_json_delta", "partial_json": text})]

    def _begin(self, what: str, block: dict[str, Any]) -> list[ServerSentEvent]:
        """Opens a block, unless one of its type is open."""
        if what == self._open:
            return []
        events = self._end()
        self._open = what
        self._blocks += 1
        return [*events, _event("content_block_start", {"index": self._blocks - 1, "content_block": block})]

    def _more(self, delta: dict[str, Any]) -> ServerSentEvent:
        return _event("content_block_delta", {"index": self._blocks - 1, "delta": delta})

    def _end(self) -> list[ServerSentEvent]:
        if not self._open:
            return []
        thought, self._open = self._open == "thinking", ""
        signed = [self._more({"type": "signature_delta", "signature": ""})] if thought else []
        return [*signed, _event("content_block_stop", {"index": self._blocks - 1})]


class MessageStream(EventStream):
    """A message as events, all of which have names: clients look at nothing else."""

    @staticmethod
    def failed(error: bytes) -> bytes:
        return b"event: error\ndata: %b\n\n" % error


def _event(name: str, data: dict[str, Any]) -> ServerSentEvent:
    return event({"type": name, **data}, name)


def _id(call: str) -> str:
    """Returns a call's id as Anthropic spells ids."""
    return "toolu_" + call.removeprefix("call_")


ERRORS = dict.fromkeys((400, 405, 415, 422, 501), "invalid_request_error") | {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_of(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """Returns Anthropic's error object; its sentence names the wrong field."""
    message = refusal.body()["error"]["message"]
    if refusal.code == "context_length_exceeded":  # clients look for these words, and shorten then
        n, most = (refusal.extra or {}).get("n_prompt_tokens"), (refusal.extra or {}).get("n_ctx")
        message = f"prompt is too long: {f'{n} tokens > {most} maximum' if n else message}"
    error = {"type": ERRORS.get(refusal.status, "api_error"), "message": message}
    return {"type": "error", "error": error, "request_id": request_id}
