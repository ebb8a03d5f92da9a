"""One answer being made: from the endpoint's rounds to the screen, the figures and the session.

Rounds may come 200 times a second; the screen is drawn a few times a second, and less often where drawing
is slow, so that keys never wait for it.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, get_args

from edgespec.chat.families.deltas import AssembledTurn
from edgespec.chat.families.family import Family
from edgespec.chat.families.reader import Parser
from edgespec.client.answer import AnswerOptions, Ended, Reading, Span, StreamedRound
from edgespec.core.values import FinishReason
from edgespec.errors import EdgeSpecError, EndpointLostError, EngineDiedError
from edgespec_tui.endpoint.attached import COMING_BACK
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.endpoint.media import gone
from edgespec_tui.sessions.context_fit import Fitting
from edgespec_tui.sessions.conversation import Conversation, Turn, without_old_media
from edgespec_tui.tools.loop import ToolLoop, Wanted
from edgespec_tui.tools.offer import described
from edgespec_tui.tools.values import Call, calls_of, saved
from edgespec_tui.tools.wanted import WantedCalls
from edgespec_tui.widgets.growing import DrawingPace
from edgespec_tui.widgets.live_figures import LiveFigures
from edgespec_tui.widgets.origins import join, part

ANSWER = Family("answer", thoughts=(("<think>", "</think>"),))  # as servers pass it on that read none of it
TEXT = Family("text")  # what follows the reasoning
TYPING_S = 0.6  # the longest that drawing waits for a pause of somebody who types; that pause
PAUSE_S = 0.3
LOOK_S = 0.05
KEPT_EVERY_S = 0.5
CALLED = "the model called a tool, and this chat has none: ask it to answer in words"
LOST = "interrupted: the engine has ended"


class AnswerScreen(Protocol):
    """What an answer is drawn on."""

    async def feed(self, text: str, reasoning: str, runs: list[tuple[str, int]]) -> None: ...

    async def show_call(self, call: Call) -> None: ...

    async def end(self, turn: Turn) -> None: ...


def reason_in_short(error: EdgeSpecError) -> str:
    """Returns why there is no answer, for its place; why an engine ended, and whether it is back, changes."""
    lost = isinstance(error, EngineDiedError | EndpointLostError)
    return LOST if lost else str(error).removesuffix(COMING_BACK)


@dataclass(slots=True)
class TurnWriter:
    """Makes the text of one turn, after what the turn has already."""

    endpoint: Endpoint
    conversation: Conversation
    turn: Turn
    fitting: Fitting  # what the model gets
    options: AnswerOptions
    keep: Callable[[], object]  # called when there is something new to keep, twice a second
    plain_s: float | None = None  # what a token takes without a draft, if known
    silent_s: float = 10.0  # without a token: there is no speed
    since_key: Callable[[], float] = lambda: math.inf  # seconds since the last key
    on_reading: Callable[[Reading], None] = lambda _: None
    tools: ToolLoop | None = None  # what it may call
    refit: Callable[[int], Awaitable[Fitting]] | None = None  # what the model gets after calls, up to a turn
    error: EdgeSpecError | None = None
    figures: LiveFigures = field(init=False)
    _turn: AssembledTurn = field(init=False)  # all of the turn so far
    _runs: list[tuple[str, int]] = field(init=False)
    _painted: tuple[int, int] = field(init=False)  # characters of text and reasoning that are drawn
    _parser: Parser = field(init=False)
    _painting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _calls: list[Call] = field(init=False)
    _wanted: WantedCalls = field(default_factory=WantedCalls)

    def __post_init__(self) -> None:
        speculation = self.options.speculation
        self.figures = LiveFigures(self.plain_s, speculation, silent_s=self.silent_s)
        asked_for = {"speculation": speculation, "left_out": len(self.fitting.left_out)}
        self._calls = [*calls_of(self.turn.settings)]
        if self.tools is not None:
            self.tools.calls = self._calls
        self.turn = replace(self.turn, settings={**self.conversation.values(), **asked_for})
        text, thought = self.turn.text, self.turn.reasoning
        self._turn, self._painted = AssembledTurn(text, thought), (len(text), len(thought))
        self._runs = list(self.turn.runs)
        self._lengthen(sum(n for _, n in self._runs), ())
        self._parser = (TEXT if text else ANSWER).parser(None)

    def lost(self) -> str:
        """Returns the names of files that should go with the question and are no longer there."""
        sent = self.fitting.messages
        return ", ".join(name for message in sent for name in gone(message.media, message.digests))

    async def run(self, screen: AnswerScreen) -> None:
        """Streams the answer; `turn` is then the final one, also if it was cancelled or failed."""
        drawing = asyncio.create_task(self._draw(screen))
        finish: FinishReason = "cancelled"
        try:
            finish = await self._answer(screen)
        except EdgeSpecError as error:
            self.error = error
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing
            self.figures.over = True
            self._end_message()
            await self._paint(screen)
            self.turn = self._as_turn(finish)
            self.conversation.change(self.turn)
            self.keep()
            await screen.end(self.turn)

    async def _answer(self, screen: AnswerScreen) -> FinishReason:
        """Takes an answer to its end, with what it calls; returns how it ended."""
        tools, messages = self.tools, self.fitting.messages
        finish: FinishReason = "cancelled"
        if tools is None:
            return await self._message(messages, self.options)

        async def ask(may_call: bool) -> tuple[list[Wanted], int]:
            nonlocal finish, messages
            if self._calls and self.refit is not None:
                self._begin_message()
                self.conversation.change(self._as_turn(None))
                self.keep()
                messages = (await self.refit(self.turn.id)).messages
            finish = await self._message(messages, self._with_tools(may_call=may_call))
            self._end_message()
            return self._wanted.taken(len(self._calls)), len(self._turn.content)

        async def show(call: Call) -> None:
            await self._paint(screen)
            await screen.show_call(call)

        tools.changed = show
        await tools.answer(ask)
        return finish

    def _with_tools(self, *, may_call: bool) -> AnswerOptions:
        """Returns the options of a message that may call tools."""
        assert self.tools is not None
        choice = {} if may_call else {"tool_choice": "none"}
        return replace(
            self.options, extra={**self.options.extra, "tools": described(self.tools.offered), **choice}
        )

    def _begin_message(self) -> None:
        """Begins another message of the same answer, below what there is."""
        self._parser = ANSWER.parser(None)
        self.figures.waited()
        self._turn.reasoning += "\n\n" if self._turn.reasoning else ""
        if self._turn.content:
            self._turn.content += "\n\n"
            self._lengthen(len(self._turn.content) - 2, ())

    def _end_message(self) -> None:
        """Takes what the parser has held back."""
        before = len(self._turn.content)
        self._turn.add(self._parser.finish())
        self._lengthen(before, ())

    async def _message(self, messages: Sequence[Message], options: AnswerOptions) -> FinishReason:
        """Takes one message of the model's; without old pictures, if it does not read them."""
        try:
            return await self._stream(messages, options)
        except EdgeSpecError as error:
            lighter = None if self.figures.n_tokens else without_old_media(messages, error)
            if lighter is None:
                raise
        return await self._stream(lighter, options)

    async def _stream(self, messages: Sequence[Message], options: AnswerOptions) -> FinishReason:
        """Takes a message to its end; returns how it ended."""
        finish: FinishReason = "cancelled"
        async with contextlib.aclosing(self.endpoint.answer(messages, options)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    self.figures.ended = event
                    finish = known_finish(event.finish)
                elif event.reading:
                    self.on_reading(event.reading)
                else:
                    self._take(event)
        return finish

    def _take(self, streamed: StreamedRound) -> None:
        self.figures.note(streamed)
        self._turn.reasoning += streamed.reasoning
        for piece in streamed.tool_calls:
            self._wanted.add(piece)
        before = len(self._turn.content)
        self._turn.add(self._parser.feed(streamed.round.text))
        self._lengthen(before, streamed.spans)

    def _lengthen(self, before: int, spans: Sequence[Span]) -> None:
        """Notes who produced the text after so many characters: these spans its end."""
        new = len(self._turn.content) - before
        runs = [(span.source, len(span.text)) for span in spans]
        known = sum(n for _, n in runs)  # less than is new if the parser held text back
        join(self._runs, "", new - known)
        for source, n in part(runs, max(0, known - new), known):
            join(self._runs, source, n)

    async def _draw(self, screen: AnswerScreen) -> None:
        kept = time.monotonic()
        pace = DrawingPace()
        while True:
            await asyncio.sleep(pace.pause())
            await self._between_keys(time.monotonic() + TYPING_S)
            began = time.monotonic()
            await asyncio.shield(self._paint(screen))
            if began - kept > KEPT_EVERY_S:
                kept = began
                self.conversation.change(self._as_turn(None))
                self.keep()

    async def _between_keys(self, latest: float) -> None:
        """Waits while somebody types: laying out and drawing a screen takes longer than a key may."""
        while self.since_key() < PAUSE_S and time.monotonic() < latest:
            await asyncio.sleep(LOOK_S)

    async def _paint(self, screen: AnswerScreen) -> None:
        async with self._painting:
            (drawn, pondered), text, thought = self._painted, self._turn.content, self._turn.reasoning
            self._painted = len(text), len(thought)
            if self._painted != (drawn, pondered):
                await screen.feed(text[drawn:], thought[pondered:], part(self._runs, drawn, len(text)))

    def _as_turn(self, finish: FinishReason | None) -> Turn:
        figures = self.figures.as_figures()
        if self.error:
            figures["reason"] = reason_in_short(self.error)
        elif not self._calls and self.figures.ended and self.figures.ended.finish == "tool_calls":
            figures["reason"] = CALLED
        return replace(
            self.turn,
            text=self._turn.content,
            reasoning=self._turn.reasoning,
            finish=finish,
            runs=tuple(self._runs),
            figures=figures,
            settings={**self.turn.settings, **saved(self._calls)},
        )


def known_finish(finish: str) -> FinishReason:
    """Returns how an answer ended, in the app's words: other servers have further ones ("tool_calls")."""
    return next((known for known in get_args(FinishReason) if known == finish), "stop")
