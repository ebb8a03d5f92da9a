"""An endpoint that plays recorded rounds, at a chosen pace: the app is tested and measured with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgespec.client.answer import AnswerOptions, Ended, Info, Span, StreamedRound
from edgespec.core.values import Round
from edgespec.errors import EdgeSpecError
from edgespec.local.attach import OnProgress
from edgespec_tui.endpoint.endpoint import Message, StreamEvent

FAKE = Info(
    model="Fake-7B-Q4_K_M",
    draft="Fake-0.5B-Q8_0",
    n_ctx=4096,
    memory=5_368_709_120,
    plain_s=0.02,
    speculates=True,
    where="nowhere",
    exact="distribution",
)


def round_of(*spans: Span, first: int = 0, drafted: int = 0, gain: float = 1.0) -> StreamedRound:
    """Returns a round of tokens with these texts. first: the id of the first of them."""
    tokens, sources = tuple(range(first, first + len(spans))), tuple(span.source for span in spans)
    text, accepted = "".join(span.text for span in spans), len(spans) - 1
    return StreamedRound(Round(tokens, text, drafted, accepted, sources, gain=gain), 0.0, spans=spans)


def rounds_of(
    text: str, *, per_round: int = 3, drafted: int = 4, source: str = "model"
) -> list[StreamedRound]:
    """Returns a text as rounds: words of it are tokens, all of a round but its last were guessed."""
    words = [word + " " for word in text.split(" ")]
    words[-1] = words[-1][:-1]
    told = []
    for i in range(0, len(words), per_round):
        pieces = words[i : i + per_round]
        spans = [Span(piece, source) for piece in pieces[:-1]] + [Span(pieces[-1], "target")]
        told.append(round_of(*spans, first=i, drafted=drafted, gain=1.6))
    return told


@dataclass(slots=True)
class FakeEndpoint:
    """Plays `answers` in turn, the last one again and again; an error among them is raised instead.

    tok_per_s: how fast (None: at once). asked: what it was asked, for tests to look at. Without speculation
    the same words come one a round, at `plain_tok_per_s`.
    """

    answers: Sequence[str | Sequence[StreamedRound] | EdgeSpecError] = ("An answer.",)
    tok_per_s: float | None = None
    plain_tok_per_s: float | None = None
    info: Info = FAKE
    start_error: EdgeSpecError | None = None
    start_s: float = 0.0
    asked: list[tuple[tuple[Message, ...], AnswerOptions]] = field(default_factory=list)
    used: list[tuple[Path, Path | None]] = field(default_factory=list)
    cancelled: int = 0
    restarts: int = 0
    closed: bool = False
    listed: Sequence[str] = ()  # models of the server

    async def start(self) -> Info:
        await asyncio.sleep(self.start_s)
        if self.start_error:
            raise self.start_error
        return self.info

    async def restart(self) -> Info:
        self.restarts += 1
        self.start_error = None
        return await self.start()

    async def use(self, target: Path, draft: Path | None) -> Info:
        self.used.append((target, draft))
        self.info = replace(self.info, model=target.stem, draft=draft.stem if draft else None)
        return await self.start()

    async def models(self) -> tuple[Info, ...]:
        return tuple(replace(self.info, model=name) for name in self.listed)

    async def choose(self, model: str) -> Info:
        self.info = replace(self.info, model=model)
        return self.info

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        self.asked.append((tuple(messages), options))
        chosen = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(chosen, EdgeSpecError):
            raise chosen
        rounds = rounds_of(chosen) if isinstance(chosen, str) else chosen
        pace = self.tok_per_s
        if not options.speculation:
            rounds, pace = list(_one_by_one(rounds)), self.plain_tok_per_s or self.tok_per_s
        ended = False
        began, n = time.monotonic(), 0
        try:
            for told in rounds:
                n += len(told.round.tokens)
                if pace:
                    await asyncio.sleep(max(0.0, began + n / pace - time.monotonic()))
                elif n % 50 == 0:
                    await asyncio.sleep(0)
                seconds = len(told.round.tokens) / (pace or 1e6) if options.lane else 0.0
                yield replace(told, at=time.monotonic(), seconds=seconds)
            ended = True
            yield Ended(
                "stop",
                prompt_tokens=_size(messages),
                cached_tokens=0,
                n_tokens=n,
                tpot_s=max(1e-9, time.monotonic() - began) / max(n, 1),
                speedup=1.6 if options.speculation else 1.0,
            )
        finally:
            self.cancelled += not ended

    async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = lambda _: None) -> int | None:
        return _size(messages)

    async def close(self) -> None:
        self.closed = True


def _one_by_one(rounds: Iterable[StreamedRound]) -> Iterable[StreamedRound]:
    for generated in rounds:
        for token, span in zip(generated.round.tokens, generated.spans, strict=True):
            yield round_of(Span(span.text, "target"), first=token)


def _size(messages: Sequence[Message]) -> int:
    """Returns the tokens of messages: here, words and two for each message's frame."""
    return sum(len(message.text.split()) + 2 for message in messages)
