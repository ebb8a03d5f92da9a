"""The screen of a chat: transcript, panel, input; asking, and showing the answer as it comes."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import Static

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, EngineDiedError, SessionError
from edgespec_tui.screens.answer_queue import AnswerQueue
from edgespec_tui.screens.chat_context import ChatContext
from edgespec_tui.screens.side_work import SideWork
from edgespec_tui.screens.tool_questions import ToolQuestions
from edgespec_tui.screens.tools import ToolsScreen
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings.instructions import are_in
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.tools.loop import Decision
from edgespec_tui.widgets.approval_bar import ApprovalBar
from edgespec_tui.widgets.attached_files import Mention
from edgespec_tui.widgets.completions import ChoiceList
from edgespec_tui.widgets.find_bar import FindBar
from edgespec_tui.widgets.growing import Column
from edgespec_tui.widgets.key_line import KeyLine
from edgespec_tui.widgets.notice_line import SECONDS, Kind, NoticeBlock, NoticeLine
from edgespec_tui.widgets.panel import MeasuredSpeedUp, PanelState, SpeculationPanel
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import QuestionText, joined, question_of
from edgespec_tui.widgets.shell_output import ShellOutput
from edgespec_tui.widgets.transcript import Transcript
from edgespec_tui.widgets.welcome import Welcome

PANEL_EVERY_S = 0.5
COMPACT_BELOW = 100  # columns
PANEL_FROM = 120  # columns, as "-wide" of the app has it
REFUSED = (400, 401, 403, 404, 413, 422)  # the same request would be refused again


class AnswerEnded(Message):
    """A long answer has ended, and nobody looks."""


class ConversationScreen(Screen[None]):
    """One conversation and the engine that answers in it."""

    AUTO_FOCUS = "PromptInput"  # a turn that got it would be scrolled to

    def __init__(self, context: ChatContext) -> None:
        super().__init__(id="chat")
        self.context = context
        self.conversation = Conversation()
        self.speculation = True
        self.measured: MeasuredSpeedUp | None = None
        self.transcript, self.prompt = Transcript(), PromptInput()
        self.answers = AnswerQueue(self)
        self.questions = ToolQuestions(self, self.prompt, context.moments.since_key, context.waits.quiet_s)
        self._begun = False
        self.aside = SideWork(self, self.prompt, self.tell)

    # -- what is on it

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield Static("", id="title", markup=False)
            yield Static("", id="model", markup=False)
        with Horizontal(id="middle"):
            with Column(id="talk"):
                yield Welcome()
                yield self.transcript
                yield NoticeBlock()
                with Column(id="writing"):
                    yield Static("", id="banner")
                    yield Static("", id="waiting")
                    yield ShellOutput()
                    yield Static("", id="files")
                    yield FindBar()
                    yield ApprovalBar(self.context.waits.guard_s)
                    yield NoticeLine()
                    yield ChoiceList()
                    yield self.prompt
            yield SpeculationPanel(id="panel")
        yield KeyLine(show_command_palette=True)

    @property
    def is_whole(self) -> bool:
        """True while the widgets are there: not before, and not while the app ends."""
        return self._begun and self.app.is_running

    @property
    def answering(self) -> bool:
        return self.answers.running

    def is_free_to(self, do: str) -> bool:
        """Returns whether no answer is being written; else says how to stop it: nothing ends one unasked."""
        if self.answering:
            self.tell(f"An answer is still being written: Esc stops it, then you can {do}.", "warning")
        return not self.answering

    async def on_mount(self) -> None:
        self._begun = True
        self.context.toolbox.ask = self.questions.answer
        self.prompt.take_back = self.answers.take_back
        self.prompt.tell = self.tell
        self.prompt.show = self.query_one(ChoiceList).show
        self.prompt.show_files = self.show_files
        self.prompt.focus()
        self.transcript.tinted = self.context.settings.tint
        self.set_interval(PANEL_EVERY_S, self._refresh_live)
        self.set_interval(self.context.waits.regain_s, self._regain)
        await self.open(self.context.first_conversation)

    def on_resize(self, event: events.Resize) -> None:
        """Moves the keys of the footer closer together if there is little room; messages find theirs."""
        self.query_one(KeyLine).compact = event.size.width < COMPACT_BELOW
        if event.size.width >= PANEL_FROM:
            self.remove_class("-details")
        self.call_after_refresh(self.query_one(NoticeLine).draw)

    async def open(self, conversation: Conversation) -> None:
        """Continues a conversation."""
        async with self.answers.turn_taking:
            await self._open(conversation)

    async def _open(self, conversation: Conversation) -> None:
        await self.answers.stop()
        if conversation is not self.conversation:
            self.conversation.draft = {}  # what is written goes with the window
            self.context.sessions.save(self.conversation)
            self.context.sessions.leave(self.conversation)
            if (search := self.query_one(FindBar)).display:
                search.action_leave()
        self.conversation = conversation
        self.answers.forget()
        await self.transcript.show(conversation)
        for turn in conversation.path():
            if turn.role == "user" and turn.text:
                self.prompt.recall(question_of(turn.text, turn.settings).typed())
        if conversation.draft:
            draft = conversation.draft
            self.prompt.put_before(question_of(str(draft.get("text", "")), draft))
            self.tell("What you had written here is in the input again.")
        self.engine_changed()
        self.prompt.focus()

    def unsent(self) -> QuestionText:
        """Returns what is written and not asked: the questions that wait, and what is in the input."""
        return joined([*(question.typed() for question in self.answers.waiting), self.prompt.question()])

    def engine_changed(self) -> None:
        """Shows the engine's state."""
        engine = self.context.engine
        if not self.is_whole:
            return
        if engine.state == "gone":
            stays = " The conversation is kept." if self.conversation.turns else ""
            again = ("F9", "reconnects" if engine.is_foreign else "restarts the engine", "restart")
            other = ("Ctrl+L", "chooses another model", "app.models")
            self.show_banner(
                as_sentence(engine.reason) + stays, again, *(() if engine.is_foreign else (other,))
            )
        else:
            self.show_banner("")
        self.refresh_state()

    def show_banner(self, sentence: str, *keys: tuple[str, str, str]) -> None:
        """Shows above the input what needs attention; without arguments, clears it, except for a turn's edit.

        keys: (key, what it does, action), each of them also a button.
        """
        if not keys:
            if not sentence and (turn := self.answers.editing):
                does = "asks" if turn.role == "user" else "keeps"
                sentence = f"Editing: Enter {does} it in place of the old one, Esc cancels."
        banner = self.query_one("#banner", Static)
        banner.display = bool(sentence or keys)
        buttons = []
        for key, does, action in keys:
            action = action if "." in action else f"screen.{action}"
            buttons.append(Content.from_markup(f"[@click={action}][b]$key[/b] $does[/]", key=key, does=does))
        lines = [Content(sentence)] * bool(sentence) + [Content("   ").join(buttons)] * bool(keys)
        banner.update(Content("\n").join(lines))

    def refresh_state(self) -> None:
        """Shows title, model and panel as they are now."""
        if not self.is_whole:
            return
        engine, talk = self.context.engine, self.conversation
        kept = " (read only: open in another window)" if talk.read_only else ""
        self.query_one("#title", Static).update(Content(f"{talk.title or 'New chat'}{kept}"))
        model = (
            "loading the engine"
            if engine.state == "starting"
            else engine.names or ("no engine" if engine.info is None else "Ctrl+L chooses a model")
        )
        self.query_one("#model", Static).update(Content(model))
        welcome = self.query_one(Welcome)
        empty = not talk.turns
        welcome.display, self.transcript.display = empty, not empty
        if empty:
            welcome.show(engine)
        self._show_panel()
        self.refresh_bindings()

    def _show_panel(self) -> None:
        figures = self.answers.figures
        self.set_class(figures is None and self.measured is None, "-no-figures")
        state = PanelState(
            info=self.context.engine.info,
            speculation=self.speculation,
            used=self.answers.used,
            measured=self.measured,
            instructions=are_in(self.conversation.system),
        )
        self.query_one(SpeculationPanel).show(figures, state)

    def _refresh_live(self) -> None:
        if self.answering and self.is_whole and not self.context.moments.is_typing:
            self._show_panel()
            self.answers.tell_silence()

    def on_worker_state_changed(self) -> None:
        """Shows the figures of an answer that has ended, and takes its keys from the footer."""
        self.refresh_state()

    async def _regain(self) -> None:
        """Lets a chat be changed here once the window that had it has gone."""
        talk = self.conversation
        if not (talk.read_only and self.is_whole) or talk.id is None:
            return
        with suppress(SessionError):  # it was deleted there
            found = await asyncio.wrap_future(self.context.sessions.loaded(talk.id))
            if not found.read_only:
                await self.open(found)
                self.tell("The other window has gone: this chat can be changed here.")

    # -- tools

    def action_tools(self) -> None:
        """Shows the servers and their tools."""
        shown = ToolsScreen(self.context.toolbox, self.conversation)
        self.app.push_screen(shown, lambda _: self.context.sessions.save(self.conversation))

    def action_decide(self, decision: Decision) -> None:
        """Takes a click on what the user decides."""
        self.query_one(ApprovalBar).take(decision)

    # -- asking

    def tell_failure(self, error: EdgeSpecError) -> None:
        """Shows what can be done if there is no answer; the reason is in the answer's place."""
        foreign = self.context.engine.is_foreign
        if isinstance(error, EngineDiedError) or (isinstance(error, EndpointLostError) and not foreign):
            self.context.engine.lost(error)
        elif isinstance(error, EndpointError) and error.status not in REFUSED:
            restart = () if foreign else (("F9", "restarts the engine", "restart"),)
            self.show_banner("", ("Ctrl+R", "asks again", "again"), *restart)

    def options(self) -> AnswerOptions:
        """Returns the options of the next answer."""
        return replace(self.conversation.options(self.context.options), speculation=self.speculation)

    def action_speculation(self) -> None:
        """Turns speculation off or on, from the next answer on."""
        if self.context.engine.is_foreign:
            self.tell("This server reports no speculation data: there is nothing to turn on or off.")
            return
        self.speculation = not self.speculation
        when = ", from the next answer on" if self.answering else ""
        self.tell(f"Speculation {'on' if self.speculation else 'off: plain decoding'}{when}.")
        self.refresh_state()

    def take_measured(self, measured: MeasuredSpeedUp | None) -> None:
        """Shows a measured speed-up."""
        self.measured = measured or self.measured
        self.refresh_state()

    def show_waiting(self, questions: Sequence[QuestionText]) -> None:
        """Shows the questions that wait for the answer to end."""
        waiting = self.query_one("#waiting", Static)
        waiting.display = bool(questions)
        lines = [Content(" ".join(one.folded().split())).truncate(200, ellipsis=True) for one in questions]
        next_ = Content.assemble(("next  ", "bold $secondary"), Content("\n      ").join(lines))
        how = Content.styled("\n      Up takes it back · Esc stops the answer", "$text 60%")
        waiting.update(next_ + how)

    def show_files(self, files: Sequence[Mention]) -> None:
        """Shows the files that go with what is written, each with a way to remove it."""
        chips = [
            Content.from_markup(
                f"[@click=screen.remove_file({n})] $name[dim] $about[/] × [/]",
                name=file.name,
                about=file.about,
            )
            for n, file in enumerate(files)
        ]
        row = self.query_one("#files", Static)
        row.display = bool(chips)
        row.update(Content("  ").join(chips))

    def action_remove_file(self, number: int) -> None:
        """Removes a file from what is written."""
        self.prompt.remove_file(number)

    # -- telling

    def copy(self, text: str, what: str) -> None:
        """Puts a text on the clipboard."""
        self.app.copy_to_clipboard(text)
        self.tell(f"Copied {what}.")

    def announce_end(self) -> None:
        """Lets people who look at another window know that a long answer has ended."""
        if not self.app.app_focus:
            self.post_message(AnswerEnded())

    def tell_odds(self) -> None:
        """Shows for a while that guesses hardly pay, where the panel does not say why at once."""
        if not self.has_class("-wide"):
            self.tell("Guesses hardly pay with this pair here: F2 shows why.", "warning")

    def tell(self, sentence: str, kind: Kind = "note") -> None:
        """Shows a message for a moment above the input; over another screen if that hides this one."""
        if self.app.screen is self:
            self.query_one(NoticeLine).tell(sentence, kind)
        else:
            severity: SeverityLevel = "information" if kind == "note" else kind
            self.notify(sentence, severity=severity, markup=False, timeout=SECONDS[kind])


def as_sentence(text: str) -> str:
    """Returns a text with a full stop at its end."""
    return text if text.endswith((".", "?", "!")) else text + "."
