"""Generations -> what OpenAI's clients read: whole answers, and chunks of a stream.

`CompletionAnswer` has what both dialects share, and answers text completions; chat is in `chat.py`.
"""

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sse_starlette import ServerSentEvent

from edgespec import __version__
from edgespec.server.dialects.openai.requests import GenerationRequest
from edgespec.server.events import done, event
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.logprobs import Scored, for_text
from edgespec.server.refusal import Refusal

FINGERPRINT = f"build-edgespec-{__version__}"


@dataclass(slots=True)
class CompletionAnswer:
    """How one request is answered. plain_s: see `ChoiceResults.timings`."""

    kind: ClassVar[str] = "cmpl"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    nothing: ClassVar[dict[str, Any]] = {"text": ""}  # an empty chunk
    scores: ClassVar[Callable[..., dict[str, Any]]] = staticmethod(for_text)

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

    def _hear(self, part: ChoiceRound) -> None:
        """Takes a round of an answer that is sent in one piece."""

    def _said(self, index: int, text: str) -> dict[str, Any]:
        """Returns the text of a whole choice."""
        return {"text": (self.echo[index] if self.echo else "") + text}

    def _finish(self, index: int, finish: str | None) -> str | None:
        return finish

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
            self._hear(part)
        choices = []
        for i, choice in enumerate(generation.choices):
            said = self._said(i, "".join(choice.text))
            finish = self._finish(i, choice.finish)
            logprobs = self._logprobs(choice.scored)
            choices.append({"index": i, **said, "logprobs": logprobs, "finish_reason": finish})
        timings = [choice.timings(self.plain_s) for choice in generation.choices]
        if len(choices) > 1:
            choices = [{**choice, "timings": t} for choice, t in zip(choices, timings, strict=True)]
        frame = self._frame(self.whole_object)
        return {**frame, "choices": choices, "usage": self._usage(generation), "timings": timings[0]}

    def _logprobs(self, scored: Sequence[Scored]) -> dict[str, Any] | None:
        scoring = self.body.scoring()
        return self.scores(scored, sampled=scoring.sampled) if scoring else None

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a stream; a failure in the middle is its last event."""
        for i in range(len(generation.choices)):
            if opening := self._opening(i):
                yield self._chunk(i, opening)
        try:
            async for part in generation.rounds():
                for chunk in self._chunks(generation, part):
                    yield chunk
        except Refusal as refusal:
            yield event(refusal.body())
            return
        if self.body.usage_in_stream:
            frame = {**self._frame(self.chunk_object), "choices": [], "usage": self._usage(generation)}
            timings = generation.choices[0].timings(self.plain_s)
            yield event({**frame, "timings": timings})
        yield done()

    def _chunks(self, generation: AnswerChoices, part: ChoiceRound) -> list[ServerSentEvent]:
        finish, choice = part.round.finish, generation.choices[part.index]
        timings = {"timings": choice.timings(self.plain_s)} if finish or self.body.timings_per_token else {}
        told: dict[str, Any] = {**timings} if self.body.timings_per_token else {}
        if part.reading:
            progress = {"prompt_progress": choice.progress(), **told}
            return [self._chunk(part.index, self.nothing, progress)]
        if events := self.body.speculation.events:
            told["edgespec"] = _told(generation, part)
        parts = [] if self.body.warms_up else self._parts(part)
        if not parts and (events or part.scored):
            parts = [{**self.nothing}]
        if part.scored:
            parts[0]["logprobs"] = self._logprobs(part.scored)
        chunks = [self._chunk(part.index, said, told if i == 0 else None) for i, said in enumerate(parts)]
        if finish:
            last = {**self.nothing, "finish_reason": self._finish(part.index, finish)}
            chunks.append(self._chunk(part.index, last, timings))
        return chunks

    def _chunk(
        self, index: int, said: dict[str, Any], beside: dict[str, Any] | None = None
    ) -> ServerSentEvent:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **said}
        frame = self._frame(self.chunk_object)
        nothing = {"usage": None} if self.body.usage_in_stream else {}
        return event({**frame, "choices": [choice], **nothing, **(beside or {})})


def _told(generation: AnswerChoices, part: ChoiceRound) -> dict[str, Any]:
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
        **({"seconds": round_.seconds} if round_.seconds else {}),
    }
