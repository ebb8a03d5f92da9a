"""A chat without a screen: lines in, lines out, no cursor movements and no colours.

For screen readers, dumb terminals, and pipes: questions are the lines of standard input, or
one that was given (`-p`). Answers go to stdout and nothing else does; figures, notes and errors go to stderr.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TextIO

from edgespec.client.answer import AnswerOptions, Info
from edgespec.errors import EdgeSpecError, EngineDiedError, SettingError
from edgespec.local.attach import Progress
from edgespec.system.odd_text import as_text, oddities
from edgespec_tui.endpoint.endpoint import Endpoint
from edgespec_tui.plain.tool_lines import line_of
from edgespec_tui.sessions.context_fit import fit
from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.tools.loop import Decision, Proposal, ToolLoop, by_rule
from edgespec_tui.tools.offer import offer
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.tools.values import Call
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.turn_writer import TurnWriter

MOST_NAMES = 10
INTERRUPTED = 130  # exit code after Ctrl+C, as in shells


@dataclass(slots=True)
class PlainChat:
    """One conversation on two streams. Used by one thread; answers run on `runner`'s event loop."""

    endpoint: Endpoint
    conversation: Conversation
    sessions: Sessions
    runner: asyncio.Runner
    # what is asked for besides the conversation's own settings
    options: AnswerOptions = field(default_factory=AnswerOptions)
    quiet: bool = False  # no figures
    by_sentence: bool = False  # see `WholeSentences`
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    info: Info | None = None
    engine_gone: bool = False
    choose: Callable[[str], str] | None = None  # asks somebody; None if nobody is there
    last_progress: str = ""
    toolbox: Toolbox = field(default_factory=lambda: Toolbox(()))
    decide: Callable[[Proposal], Awaitable[Decision]] = partial(by_rule, "none")  # whether a call may be made

    def tell(self, sentence: str) -> None:
        """Prints something that is not an answer."""
        print(sentence, file=self.err, flush=True)

    def tell_progress(self, progress: Progress) -> None:
        """Prints what happens before there is an engine."""
        if progress.stage in ("waiting", "loading") and progress.text != self.last_progress:
            self.last_progress = progress.text
            self.tell(f"{progress.text} ...")

    def start(self) -> Info:
        """Prepares the engine, once; raises EdgeSpecError."""
        if self.info is None or self.engine_gone:
            work = self.endpoint.restart() if self.engine_gone else self.endpoint.start()
            info = self.runner.run(work)
            if not info.model:
                info = self.runner.run(self.endpoint.choose(self._chosen(info)))
            self.info, self.engine_gone = info, False
        return self.info

    def _chosen(self, info: Info) -> str:
        """Returns the model that somebody at a keyboard chooses. Raises SettingError if nobody is there."""
        names = sorted(one.model for one in self.runner.run(self.endpoint.models()))
        shown = ", ".join(names[:MOST_NAMES]) + (", and more" if len(names) > MOST_NAMES else "")
        if self.choose is None:
            raise SettingError(f"{info.where} has {len(names)} models: name one with --model: {shown}")
        self.tell("\n".join(f"{number:>4}  {name}" for number, name in enumerate(names, 1)))
        answer = self.choose(f"{info.where} has {len(names)} models. Which one? ").strip()
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if answer in names:
            return answer
        raise SettingError(f"{answer!r} is none of the {len(names)} models: give a number of the list")

    def ask(self, text: str, *, title: str = "", media: Sequence[str] = ()) -> Turn:
        """Asks, writes the answer as it comes, and returns it. Ctrl+C stops it, and keeps it as it is.

        title: what was typed of it, for a chat that has no title yet. media: files that go with it.

        Raises EdgeSpecError if there is no answer; the conversation is then as before. Raises OSError
        if stdout takes no more.
        """
        for sentence in oddities(text):
            self.tell(f"edgespec: {sentence}")
        text, title = as_text(text), as_text(title)
        talk, before = self.conversation, self.conversation.head
        question = talk.add("user", text, parent=before)
        question = replace(question, settings=QuestionText(text, media=tuple(media)).settings())
        talk.change(question)
        talk.title = talk.title or QuestionText(title or text).title()
        self.sessions.save(talk)  # the answer may take minutes to begin
        try:
            return self.answer_to(question)
        except EdgeSpecError:
            talk.head = before
            self.sessions.save(talk)
            raise

    def answer_to(self, question: Turn, begun: Turn | None = None) -> Turn:
        """Answers a question, again if it has an answer, or from where that ended; raises as `ask` does."""
        info = self.start()
        writer = _Writer(self.out, WholeSentences() if self.by_sentence else None, tell=self.tell)
        try:
            answer = self.runner.run(self._answer(question, info, writer, begun))
        except EngineDiedError:
            self.engine_gone = True
            raise
        finally:
            writer.end_line()
        if answer.finish == "cancelled":
            self.tell("(interrupted)")
        elif answer.finish == "length":
            self.tell("(stopped at the length limit)")
        elif not answer.text.strip():
            self.tell(f"({answer.figures.get('reason') or 'the model ended without an answer'})")
        if not self.quiet:
            self.tell("\n".join(f"  {line}" for line in figure_lines(dict(answer.figures))) + "\n")
        return answer

    async def _answer(self, question: Turn, info: Info, writer: _Writer, begun: Turn | None) -> Turn:
        talk = self.conversation
        self.last_progress = ""
        tools = await self._offered(info.n_ctx)

        fitted = partial(
            fit,
            self.endpoint,
            talk,
            n_ctx=info.n_ctx,
            reserved=tools.n_tokens() if tools else 0,
            on_wait=lambda progress: None if self.quiet else self.tell_progress(progress),
        )
        fitting = await fitted((begun or question).id)
        if fitting.is_more:
            self.tell(f"(the oldest {len(fitting.left_out)} messages no longer fit and are left out)")
        making = TurnWriter(
            self.endpoint,
            talk,
            begun or talk.add("assistant", parent=question.id, model=info.model),
            fitting,
            talk.options(self.options),
            keep=lambda: self.sessions.save(talk),
            plain_s=info.plain_s,
            tools=tools,
            refit=fitted,
        )
        if lost := making.lost():
            self.tell(f"({lost} is no longer there: asked without it)")
        task = asyncio.current_task()
        assert task is not None
        writer.on_failure = task.cancel
        try:
            await making.run(writer)
        except asyncio.CancelledError:
            task.uncancel()
        if writer.failure:
            raise writer.failure
        if making.error:
            raise making.error
        return making.turn

    async def _offered(self, n_ctx: int | None) -> ToolLoop | None:
        """Returns what an answer may call; servers that cannot be used are reported."""
        talk = self.conversation
        tools = await offer(self.toolbox, talk.tools_off, talk.approved, self.decide, n_ctx)
        for fault in self.toolbox.new_faults():
            self.tell(f"edgespec: {fault}")
        return tools


@dataclass(slots=True)
class _Writer:
    """Where an answer is written as it comes. on_failure: called when the stream takes no more."""

    stream: TextIO
    release: WholeSentences | None  # None: every piece at once, for programs
    tell: Callable[[str], None] = lambda _: None  # takes what is no answer
    on_failure: Callable[[], object] = lambda: None
    failure: OSError | None = None
    _last: str = "\n"

    async def feed(self, text: str, reasoning: str, runs: Iterable[tuple[str, int]]) -> None:
        self._write(self.release.feed(text) if self.release else text)

    async def show_call(self, call: Call) -> None:
        if call.outcome != "asked":
            self.tell(line_of(call))
        else:
            self._write(self.release.end() if self.release else "")
            self.end_line()

    async def end(self, turn: Turn) -> None:
        self._write(self.release.end() if self.release else "")

    def _write(self, text: str) -> None:
        if not text or self.failure:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
            self._last = text[-1]
        except OSError as error:
            self.failure = error
            self.on_failure()

    def end_line(self) -> None:
        """Ends the answer's line, so that the next message begins a line."""
        if self._last != "\n":
            self._write("\n")


def one_answer(chat: PlainChat, prompt: str, media: Sequence[str] = ()) -> int:
    """Answers one prompt; returns the exit code. Raises as `PlainChat.ask` does."""
    if not prompt.strip():
        raise SettingError("the prompt is empty: say something for the model to answer")
    answer = chat.ask(prompt, media=media)
    return INTERRUPTED if answer.finish == "cancelled" else 0


LONGEST = 120  # characters that are held back at most
END = re.compile(r"\n|[.!?:;。！？](?=\s)")


@dataclass(slots=True)
class WholeSentences:
    """Releases text by lines and sentences: a screen reader speaks what appears, and would speak halves."""

    _held: str = ""

    def feed(self, text: str) -> str:
        """Returns what may be written now."""
        self._held += text
        end = max((found.end() for found in END.finditer(self._held)), default=0)
        if len(self._held) - end > LONGEST:
            end = max(self._held.rfind(" ") + 1, end) or len(self._held)
        out, self._held = self._held[:end], self._held[end:]
        return out

    def end(self) -> str:
        """Returns what is left."""
        out, self._held = self._held, ""
        return out


def figure_lines(figures: dict[str, float | int | str | None]) -> list[str]:
    """Returns an answer's figures in one or two short lines."""
    speed, first = figures.get("tok_per_s"), figures.get("ttft_s")
    n = figures.get("n_tokens") or 0
    parts = [f"{n} token{'s'[: n != 1]}"]
    parts.append(f"{speed:.1f} tok/s" if isinstance(speed, float) else "too few tokens for a speed")
    if isinstance(first, float):
        parts.append(f"first token after {first * 1000:.0f} ms")
    prompt = figures.get("prompt_tokens")
    lines = [", ".join(parts) + (f" ({prompt} tokens of prompt)" if prompt is not None else "")]
    rate, length = figures.get("acceptance_rate"), figures.get("mean_accepted_length")
    if isinstance(rate, float):
        more = [f"acceptance rate {rate:.2f} ({figures['accepted']} of {figures['drafted']})"]
        if isinstance(length, float):
            more.append(f"mean accepted length {length:.2f}")
        if isinstance(speedup := figures.get("speedup_estimated"), float):
            more.append(f"speed-up {speedup:.2f} (estimated)")
        lines.append(", ".join(more))
    return lines
