"""An answer as a client of the endpoint sees it: its options, its rounds, and its end. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from edgespec.core.values import BreakEven, DrafterName, Round


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer is to be made. None leaves a value to the server."""

    # temperature, top_k, top_p, min_p and the others, under their names in a request
    sampling: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    speculation: bool = True  # False asks for plain decoding
    drafter: DrafterName | None = None  # who guesses, and how many tokens
    draft_length: int | None = None
    model: str | None = None  # another installed pair, by its name
    progress: bool = False  # say how far the prompt has been read
    lane: str | None = None  # answers in several lanes are made in turn, a few rounds each: for comparisons
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request, sent as they are

    def body(self, messages: Sequence[Mapping[str, Any]], *, ours: bool) -> dict[str, Any]:
        """Returns the request as JSON has it. ours: the server knows speculation."""
        wanted = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "stop": list(self.stop) or None,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        body = {
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.sampling,
            **given,
            **self.extra,
        }
        if ours:
            how = {"drafter": self.drafter, "draft_length": self.draft_length, "lane": self.lane}
            named = {name: value for name, value in how.items() if value is not None}
            body["edgespec"] = {"events": True, "speculation": self.speculation, **named}
            if self.progress:
                body["return_progress"] = True
        return body


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of shown text, and who produced it.

    source: "target" (recovered or bonus token), "grammar" (no other token was allowed), or whose guess it
    was: "model" or a `FreeName`; "" if the server does not say.
    """

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a prompt has been read, in tokens."""

    total: int
    done: int  # those that were cached included
    cached: int
    seconds: float  # since it was begun

    @property
    def left_s(self) -> float | None:
        """Returns the seconds that the rest takes at the speed so far; None if there is none yet."""
        read = self.done - self.cached
        return (self.total - self.done) * self.seconds / read if read > 0 and self.seconds > 0 else None

    def sentence(self) -> str:
        """Returns how far the prompt has been read, and how long the rest takes."""
        left = self.left_s
        soon = f", about {left:.0f} s left" if left is not None and left >= 1 else ""
        return f"reading the prompt: {self.done:,} of {self.total:,} tokens{soon}"


@dataclass(frozen=True, slots=True)
class StreamedRound:
    """One round of an answer; for a server that reports no rounds, one piece of text."""

    round: Round  # its text is what may be shown
    at: float  # when it was received, seconds on a monotonic clock
    # the text of each of its tokens; over the whole answer they add up to its text, but a round's
    # text may lag behind its pieces (half characters and half stop strings are held back)
    pieces: tuple[str, ...] = ()
    reasoning: str = ""  # text of the round that is reasoning and not answer
    seconds: float = 0.0  # that it took, if the request ran in a lane
    number: int = 0  # rounds of this answer so far, this one included
    spans: tuple[Span, ...] = ()  # the round's text by who produced it
    tool_calls: tuple[Mapping[str, Any], ...] = ()  # as OpenAI's stream has them
    reading: Reading | None = None  # no round at all, but how far the prompt has been read

    @property
    def n_tokens(self) -> int:
        """Returns how many tokens came; of a server that does not say, a piece of text is one."""
        return len(self.round.tokens) or bool(self.round.text or self.reasoning)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of an answer, with its figures; None if unknown."""

    finish: str  # "stop", "length", "cancelled", or another server's word ("tool_calls")
    model: str = ""
    prompt_tokens: int | None = None  # of the whole prompt
    cached_tokens: int | None = None  # those of them that needed no evaluation
    read_again: str = ""  # how many were evaluated again, and why, in a sentence
    n_tokens: int | None = None  # of the answer
    n_ctx: int | None = None
    ttft_s: float | None = None  # from the request to the first text, as seen here
    tpot_s: float | None = None  # seconds per token after the first
    prompt_s: float | None = None
    drafted: int | None = None  # tokens guessed, and those that stayed
    accepted: int | None = None
    # what plain decoding would have taken over what was taken; speedup_is says how it is known
    speedup: float | None = None
    speedup_is: Literal["estimated", "measured"] | None = None

    @property
    def tok_per_s(self) -> float | None:
        """Returns tokens per second after the first."""
        return 1 / self.tpot_s if self.tpot_s else None

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None


@dataclass(frozen=True, slots=True)
class Info:
    """What answers. None: unknown."""

    model: str
    draft: str | None = None
    n_ctx: int | None = None  # tokens that prompt and answer may have together
    n_ctx_train: int | None = None  # what the model was trained for
    memory: int | None = None  # bytes of the target's file
    plain_s: float | None = None  # seconds per token of plain decoding, as the engine measured it
    card: str = ""  # which graphics cards evaluate; "" if the processor does all of it, or unknown
    speculates: bool = False  # it reports its rounds, so that speculation can be shown
    embedded: bool = False  # the shipped pair
    loaded: bool = True  # False for an installed pair that would be loaded on request
    where: str = ""  # an address, for people
    chatml: bool = False  # the model has no chat template: conversations are written as ChatML
    build_advice: str = ""  # what is wrong with this build of llama.cpp, and what fixes it
    beyond_trained: str = ""  # a warning, if the context is longer than what the model was trained for
    lent: bool = False  # the engine is another program's, and ends with that
    break_even: BreakEven | None = None  # how good guesses have to be
    exact: str = ""  # compared with plain decoding: "distribution", "bytes"; "" if unknown

    @property
    def notices(self) -> tuple[str, ...]:
        """Returns what people should know of it, in sentences."""
        chatml = (
            f"{self.model} has no chat template: it is talked to in ChatML, which it may not know; "
            "--chat-template names another"
        )
        return tuple(filter(None, (chatml if self.chatml else "", self.beyond_trained, self.build_advice)))


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of a server's engine."""

    # "loading", "ready", "down" (it died, and restarts), "unloaded" (the next request loads)
    state: str
    model: str  # which pair
    # while it loads: the current stage ("target", "draft", "caches", "measuring") and the part of
    # the whole that is done, 0 to 1
    stage: str | None = None
    progress: float = 0.0
    next: str | None = None  # the pair that waits until all answers have ended
    requests: int = 0  # running or waiting
    last_error: str | None = None  # why the last load failed


@dataclass(slots=True)
class Spans:
    """Finds out who produced which part of the shown text, which lags behind the tokens' own."""

    _text: str = ""
    _sources: list[tuple[int, str]] = field(default_factory=list)  # (characters, source) of _text

    def take(self, text: str, pieces: Sequence[str], sources: Sequence[str]) -> tuple[Span, ...]:
        """Takes the tokens of a round and its shown text; returns that text by source."""
        for piece, source in zip(pieces, sources, strict=False):
            self._text += piece
            self._sources.append((len(piece), source))
        if not text:
            return ()
        begin = self._text.find(text)
        if begin < 0:  # it was changed on its way, as by a parser of tool calls
            return (Span(text, ""),)
        self._next(begin)
        return self._next(len(text))

    def _next(self, size: int) -> tuple[Span, ...]:
        """Takes `size` characters off the front; neighbours of one source become one span."""
        spans: list[Span] = []
        while size > 0:
            length, source = self._sources[0]
            step = min(length, size)
            part, self._text = self._text[:step], self._text[step:]
            if step == length:
                del self._sources[0]
            else:
                self._sources[0] = (length - step, source)
            size -= step
            if spans and spans[-1].source == source:
                spans[-1] = Span(spans[-1].text + part, source)
            elif part:
                spans.append(Span(part, source))
        return tuple(spans)
