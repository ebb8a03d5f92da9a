"""Generations -> what OpenAI's clients read: whole answers, and chunks of a stream.

`CompletionAnswer` answers text completions, and has what chats share with them.
"""

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sse_starlette import ServerSentEvent

from edgespec.chat.families.deltas import CallArguments, CallBegun, Content, Delta, Reasoning
from edgespec.server.dialects.dialect import FINGERPRINT
from edgespec.server.event_stream import done, event
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.logprobs import Scored, for_chat, for_text
from edgespec.server.refusal import Refusal
from edgespec.server.requests.generation import GenerationRequest
from edgespec.server.turns import TurnReader


@dataclass(slots=True)
class CompletionAnswer:
    """How one request is answered. plain_s: see `ChoiceResults.timings`."""

    kind: ClassVar[str] = "cmpl"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"

    model: str
    plain_s: float
    body: GenerationRequest
    echo: Sequence[str] = ()  # the prompts' texts, before each choice
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    # -- what each dialect says in its own way

    def _opening(self, index: int) -> dict[str, Any] | None:
        """Returns the first chunk of a choice, None if there is none."""
        return {"text": self.echo[index]} if self.echo else None

    def _parts(self, part: ChoiceRound) -> list[dict[str, Any]]:
        """Returns a round's text, chunk by chunk."""
        return [{"text": part.round.text}] if part.round.text else []

    def _nothing(self) -> dict[str, Any]:
        """Returns an empty chunk."""
        return {"text": ""}

    def _unread(self, index: int) -> int:
        """Returns how many calls of a choice could not be read."""
        del index
        return 0

    def _feed(self, part: ChoiceRound) -> None:
        """Takes a round of an answer that is sent in one piece."""

    def _content(self, index: int, text: str) -> dict[str, Any]:
        """Returns the text of a whole choice."""
        return {"text": (self.echo[index] if self.echo else "") + text}

    def _finish(self, index: int, finish: str | None) -> str | None:
        return finish

    def _scores(self, scored: Sequence[Scored], sampled: bool) -> dict[str, Any]:
        return for_text(scored, sampled=sampled)

    def _usage(self, generation: AnswerChoices) -> dict[str, Any]:
        return generation.usage()

    # -- what they share

    def _frame(self, object: str) -> dict[str, Any]:
        return {
            "id": f"{self.kind}-{self.id}",
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        """Returns the answer in one piece, once it has ended. Raises Refusal."""
        async for part in generation.rounds():
            if self.body.warms_up:
                continue
            generation.choices[part.index].text.append(part.round.text)
            generation.choices[part.index].scored.extend(part.scored)
            self._feed(part)
        choices = []
        for i, choice in enumerate(generation.choices):
            content = self._content(i, "".join(choice.text))
            finish = self._finish(i, choice.finish)
            logprobs = self._logprobs(choice.scored)
            choices.append({"index": i, **content, "logprobs": logprobs, "finish_reason": finish})
        timings = [choice.timings(self.plain_s) for choice in generation.choices]
        if len(choices) > 1:
            choices = [{**choice, "timings": t} for choice, t in zip(choices, timings, strict=True)]
        frame = self._frame(self.whole_object)
        ours = generation.choices[0].edgespec_object(self._unread(0))
        usage = {"usage": self._usage(generation), "timings": timings[0]}
        return {**frame, "choices": choices, **usage, **ours}

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any] | None:
        scoring = self.body.scoring()
        return self._scores(scored, scoring.sampled) if scoring else None

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a stream. Raises Refusal."""
        for i in range(len(generation.choices)):
            if opening := self._opening(i):
                yield self._chunk(i, opening)
        async for part in generation.rounds():
            for chunk in self._chunks(generation, part):
                yield chunk
        if self.body.usage_in_stream:
            frame = {**self._frame(self.chunk_object), "choices": [], "usage": self._usage(generation)}
            timings = generation.choices[0].timings(self.plain_s)
            yield event({**frame, "timings": timings})
        yield done()

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> ServerSentEvent:
        """Returns the last event of a stream that has failed."""
        return event(refusal.body())

    def _chunks(self, generation: AnswerChoices, part: ChoiceRound) -> list[ServerSentEvent]:
        finish, choice = part.round.finish, generation.choices[part.index]
        timings = {"timings": choice.timings(self.plain_s)} if finish or self.body.timings_per_token else {}
        figures: dict[str, Any] = {**timings} if self.body.timings_per_token else {}
        if part.reading:
            progress = {"prompt_progress": choice.progress(), **figures}
            return [self._chunk(part.index, self._nothing(), progress)]
        if events := self.body.speculation.events:
            figures["edgespec"] = _figures(generation, part)
        parts = ([] if self.body.warms_up else self._parts(part)) or (
            [self._nothing()] if events or part.scored else []
        )
        if part.scored:
            parts[0]["logprobs"] = self._logprobs(part.scored)
        chunks = [
            self._chunk(part.index, content, figures if i == 0 else None) for i, content in enumerate(parts)
        ]
        if finish:
            last = {**self._nothing(), "finish_reason": self._finish(part.index, finish)}
            ours = choice.edgespec_object(self._unread(part.index))
            chunks.append(self._chunk(part.index, last, {**timings, **ours}))
        return chunks

    def _chunk(
        self, index: int, content: dict[str, Any], figures: dict[str, Any] | None = None
    ) -> ServerSentEvent:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **content}
        frame = self._frame(self.chunk_object)
        nothing = {"usage": None} if self.body.usage_in_stream else {}
        return event({**frame, "choices": [choice], **nothing, **(figures or {})})


def _figures(generation: AnswerChoices, part: ChoiceRound) -> dict[str, Any]:
    """Returns the `edgespec` object of a chunk, for a round."""
    round_ = part.round
    return {
        "round": generation.choices[part.index].rounds,
        "tokens": round_.tokens,
        "pieces": part.pieces,
        "sources": round_.sources,
        "drafted": round_.drafted,
        "accepted": round_.accepted,
        "gain": round_.gain,
        **({"notice": round_.notice} if round_.notice else {}),
        **({"seconds": part.seconds} if part.seconds else {}),
    }


@dataclass(slots=True)
class ChatAnswer(CompletionAnswer):
    """How one conversation is answered."""

    kind: ClassVar[str] = "chatcmpl"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"

    turns: list[TurnReader] = field(default_factory=list)  # who reads each choice
    prompt: str | None = None  # if it is to be shown
    functions: bool = False  # a call is reported in the format from before there were tools

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        answer = await CompletionAnswer.whole(self, generation)
        return answer if self.prompt is None else {**answer, "__verbose": {"prompt": self.prompt}}

    def _opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": None}}

    def _parts(self, part: ChoiceRound) -> list[dict[str, Any]]:
        deltas = [_delta(delta) for delta in self.turns[part.index].feed(part.round)]
        return [{"delta": _in_older_words(delta) if self.functions else delta} for delta in deltas]

    def _nothing(self) -> dict[str, Any]:
        return {"delta": {}}

    def _unread(self, index: int) -> int:
        return self.turns[index].parser.unread

    def _feed(self, part: ChoiceRound) -> None:
        self.turns[part.index].feed(part.round)

    def _content(self, index: int, text: str) -> dict[str, Any]:
        del text  # the reader has it
        turn = self.turns[index].turn
        message: dict[str, Any] = {
            "role": "assistant",
            "content": turn.content or (None if turn.calls else ""),
        }
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in turn.calls
            ]
        return {"message": _in_older_words(message) if self.functions else message}

    def _finish(self, index: int, finish: str | None) -> str | None:
        found = self.turns[index].finish(finish)
        return "function_call" if self.functions and found == "tool_calls" else found

    def _usage(self, generation: AnswerChoices) -> dict[str, Any]:
        thoughts = sum(turn.reasoning_tokens for turn in self.turns)
        return {**generation.usage(), "completion_tokens_details": {"reasoning_tokens": thoughts}}

    def _scores(self, scored: Sequence[Scored], sampled: bool) -> dict[str, Any]:
        return for_chat(scored, sampled=sampled)


def _in_older_words(delta: dict[str, Any]) -> dict[str, Any]:
    """Returns a message, or a piece of one, with its call as `function_call`."""
    if not (calls := delta.get("tool_calls")):
        return delta
    rest = {name: value for name, value in delta.items() if name != "tool_calls"}
    return {**rest, "function_call": calls[0]["function"]}


class FillAnswer(ChatAnswer):
    """How a gap is filled in Mistral's `fim/completions`: text, in the format of a chat."""

    kind: ClassVar[str] = "fim"

    def _opening(self, index: int) -> dict[str, Any] | None:
        return None

    def _parts(self, part: ChoiceRound) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": part.round.text}}] if part.round.text else []


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegun(index, name, id):
            called = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": called}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
