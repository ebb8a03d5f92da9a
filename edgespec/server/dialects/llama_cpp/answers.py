"""Generations -> the answers of llama.cpp's own server to /completion and /infill; tokens -> /tokenize's."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sse_starlette import ServerSentEvent

from edgespec.core.request import Request
from edgespec.protocol.messages import Submit
from edgespec.sampling.settings import Sampling
from edgespec.server.dialects.llama_cpp.requests import LlamaGenerationRequest
from edgespec.server.event_stream import event
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.logprobs import Scored, for_chat
from edgespec.server.refusal import Refusal

ANY_SLOT = -1  # clients are not told which slot a request had


@dataclass(slots=True)
class Written:
    """What one choice has written."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)
    stopped_by: str = ""
    line: int = 0  # where the last line begins
    checked: bool = True  # its indentation is known to be right

    def add(self, part: ChoiceRound, body: LlamaGenerationRequest, ms: float) -> tuple[str, bool]:
        """Takes a round; returns the text to send, and whether it is the last."""
        before = len(self.text)
        self.text += part.round.text
        self.tokens += part.round.tokens
        self.scored += part.scored
        self.stopped_by = part.round.stopped_by
        if body.n_indent and (cut := self._too_far_left(body.n_indent)) is not None:
            self.text = self.text[: max(cut, before)]
            return self.text[before:], True
        late = 0 < (body.t_max_predict_ms or 0) < ms and "\n" in self.text
        return self.text[before:], late

    def _too_far_left(self, indent: int) -> int | None:
        """Returns where the text begins on a line that is indented less than wanted."""
        while True:
            if not self.checked:
                rest = self.text[self.line :]
                blank = len(rest) - len(rest.lstrip(" \t"))
                if blank == len(rest):
                    return None
                self.checked = True
                if rest[blank] != "\n" and blank < indent:
                    return self.line + blank
            end = self.text.find("\n", self.line)
            if end < 0:
                return None
            self.line, self.checked = end + 1, False


@dataclass(slots=True)
class LlamaAnswer:
    """How one request is answered. prompts: the text of each choice's prompt."""

    model: str
    plain_s: float
    n_ctx: int
    body: LlamaGenerationRequest
    submits: Sequence[Submit]
    prompts: Sequence[str]
    several: bool
    end_tokens: Sequence[int] = ()
    written: list[Written] = field(default_factory=list)

    async def whole(self, generation: AnswerChoices) -> object:
        """Returns the answer, or a list if several were asked for. Raises Refusal."""
        async for _ in self._parts(generation):
            pass
        answers = [self._final(generation, i) for i in range(len(generation.choices))]
        return answers if self.several else answers[0]

    async def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent]:
        """Yields the events of a stream. Raises Refusal."""
        async for part, text, ended in self._parts(generation):
            for chunk in self._chunks(generation, part, text):
                yield chunk
            if ended:
                yield event(self._final(generation, part.index))

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> ServerSentEvent:
        """Returns the last event of a stream that has failed."""
        return event(refusal.body(), "error")

    async def _parts(self, generation: AnswerChoices) -> AsyncIterator[tuple[ChoiceRound, str, bool]]:
        """Yields each round with its text, and whether it ends its choice."""
        self.written = [Written() for _ in generation.choices]
        async for part in generation.rounds():
            choice = generation.choices[part.index]
            ms = (choice.last - choice.first) * 1000
            text, over = self.written[part.index].add(part, self.body, ms)
            if over:
                generation.stop(part.index, "length")
            yield part, text, over or part.round.finish is not None

    def _chunks(self, generation: AnswerChoices, part: ChoiceRound, text: str) -> list[ServerSentEvent]:
        """Returns the events of a part: one, or one for each token whose probabilities are wanted."""
        choice = generation.choices[part.index]
        if not part.reading and (self.body.warms_up or not (part.round.tokens or text)):
            return []
        frame = {
            "index": part.index,
            "content": text,
            "tokens": list(part.round.tokens),
            "stop": False,
            "id_slot": ANY_SLOT,
            "tokens_predicted": choice.n_tokens,
            "tokens_evaluated": choice.prompt_tokens,
        }
        if self.body.timings_per_token:
            frame["timings"] = choice.timings(self.plain_s)
        if part.reading:
            frame["prompt_progress"] = choice.progress()
        if not part.scored:
            if scoring := self.body.scoring():  # its token comes with its score, once its text can be shown
                frame["tokens"] = []
            return [event(frame)] if text or part.reading or not scoring else []
        shown = len(self.written[part.index].text) - len(text)
        cuts = [0, *(max(0, one.offset - shown) for one in part.scored[1:]), len(text)]
        return [
            event(
                {
                    **frame,
                    "content": text[a:b],
                    "tokens": [one.score.chosen.token],
                    "completion_probabilities": self._probabilities([one]),
                }
            )
            for one, a, b in zip(part.scored, cuts, cuts[1:], strict=False)
        ]

    def _probabilities(self, scored: Sequence[Scored]) -> list[Any]:
        content: list[Any] = for_chat(scored, sampled=bool(self.body.post_sampling_probs))["content"]
        return content

    def _final(self, generation: AnswerChoices, i: int) -> dict[str, Any]:
        choice, written, submit = generation.choices[i], self.written[i], self.submits[i]
        silent, streamed = self.body.warms_up, bool(self.body.stream)
        text = "" if silent or streamed else written.text
        timings = choice.timings(self.plain_s)
        n_tokens = 0 if silent else choice.n_tokens
        full = choice.finish == "length" and choice.prompt_tokens + choice.n_tokens >= self.n_ctx
        stop = "limit" if choice.finish == "length" else "word" if written.stopped_by else "eos"
        answer: dict[str, Any] = {
            "index": i,
            "content": text,
            "tokens": list(written.tokens) if self.body.return_tokens and not streamed else [],
            "id_slot": ANY_SLOT,
            "stop": True,
            "model": self.model,
            "tokens_predicted": n_tokens,
            "tokens_evaluated": choice.prompt_tokens,
            "generation_settings": generation_settings(submit.request, self.end_tokens, streamed=streamed),
            "prompt": self.prompts[i],
            "has_new_line": "\n" in written.text,
            "truncated": full,
            "stop_type": stop,
            "stopping_word": written.stopped_by,
            "tokens_cached": choice.prompt_tokens + n_tokens,
            "timings": {**timings, "predicted_n": n_tokens} if silent else timings,
        }
        if self.body.scoring() and not streamed:
            answer["completion_probabilities"] = self._probabilities(written.scored)
        fields = self.body.response_fields
        return picked(answer, fields) if fields else answer


def picked(answer: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Returns the requested fields; "a/b" is b of a, under that very name."""
    found: dict[str, Any] = {}
    for name in fields:
        value: Any = answer
        for step in name.split("/"):
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is not None:
            found[name] = value
    return found


def generation_settings(
    request: Request, end_tokens: Sequence[int] = (), *, streamed: bool = False
) -> dict[str, Any]:
    """Returns the settings of a generation as llama-server shows them. end_tokens: the model's."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    shown = sampling_settings(request.sampling)
    if request.ignore_eos:
        shown["logit_bias"] += [{"token": token, "bias": None} for token in end_tokens]
    return {
        **shown,
        "seed": -1 if request.seed is None else request.seed,
        "stop": list(request.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "stream": streamed,
        "ignore_eos": request.ignore_eos,
        "n_probs": request.scoring.top if request.scoring else 0,
        "post_sampling_probs": bool(request.scoring and request.scoring.sampled),
    }


def sampling_settings(sampling: Sampling) -> dict[str, Any]:
    """Returns the sampling settings as llama-server shows them. What is missing is shown as off."""
    own = {name: getattr(sampling, name) for name in sampling.__dataclass_fields__ if name != "logit_bias"}
    bias = [
        {"token": token, "bias": value if math.isfinite(value) else False}
        for token, value in sampling.logit_bias.items()
    ]
    return {
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "min_keep": 0,
        "ignore_eos": False,
        "n_keep": 0,
        "n_discard": 0,
        "lora": [],
        **own,
        "repeat_last_n": sampling.penalty_last_n,
        "logit_bias": bias,
    }


def piece_of(spelt: bytes) -> object:
    """Returns a token's text, or its bytes if they are not text by themselves."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
