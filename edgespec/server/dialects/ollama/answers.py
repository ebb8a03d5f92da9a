"""Turns of the assistant -> Ollama's answers: one object, or a line of JSON for each piece."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from edgespec.chat.families.deltas import Content, Reasoning
from edgespec.server.dialects.ollama.requests import LATEST
from edgespec.server.event_stream import EventStream
from edgespec.server.generation import AnswerChoices
from edgespec.server.logprobs import Scored, for_chat
from edgespec.server.refusal import Refusal
from edgespec.server.turns import TurnReader

NANO = 1_000_000_000


@dataclass(slots=True)
class OllamaAnswer:
    """How one request is answered. began: when it arrived, by `time.monotonic`.

    chats: /api/chat, else /api/generate. context: returns the tokens of prompt and answer, if wanted.
    """

    model: str
    turn: TurnReader
    chats: bool
    began: float
    loaded: float  # when its model was there
    plain_s: float
    context: Callable[[Sequence[int]], Awaitable[list[int]]] | None = None
    _tokens: list[int] = field(default_factory=list)

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        """Returns the answer in one piece. Raises Refusal."""
        scored: list[Scored] = []
        async for part in generation.rounds():
            self.turn.feed(part.round)
            self._tokens += part.round.tokens
            scored += part.scored
        turn = self.turn.turn
        message = self._content(turn.content, turn.reasoning, self._calls())
        return {**self._line(message, scored), **await self._end(generation)}

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[bytes]:
        """Yields the lines of an answer. Raises Refusal."""
        async for part in generation.rounds():
            deltas = self.turn.feed(part.round)
            self._tokens += part.round.tokens
            content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
            thinking = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
            if content or thinking or part.scored:
                yield encoded({**self._line(self._content(content, thinking), part.scored), "done": False})
        if calls := self._calls():
            yield encoded({**self._line(self._content("", "", calls), ()), "done": False})
        yield encoded({**self._line(self._content("", ""), ()), **await self._end(generation)})

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> bytes:
        """Returns the last line of a stream that has failed."""
        return encoded(error_of(refusal))

    def _content(self, content: str, thinking: str, calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        thought = {"thinking": thinking} if thinking else {}
        if not self.chats:
            return {"response": content, **thought}
        called = {"tool_calls": list(calls)} if calls else {}
        return {"message": {"role": "assistant", "content": content, **thought, **called}}

    def _line(self, message: dict[str, Any], scored: Sequence[Scored]) -> dict[str, Any]:
        scores = {"logprobs": for_chat(scored, sampled=False)["content"]} if scored else {}
        return {**line(self.model, message), **scores}

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {"id": call.id, "function": {"index": i, "name": call.name, "arguments": call.parsed}}
            for i, call in enumerate(self.turn.turn.calls)
        ]

    async def _end(self, generation: AnswerChoices) -> dict[str, Any]:
        choice = generation.choices[0]
        timings = choice.timings(self.plain_s)
        context = {"context": await self.context(self._tokens)} if self.context else {}
        speedups = ("speedup_estimated", "speedup_measured")
        figures: dict[str, Any] = {
            "cached_tokens": choice.cached_tokens,
            "drafted": choice.drafted,
            "accepted": choice.accepted,
            **choice.reuse(),
            **{name: timings[name] for name in speedups if name in timings},
        }
        return {
            "done": True,
            "done_reason": "length" if choice.finish == "length" else "stop",
            **context,
            "total_duration": round((time.monotonic() - self.began) * NANO),
            "load_duration": round((self.loaded - self.began) * NANO),
            "prompt_eval_count": choice.prompt_tokens,
            "prompt_eval_duration": round(timings["prompt_ms"] * NANO / 1000),
            "eval_count": choice.n_tokens,
            "eval_duration": round(timings["predicted_ms"] * NANO / 1000),
            **choice.edgespec_object(self.turn.parser.unread, figures),
        }


class LineStream(EventStream):
    """An answer as lines of JSON, between which nothing else may be."""

    kind = "application/x-ndjson"

    @staticmethod
    def failed(error: bytes) -> bytes:
        return error + b"\n"

    @staticmethod
    def sign(model: str, progress: float | None = None) -> bytes:
        """Returns a line that adds nothing to an answer."""
        nothing = {"response": "", "message": {"role": "assistant", "content": ""}}
        return encoded({**line(tagged(model), nothing), "done": False})


def empty_answer(model: str, *, chats: bool, reason: str) -> dict[str, Any]:
    """Returns the answer to a request that only loads or unloads a model."""
    nothing: dict[str, Any] = {"message": {"role": "assistant", "content": ""}} if chats else {"response": ""}
    return {**line(model, nothing), "done": True, "done_reason": reason}


def tagged(name: str) -> str:
    """Returns a pair's name as Ollama writes names: with a tag."""
    return name if ":" in name else name + LATEST


def line(model: str, content: dict[str, Any]) -> dict[str, Any]:
    """Returns an object of an answer."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")  # as Ollama writes it
    return {"model": model, "created_at": now, **content}


def encoded(line: dict[str, Any]) -> bytes:
    """Returns a line of a stream."""
    text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def error_of(refusal: Refusal, _request_id: str = "") -> dict[str, Any]:
    """Returns a refusal as Ollama has it: a sentence."""
    return {"error": refusal.body()["error"]["message"]}
