"""The screen of a chat: transcript, panel, input; asking, and showing the answer as it comes."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerCancelled

from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, EngineDiedError
from edgespec_tui.answering import Answering
from edgespec_tui.chat_context import ChatContext
from edgespec_tui.conversation import Conversation, Figure, Turn
from edgespec_tui.endpoint import Wishes
from edgespec_tui.live_figures import LiveFigures
from edgespec_tui.panel import Measured, PanelState, SpeculationPanel
from edgespec_tui.prompt_input import PromptInput
from edgespec_tui.slash_commands import NAMES
from edgespec_tui.transcript import Transcript
from edgespec_tui.turn_view import AnswerView
from edgespec_tui.welcome import Welcome

TITLE_LENGTH = 60
PANEL_EVERY_S = 0.25


class TalkScreen(Screen[None]):
    """One conversation and the engine that answers in it."""

    AUTO_FOCUS = "PromptInput"  # a turn that got it would be scrolled to

    def __init__(self, context: ChatContext) -> None:
        super().__init__(id="chat")
        self.context = context
        self.conversation = Conversation()
        self.speculation = True
        self.measured: Measured | None = None
        self.figures: LiveFigures | None = None
        self.editing: Turn | None = None
        self._answer: Worker[None] | None = None
        self._used: int | None = None
        self._plain_s: float | None = None  # what rounds without a draft took here, last time
        self._begun = False

    # -- what is on it

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Static("", id="title", markup=False)
            yield Static("", id="model", markup=False)
        with Horizontal(id="middle"):
            with Vertical(id="talk"):
                yield Welcome()
                yield Transcript()
                yield Static("", id="banner")
                yield PromptInput(NAMES)
            yield SpeculationPanel(id="panel")
        yield Footer(show_command_palette=True)

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> PromptInput:
        return self.query_one(PromptInput)

    @property
    def is_whole(self) -> bool:
        """True while the widgets are there: not before, and not while the app ends."""
        return self._begun and self.app.is_running

    @property
    def answering(self) -> bool:
        return self._answer is not None and self._answer.is_running

    async def on_mount(self) -> None:
        self._begun = True
        self.prompt.focus()
        self.transcript.tinted = self.context.tint
        self.set_interval(PANEL_EVERY_S, self._refresh_live)
        await self.open(self.context.first_conversation)

    async def open(self, conversation: Conversation) -> None:
        """Goes on with a conversation."""
        await self.stop_and_wait()
        if conversation is not self.conversation:
            self.context.leave(self.conversation)
        self.conversation = conversation
        self.figures, self._used, self.editing = None, None, None
        await self.transcript.show(conversation)
        for turn in conversation.path():
            if turn.role == "user" and turn.text:
                self.prompt.remember(turn.text)
        self.engine_changed()
        self.prompt.focus()

    def engine_changed(self) -> None:
        """Shows what is known of the engine now."""
        engine = self.context.engine
        if not self.is_whole:
            return
        if engine.state == "gone":
            self.show_banner(
                as_sentence(engine.reason) + " The conversation stays.",
                ("F9", "starts the engine again", "restart"),
            )
        else:
            self.show_banner("")
        self.refresh_state()

    def show_banner(self, sentence: str, *keys: tuple[str, str, str]) -> None:
        """Shows what needs attention above the input; an empty sentence takes it away.

        keys: (key, what it does, action), each of them a button as well.
        """
        banner = self.query_one("#banner", Static)
        banner.display = bool(sentence)
        buttons = [
            Content.from_markup(f"[@click=screen.{action}][b]$key[/b] $does[/]", key=key, does=does)
            for key, does, action in keys
        ]
        banner.update(
            Content("\n").join(
                [Content(sentence), Content("   ").join(buttons)] if keys else [Content(sentence)]
            )
        )

    def refresh_state(self) -> None:
        """Shows title, model and panel as they are now."""
        if not self.is_whole:
            return
        engine, talk = self.context.engine, self.conversation
        kept = " (read only: open in another window)" if talk.read_only else ""
        self.query_one("#title", Static).update(Content(f"{talk.title or 'New chat'}{kept}"))
        if engine.state == "starting":
            model = "loading the engine"
        elif engine.info is None:
            model = "no engine"
        else:
            model = engine.names
        self.query_one("#model", Static).update(Content(model))
        welcome = self.query_one(Welcome)
        empty = not talk.turns
        welcome.display, self.transcript.display = empty, not empty
        if empty:
            welcome.show(engine)
        self._show_panel()
        self.refresh_bindings()

    def _show_panel(self) -> None:
        used = self._used
        if self.answering and self.figures and used is not None:
            used += self.figures.n_tokens
        state = PanelState(
            info=self.context.engine.info,
            speculation=self.speculation,
            tinted=self.transcript.tinted,
            used=used,
            measured=self.measured,
        )
        self.query_one(SpeculationPanel).show(self.figures, state)

    def _refresh_live(self) -> None:
        if self.answering and self.is_whole and not self.context.moments.is_typing:
            self._show_panel()

    # -- asking

    async def ask(self, text: str) -> None:
        """Asks a question where we stand, or in the place of the one that is being edited."""
        if self.conversation.read_only:
            self.tell_error("this chat is open in another window: /new begins one of its own")
            self.prompt.fill(text)
            return
        await self.stop_and_wait()
        talk, editing = self.conversation, self.editing
        self.editing = None
        self.show_banner("")
        parent = editing.parent if editing else talk.head
        turn = talk.add("user", text, parent=parent)
        if not talk.title:
            talk.title = " ".join(text.split())[:TITLE_LENGTH]
        self.refresh_state()  # first: a widget that is added where nothing is shown keeps no height
        if editing:
            await self.transcript.show(talk)
        else:
            await self.transcript.add(turn)
        self.answer_to(turn)

    def answer_to(self, question: Turn) -> None:
        """Begins an answer to a question; an older one stays its sibling."""
        self._answer = self.run_worker(self._make_answer(question), group="answer", exclusive=True)

    async def _make_answer(self, question: Turn) -> None:
        talk, context = self.conversation, self.context
        turn = talk.add("assistant", parent=question.id, model=context.engine.model)
        self.refresh_state()
        if len(talk.siblings(turn.id)) > 1:
            await self.transcript.show(talk)
        else:
            await self.transcript.add(turn)
        view = self.transcript.view_of(turn.id)
        if not isinstance(view, AnswerView):  # the app is ending
            return
        view.show_waiting("the engine is being loaded" if context.engine.state == "starting" else "thinking")
        if not await context.engine.ready():
            view.show_waiting("")
            await view.end(self._unanswered(turn, context.engine.reason))
            return
        info = context.engine.info
        assert info is not None
        turn = replace(turn, model=context.engine.model)
        view.name_model(turn.model)
        try:
            fitting = await context.fit(talk, question.id)
        except EdgeSpecError as error:
            await view.end(self._unanswered(turn, str(error)))
            self._tell_failure(error)
            return
        self.transcript.mark_left_out(fitting.left_out)
        turn = replace(turn, settings={**self.settings_of(self.wishes()), "left_out": len(fitting.left_out)})
        self._used = fitting.n_tokens
        view.show_waiting("reading the prompt")
        self.figures = LiveFigures(plain_s=self._plain_s or info.plain_s, speculation=self.speculation)
        making = Answering(
            context.endpoint,
            talk,
            turn,
            self.figures,
            keep=lambda: context.keep(talk),
            since_key=context.moments.since_key,
        )
        await making.run(fitting.messages, self.wishes(), view)
        self._after(making)

    def _unanswered(self, turn: Turn, reason: str) -> Turn:
        """Takes an answer that could not be begun out of the conversation; returns what its place shows."""
        shown = Turn(turn.id, turn.parent, turn.role, finish="cancelled", figures={"reason": reason})
        self.conversation.change(shown)
        self.context.keep(self.conversation)
        return shown

    def _after(self, making: Answering) -> None:
        told = making.figures.told
        self._plain_s = making.figures.seen_plain_s or self._plain_s
        if told and told.prompt_tokens is not None:
            self._used = told.prompt_tokens + (told.n_tokens or 0)
        if making.error:
            self._tell_failure(making.error)
        self.refresh_state()

    def _tell_failure(self, error: EdgeSpecError) -> None:
        """Shows why there is no answer, and what can be done: start the engine, or ask again."""
        if isinstance(error, (EngineDiedError, EndpointLostError)):
            self.context.engine.lost(error)
        elif isinstance(error, EndpointError):
            again = (("Ctrl+R", "asks again", "again"), ("F9", "restarts the engine", "restart"))
            self.show_banner(str(error), *again)

    def wishes(self) -> Wishes:
        """Returns how the next answer is wanted."""
        talk = self.conversation
        return replace(
            self.context.wishes,
            sampling=dict(talk.sampling),
            seed=talk.seed,
            max_tokens=talk.max_tokens,
            speculation=self.speculation,
        )

    @staticmethod
    def settings_of(wishes: Wishes) -> dict[str, Figure]:
        """Returns what is kept with a turn of how it was asked for."""
        others = {"seed": wishes.seed, "max_tokens": wishes.max_tokens, "speculation": wishes.speculation}
        return {**wishes.sampling, **{name: value for name, value in others.items() if value is not None}}

    async def stop_and_wait(self) -> None:
        """Ends a running answer; what came of it stays."""
        if self._answer is not None and self._answer.is_running:
            self._answer.cancel()
            with contextlib.suppress(WorkerCancelled):
                await self._answer.wait()

    # -- telling

    def copy(self, text: str, what: str) -> None:
        """Puts a text on the clipboard."""
        self.app.copy_to_clipboard(text)
        self.tell(f"Copied {what}.")

    def tell(self, sentence: str) -> None:
        """Shows a sentence for a moment."""
        self.notify(sentence, markup=False, timeout=3)

    def tell_error(self, sentence: str) -> None:
        """Shows what went wrong for a moment."""
        self.notify(sentence, severity="error", markup=False, timeout=8)


def as_sentence(text: str) -> str:
    """Returns a text with a sign at its end."""
    return text if text.endswith((".", "?", "!")) else text + "."
