"""One answer is made at a time, and later questions wait for it.

A waiting question is shown, can be taken back, and is asked when the answer before it has ended by itself.
If that was stopped or failed, waiting questions go back into the input: nothing is asked on a wrong basis.
"""

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from textual.worker import Worker, WorkerCancelled

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.local.attach import Progress
from edgespec_tui.endpoint.attached import in_thread
from edgespec_tui.screens.chat_context import AnswerStage
from edgespec_tui.sessions.context_fit import fit
from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.tools.loop import ToolLoop
from edgespec_tui.tools.offer import offer
from edgespec_tui.tools.values import calls_of
from edgespec_tui.widgets.attached_resources import with_attachments
from edgespec_tui.widgets.live_figures import LiveFigures
from edgespec_tui.widgets.panel import odds_shown
from edgespec_tui.widgets.question import QuestionText, joined
from edgespec_tui.widgets.thumbnail import thumbnail_of
from edgespec_tui.widgets.turn_view import AnswerView, QuestionView
from edgespec_tui.widgets.turn_writer import TurnWriter, reason_in_short


class AnswerQueue:
    """The answer in progress on a screen, if any; what waits for it; what is being edited."""

    def __init__(self, screen: AnswerStage) -> None:
        self._screen = screen
        self.turn_taking = asyncio.Lock()  # the screen does not change while a question is being asked
        self.waiting: list[QuestionText] = []
        self.editing: Turn | None = None
        self.figures: LiveFigures | None = None
        self._prompt_tokens: int | None = None
        self._plain_s: float | None = None  # a round without a draft took this here, last time
        self.files: asyncio.Future[tuple[QuestionText, list[str]]] | None = None  # of a question, being read
        self._worker: Worker[None] | None = None
        self._view: AnswerView | None = None  # of the answer in progress
        self._odds_shown: set[str] = set()  # models that were reported to gain little
        self._stirred = 0.0  # when the engine last sent anything, monotonic

    @property
    def running(self) -> bool:
        """True while an answer is being made, or waits for the engine."""
        return self._worker is not None and self._worker.is_running

    @property
    def used(self) -> int | None:
        """Tokens of the context that prompt and answer take; None if unknown."""
        if self._prompt_tokens is None or self.figures is None:
            return self._prompt_tokens
        ended = self.figures.ended
        return self._prompt_tokens + ((ended and ended.n_tokens) or self.figures.n_tokens)

    def forget(self) -> None:
        """Forgets figures and edit: another conversation is shown."""
        self.figures, self._prompt_tokens, self.editing = None, None, None

    # -- questions

    async def ask(self, question: QuestionText) -> None:
        """Asks, or queues a question after the answer in progress. Replaces what is being edited.

        Raises SettingError if it cannot be asked; then nothing has changed.
        """
        async with self.turn_taking:
            await self._ask(question)

    async def _ask(self, question: QuestionText) -> None:
        screen, talk, editing = self._screen, self._writable(), self.editing
        if editing is not None and editing.role == "assistant":
            await self._replace_answer(talk, editing, question.text)
            return
        self._hold(talk, question)  # files may come from a slow disk
        question, notes = await self._with_files(question)
        for sentence in notes:
            screen.tell(sentence)
        if editing is None and self.running:
            self.waiting.append(question)
            screen.show_waiting(self.waiting)
            self._keep(talk)
            return
        await self.stop()
        self.editing = None
        self._begin(talk, await self._add(talk, question, editing))

    async def _with_files(self, question: QuestionText) -> tuple[QuestionText, list[str]]:
        """Returns what `with_attachments` does; raises SettingError if the user stops it."""
        self.files = asyncio.ensure_future(with_attachments(question, self._screen.context.toolbox))
        try:
            return await self.files
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise  # the app ends
            raise SettingError("stopped before its files were read: the question was not asked") from None
        finally:
            self.files = None

    def _writable(self) -> Conversation:
        """Returns the conversation on the screen; raises SettingError if another window writes it."""
        talk = self._screen.conversation
        if talk.read_only:
            raise SettingError("this chat is open in another window: /new starts another")
        return talk

    async def _add(self, talk: Conversation, question: QuestionText, editing: Turn | None) -> Turn:
        """Puts a question into the conversation and on the screen."""
        screen = self._screen
        screen.show_banner("")
        parent = editing.parent if editing else talk.head
        turn = replace(talk.add("user", question.text, parent=parent), settings=question.settings())
        talk.change(turn)
        talk.title = talk.title or question.title()
        self._keep(talk)
        screen.refresh_state()  # first: a widget that is added while nothing is shown keeps no height
        await (screen.transcript.show(talk) if editing else screen.transcript.add(turn))
        if question.media:
            screen.run_worker(self._draw_pictures(talk, turn, question), group="pictures", exclusive=False)
        return turn

    async def _draw_pictures(self, talk: Conversation, turn: Turn, question: QuestionText) -> None:
        """Adds the small copies of a question's pictures. A large one takes seconds: nothing waits for it."""
        drawn = [await in_thread(partial(thumbnail_of, Path(file))) for file in question.media]
        known = talk.turns[turn.id]
        settings = {**known.settings, **replace(question, thumbnails=tuple(drawn)).settings()}
        talk.change(replace(known, settings=settings))
        self._screen.context.sessions.save(talk)
        if talk is self._screen.conversation:
            view = self._screen.transcript.view_of(turn.id)
            if isinstance(view, QuestionView):
                await view.show_pictures(talk.turns[turn.id])

    def _hold(self, talk: Conversation, question: QuestionText) -> None:
        """Saves a question before anything is done with it, among those that wait."""
        waiting = [*(one.typed() for one in self.waiting), question]
        talk.draft, talk.title = joined(waiting).draft(), talk.title or question.title()
        self._screen.context.sessions.save(talk)

    def _keep(self, talk: Conversation) -> None:
        """Saves what was asked at once, and what waits to be: an answer may take minutes to begin."""
        talk.draft = joined(question.typed() for question in self.waiting).draft()
        self._screen.context.sessions.save(talk)

    async def again(self, turn: Turn) -> None:
        """Answers a question anew, or an answer's; an older answer stays its sibling. Raises SettingError."""
        async with self.turn_taking:
            talk = self._writable()
            await self.stop()
            self._screen.show_banner("")
            of_answer = turn.parent if turn.role == "assistant" else None
            self._begin(talk, turn if of_answer is None else talk.turns[of_answer])

    async def go_on(self, answer: Turn) -> None:
        """Continues an answer from where it ended. Raises SettingError if it cannot."""
        talk = self._writable()
        if self.running:
            raise SettingError("an answer is still being written: Esc stops it")
        if answer.role != "assistant" or answer.parent is None or not answer.text:
            raise SettingError("there is no answer to continue: Ctrl+R answers again")
        if talk.head != answer.id:
            raise SettingError("only the last answer can be continued: branch (b) to make this one the last")
        self._begin(talk, talk.turns[answer.parent], answer)

    async def _replace_answer(self, talk: Conversation, old: Turn, text: str) -> None:
        """Puts an answer of the user's own next to one of the model's."""
        await self.stop()
        screen, self.editing = self._screen, None
        new = talk.add("assistant", text, parent=old.parent, model=old.model)
        talk.change(replace(new, finish="stop", settings={"edited": "by hand"}))
        screen.context.sessions.save(talk)
        screen.show_banner("")
        await screen.transcript.show(talk)

    # -- the one that is being made

    def _begin(self, talk: Conversation, question: Turn, begun: Turn | None = None) -> None:
        work = self._answer_all(talk, question, begun)
        self._worker = self._screen.run_worker(work, group="answer", exclusive=True)

    async def _answer_all(self, talk: Conversation, question: Turn, begun: Turn | None) -> None:
        """Answers a question, and then those typed since."""
        well = await self._answer(talk, question, begun)
        while well and self.waiting:
            following = self.waiting.pop(0)
            self._screen.show_waiting(self.waiting)
            well = await self._answer(talk, await self._add(talk, following, None), None)
        self._give_back()

    async def _answer(self, talk: Conversation, question: Turn, begun: Turn | None) -> bool:
        """Makes one answer; returns whether it ended by itself. begun: continue from there."""
        screen, context = self._screen, self._screen.context
        turn = begun or talk.add("assistant", parent=question.id, model=context.engine.model)
        screen.refresh_state()
        if begun or len(talk.siblings(turn.id)) > 1:
            await screen.transcript.show(talk)
        else:
            await screen.transcript.add(turn)
        view = screen.transcript.view_of(turn.id)
        if not isinstance(view, AnswerView):  # the app is ending
            return False
        self._view, self._stirred = view, (began := time.monotonic())
        try:
            making = await self._prepare(talk, turn, view)
            if making is None:
                return False
            await making.run(view)
        except asyncio.CancelledError:
            if talk.turns[turn.id].finish is None:  # it had not begun
                await self._unanswered(talk, turn, view, "interrupted before it began")
            raise
        finally:
            self._view = None  # its line says how it ended
        self._ended(making)
        if time.monotonic() - began > context.waits.long_s:
            screen.announce_end()
        return making.error is None

    async def _prepare(self, talk: Conversation, turn: Turn, view: AnswerView) -> TurnWriter | None:
        """Waits for the engine and makes the request; None if there is none, with a message."""
        screen, context = self._screen, self._screen.context
        starting = context.engine.state == "starting"
        view.show_waiting("waiting for the engine to load" if starting else "thinking")
        if not await context.engine.ready():
            await self._unanswered(talk, turn, view, "no answer: there is no engine")
            screen.engine_changed()  # says again why, and which key helps
            return None
        info = context.engine.info
        assert info is not None
        if not info.model:
            await self._unanswered(talk, turn, view, f"{info.where} has several models: Ctrl+L lists them")
            return None
        turn = replace(turn, model=context.engine.model)
        view.name_model(turn.model)
        assert turn.parent is not None

        def show(sentence: str) -> None:
            self._stirred = time.monotonic()
            view.show_waiting(sentence)

        def loads(progress: Progress) -> None:
            show(progress.text + ("" if progress.fraction is None else f", {progress.fraction:.0%}"))

        tools = await self._tools(talk, info.n_ctx, view)

        reserved, endpoint = tools.n_tokens() if tools else 0, context.engine.endpoint
        fitted = partial(fit, endpoint, talk, n_ctx=info.n_ctx, reserved=reserved, on_wait=loads)
        try:
            fitting = await fitted(turn.id if turn.text or calls_of(turn.settings) else turn.parent)
        except EdgeSpecError as error:
            await self._unanswered(talk, turn, view, reason_in_short(error))
            screen.tell_failure(error)
            return None
        await screen.transcript.mark_left_out(fitting.left_out, notify=fitting.is_more)
        self._prompt_tokens = fitting.n_tokens
        view.show_waiting("reading the prompt")
        making = TurnWriter(
            context.engine.endpoint,
            talk,
            turn,
            fitting,
            replace(screen.options(), progress=True),
            keep=lambda: context.sessions.save(talk),
            plain_s=self._plain_s or info.plain_s,
            silent_s=context.waits.silent_s,
            since_key=context.moments.since_key,
            on_reading=lambda reading: show(reading.sentence()),
            tools=tools,
            refit=fitted,
        )
        self.figures = making.figures
        if lost := making.lost():
            screen.tell(f"{lost} is no longer there: asked without it.")
        return making

    async def _tools(self, talk: Conversation, n_ctx: int | None, view: AnswerView) -> ToolLoop | None:
        """Returns what an answer may call; servers that cannot be used are reported."""
        screen, context = self._screen, self._screen.context
        if context.toolbox.servers:
            view.show_waiting("looking for tools")
        decide = screen.questions.decide
        tools = await offer(context.toolbox, talk.tools_off, talk.approved, decide, n_ctx)
        for fault in context.toolbox.new_faults():
            screen.tell(f"{fault[:1].upper()}{fault[1:]}.")
        return tools

    async def _unanswered(self, talk: Conversation, turn: Turn, view: AnswerView, reason: str) -> None:
        """Ends an answer that could not be started, and shows why in its place."""
        ended = replace(turn, finish="cancelled", figures={"reason": reason})
        talk.change(ended)
        self._screen.context.sessions.save(talk)
        await view.end(ended)

    def tell_silence(self) -> None:
        """Says for how long nothing has come; a stalled engine looks like a thinking one."""
        context = self._screen.context
        last = max(self._stirred, (self.figures.last if self.figures else None) or 0.0)
        silent = time.monotonic() - last
        if silent > context.waits.silent_s and self._view is not None and context.engine.state == "ready":
            self._view.show_silence(silent)

    def _ended(self, making: TurnWriter) -> None:
        ended = making.figures.ended
        self._plain_s = making.figures.seen_plain_s or self._plain_s
        if ended and ended.prompt_tokens is not None:
            self._prompt_tokens = ended.prompt_tokens
        if making.error:
            self._screen.tell_failure(making.error)
        model = making.turn.model
        if model not in self._odds_shown and odds_shown(making.figures, self._screen.context.engine.info):
            self._odds_shown.add(model)
            self._screen.tell_odds()
        self._screen.refresh_state()

    async def stop(self) -> None:
        """Ends a running answer; its text stays, and waiting questions go back into the input."""
        if self._worker is not None and self._worker.is_running:
            self._worker.cancel()
            with contextlib.suppress(WorkerCancelled):
                await self._worker.wait()
        self._give_back()

    def _give_back(self) -> None:
        waiting, self.waiting = self.waiting, []
        for question in reversed(waiting):
            self._screen.prompt.put_before(question.typed())
        if waiting:
            self._screen.show_waiting([])

    def take_back(self) -> QuestionText | None:
        """Takes back the latest waiting question; None if there is none."""
        if not self.waiting:
            return None
        question = self.waiting.pop()
        self._screen.show_waiting(self.waiting)
        return question.typed()
