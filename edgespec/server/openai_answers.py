"""Generations -> what OpenAI's clients read: whole answers, and chunks of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sse_starlette import ServerSentEvent

from edgespec.server.generation import Generation, Part
from edgespec.server.logprobs import Scored, for_chat, for_text
from edgespec.server.refusal import Refusal
from edgespec.token_scores import Scoring

Dialect = Literal["chat", "text"]
NAMES = {"chat": ("chatcmpl", "chat.completion", "chat.completion.chunk"),
         "text": ("cmpl", "text_completion", "text_completion")}  # fmt: skip


def as_json(value: object) -> str:
    """Returns JSON for the wire."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class Answer:
    """How one request is answered: its identity, and what its stream carries.

    echo: the prompts' texts, in front of each choice. plain_s: see Choice.timings. scoring: what scores of
    tokens mean, where they were asked for.
    """

    dialect: Dialect
    model: str
    plain_s: float
    usage: bool = False
    events: bool = False
    echo: tuple[str, ...] = ()
    scoring: Scoring | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def _frame(self, object: str) -> dict[str, Any]:
        return {
            "id": f"{NAMES[self.dialect][0]}-{self.id}",
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": "edgespec",
        }

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """Returns the answer in one piece, once it has ended. Raises Refusal."""
        async for part in generation.parts():
            generation.choices[part.index].text.append(part.round.text)
            generation.choices[part.index].scored.extend(part.scored)
        choices = []
        for i, choice in enumerate(generation.choices):
            text = (self.echo[i] if self.echo else "") + "".join(choice.text)
            said = {"message": {"role": "assistant", "content": text}} if self._chats else {"text": text}
            logprobs = self._logprobs(choice.scored)
            choices.append({"index": i, **said, "logprobs": logprobs, "finish_reason": choice.finish})
        timings = [choice.timings(self.plain_s) for choice in generation.choices]
        if len(choices) > 1:
            choices = [{**choice, "timings": t} for choice, t in zip(choices, timings, strict=True)]
        frame = self._frame(NAMES[self.dialect][1])
        return {**frame, "choices": choices, "usage": generation.usage(), "timings": timings[0]}

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any] | None:
        if not self.scoring:
            return None
        return (for_chat if self._chats else for_text)(scored, sampled=self.scoring.sampled)

    @property
    def _chats(self) -> bool:
        return self.dialect == "chat"

    async def stream(self, generation: Generation) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a stream; a failure in the middle is its last event."""
        for i in range(len(generation.choices)):
            if self._chats:
                yield self._chunk(i, {"delta": {"role": "assistant", "content": ""}})
            elif self.echo:
                yield self._chunk(i, {"text": self.echo[i]})
        try:
            async for part in generation.parts():
                for chunk in self._chunks(generation, part):
                    yield chunk
        except Refusal as refusal:
            yield ServerSentEvent(as_json(refusal.body()))
            return
        if self.usage:
            frame = self._frame(NAMES[self.dialect][2])
            yield ServerSentEvent(as_json({**frame, "choices": [], "usage": generation.usage()}))
        yield ServerSentEvent("[DONE]")

    def _chunks(self, generation: Generation, part: Part) -> list[ServerSentEvent]:
        text, finish = part.round.text, part.round.finish
        told = {"edgespec": _told(generation, part)} if self.events else {}
        chunks = []
        if text or told:
            said: dict[str, Any] = {"delta": {"content": text}} if self._chats else {"text": text}
            if part.scored:
                said["logprobs"] = self._logprobs(part.scored)
            chunks.append(self._chunk(part.index, said, told))
        if finish:
            last: dict[str, Any] = {"delta": {}} if self._chats else {"text": ""}
            timings = {"timings": generation.choices[part.index].timings(self.plain_s)}
            chunks.append(self._chunk(part.index, {**last, "finish_reason": finish}, timings))
        return chunks

    def _chunk(
        self, index: int, said: dict[str, Any], beside: dict[str, Any] | None = None
    ) -> ServerSentEvent:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **said}
        frame = self._frame(NAMES[self.dialect][2])
        nothing = {"usage": None} if self.usage else {}
        return ServerSentEvent(as_json({**frame, "choices": [choice], **nothing, **(beside or {})}))


def _told(generation: Generation, part: Part) -> dict[str, Any]:
    """Returns what an `edgespec` object in a chunk tells of a round."""
    round_ = part.round
    return {
        "round": generation.choices[part.index].rounds,
        "tokens": round_.tokens,
        "pieces": part.pieces,
        "sources": round_.sources,
        "drafted": round_.drafted,
        "accepted": round_.accepted,
        "gain": round_.gain,
    }
