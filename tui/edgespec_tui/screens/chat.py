"""What the keys of a chat do, and what can be done with a turn."""

from collections.abc import Awaitable
from pathlib import Path

from textual.app import SuspendNotSupported
from textual.widgets import Collapsible

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.system.odd_text import oddities
from edgespec_tui.screens.chat_keys import CHAT_KEYS
from edgespec_tui.screens.conversation_screen import ConversationScreen, as_sentence
from edgespec_tui.screens.race_question import race_of
from edgespec_tui.sessions.compaction import compacted
from edgespec_tui.sessions.conversation import Turn, TurnRole
from edgespec_tui.sessions.export import export
from edgespec_tui.settings.slash_commands import SlashCommand, on_or_off, parsed
from edgespec_tui.widgets.answer_body import CodeFence
from edgespec_tui.widgets.attached_files import NAMED, read_file
from edgespec_tui.widgets.external_editor import edited
from edgespec_tui.widgets.find_bar import FindBar
from edgespec_tui.widgets.markdown_blocks import last_code
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import Insert, QuestionText, question_of
from edgespec_tui.widgets.shell_output import ShellOutput
from edgespec_tui.widgets.turn_view import TurnView
from edgespec_tui.widgets.welcome import Welcome

ABOUT_SPECULATION = ("speculation", "race", "tint")  # actions that mean nothing with a server of another kind


class ChatScreen(ConversationScreen):
    """A chat with its keys."""

    BINDINGS = CHAT_KEYS

    async def on_prompt_input_sent(self, event: PromptInput.Sent) -> None:
        text = event.question.text
        command = text[1:].strip() if text.startswith("!") and self.context.settings.shell else ""
        try:
            if command:
                self.aside.begin(lambda: self.aside.shell(command, self.query_one(ShellOutput)))
            elif not await self._run_command(text):
                self.run_worker(self._ask(event.question), group="asking")  # keys work while files are read
        except EdgeSpecError as error:
            self.tell(str(error), "error")
            self.prompt.put_before(event.question)

    async def _ask(self, question: QuestionText) -> None:
        try:
            await self.answers.ask(question)
        except EdgeSpecError as error:
            self.tell(str(error), "error")
            self.prompt.put_before(question)
            return
        for sentence in oddities(question.text):
            self.tell(as_sentence(sentence[:1].upper() + sentence[1:]), "error")

    async def begin_command(self, command: SlashCommand) -> None:
        """Runs a command without arguments; puts others into the input."""
        if command.wants:
            self.prompt.fill(f"{command.name} ")
        else:
            self.prompt.post_message(PromptInput.Sent(QuestionText(command.name)))

    async def _run_command(self, line: str) -> bool:
        """Runs a line that is a command; returns False for one that is a question. Raises EdgeSpecError."""
        if (found := parsed(line)) is None:
            return False
        command, rest = found
        if command.action:
            await self.run_action(command.action)
        elif command.change:
            if self.conversation.read_only and rest:
                raise SettingError("this chat is open in another window: change it there, or start a new one")
            self.tell(command.change(self.conversation, rest))
            self.context.sessions.save(self.conversation)
            self.refresh_state()
        elif command.name == "/read":
            read = read_file(rest)
            is_named = read.startswith(NAMED)
            given = QuestionText(f"{read} ") if is_named else QuestionText(read, (Insert(0, len(read), ""),))
            self.prompt.put_before(given)
        elif command.name == "/export":
            self.tell(f"Written to {export(self.conversation, rest, folder=Path())}.")
        elif command.name == "/compact":
            self.compact()
        elif command.name == "/prompt":
            self.aside.begin(lambda: self.aside.prompt(self.context.toolbox, rest))
        elif command.name == "/schema":
            self.tell(self.context.constrain(rest))
            self.refresh_state()
        elif command.name == "/race":
            await self.race(QuestionText(rest))
        else:
            assert command.name == "/speculation"
            if self.speculation != on_or_off(rest):
                self.action_speculation()
        return True

    def compact(self) -> None:
        """Continues from a summary of the oldest turns. Raises SettingError."""
        engine = self.context.engine
        if engine.info is None or engine.state != "ready":
            raise SettingError("there is no engine to write a summary: F9 starts it, if it has ended")
        if self.is_free_to("compact this chat"):
            n_ctx = engine.info.n_ctx
            self.aside.begin(lambda: self._compact(n_ctx))

    async def _compact(self, n_ctx: int | None) -> None:
        engine, talk = self.context.engine, self.conversation
        self.show_banner("Summarising the oldest turns. Esc stops it.")
        try:
            new = await compacted(engine.endpoint, talk, self.context.options, n_ctx)
            if talk is self.conversation:
                await self.open(new)
                self.context.sessions.save(new)
                self.tell("The oldest turns are a summary now (/system shows it); Ctrl+O has the whole chat.")
        finally:
            self.show_banner("")

    async def race(self, question: QuestionText) -> None:
        """Races a question with its files, plain against speculative; without one, the last.

        Raises EdgeSpecError.
        """
        if self.answering:
            raise SettingError("an answer is still being written: Esc stops it, then you can race")
        talk, tinted = self.conversation, self.transcript.tinted
        shown, notes = await race_of(self.context, talk, question, self.options(), tinted=tinted)
        for sentence in notes:
            self.tell(sentence)
        self.app.push_screen(shown, self.take_measured)

    def action_take_choice(self, number: int) -> None:
        """Takes one of the list above the input."""
        self.prompt.take_choice(number)

    # -- what is done with turns

    async def on_turn_view_wanted(self, event: TurnView.Wanted) -> None:
        turn = self.conversation.turns[event.turn]
        if event.action == "copy":
            self.copy(turn.text, "the turn")
        elif event.action == "edit":
            self.edit(turn)
        elif event.action == "go_on":
            await self._try(self.answers.go_on(turn))
        elif event.action == "again":
            await self._try(self.answers.again(turn))
        elif event.action == "branch":
            if self.is_free_to("branch"):
                await self.open(self.conversation.branch(turn.id))
                self.tell("A new chat from here on; the old one is kept.")
        else:
            await self._other_version(turn, -1 if event.action == "older" else 1)

    async def _other_version(self, turn: Turn, step: int) -> None:
        siblings = self.conversation.siblings(turn.id)
        at = siblings.index(turn.id) + step
        if 0 <= at < len(siblings) and self.is_free_to("read another version"):
            self.conversation.select(siblings[at])
            self.context.sessions.save(self.conversation)
            await self.transcript.show(self.conversation)
            if (view := self.transcript.view_of(siblings[at])) is not None:
                view.focus()  # else the next key goes to the input

    def edit(self, turn: Turn) -> None:
        """Puts a turn into the input: a question is asked again, an answer is kept as it is edited."""
        self.answers.editing = turn
        self.prompt.fill(question_of(turn.text, turn.settings).typed())
        self.prompt.focus()
        self.show_banner("")

    async def _try(self, doing: Awaitable[None]) -> None:
        try:
            await doing
        except EdgeSpecError as error:
            self.tell(str(error), "error")

    def _last(self, role: TurnRole) -> Turn | None:
        """Returns the last question or answer; None if there is none yet, with a message."""
        found = next((turn for turn in reversed(self.conversation.path()) if turn.role == role), None)
        if found is None:
            self.tell(f"There is no {'question' if role == 'user' else 'answer'} yet.")
        return found

    def on_code_fence_copied(self, event: CodeFence.Copied) -> None:
        self.copy(event.code, "the code")

    # -- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides what would do nothing from the footer."""
        if action == "stop":
            busy = self.answering or self.answers.files or self.aside.running
            return bool(busy) or self.answers.editing is not None or self.app.focused is not self.prompt
        if action == "again":
            return bool(self.conversation.turns) or None
        return action not in ABOUT_SPECULATION or not self.context.engine.is_foreign

    async def action_stop(self) -> None:
        """Stops the answer; leaves an edit; or goes back to the input."""
        if self.aside.running:
            self.aside.stop()
        elif self.answers.files is not None:
            self.answers.files.cancel()
        elif self.answering:
            await self.answers.stop()
        elif self.answers.editing is not None:
            self.answers.editing = None
            self.show_banner("")
            self.prompt.clear_all()
        self.prompt.focus()

    async def action_again(self) -> None:
        """Answers the last question again; the earlier answer stays, as a version."""
        if (question := self._last("user")) is not None:
            await self._try(self.answers.again(question))

    def action_edit_last(self) -> None:
        """Edits the last question."""
        if (question := self._last("user")) is not None:
            self.edit(question)

    def action_edit_answer(self) -> None:
        """Puts the last answer into the input, to be reworded."""
        if (answer := self._last("assistant")) is not None:
            self.edit(answer)

    async def action_go_on(self) -> None:
        """Continues the last answer from where it ended."""
        if (answer := self._last("assistant")) is not None:
            await self._try(self.answers.go_on(answer))

    def action_find(self) -> None:
        """Searches in this chat."""
        self.query_one(FindBar).begin(self.conversation.path())

    async def on_find_bar_found(self, event: FindBar.Found) -> None:
        place = event.place
        await self.transcript.reveal(place.turn, event.words, place.number, place.share)

    def on_find_bar_left(self) -> None:
        self.transcript.mark("")
        self.prompt.focus()

    def action_editor(self) -> None:
        """Opens the input in the editor that VISUAL or EDITOR names."""
        try:
            with self.app.suspend():
                text = edited(self.prompt.question().text)
        except SuspendNotSupported:
            self.tell("an editor cannot be started from this terminal", "error")
        except EdgeSpecError as error:
            self.tell(str(error), "error")
        else:
            self.prompt.fill(text)

    async def action_tint(self) -> None:
        """Colours tokens by who produced them, or not."""
        await self.transcript.set_tinted(not self.transcript.tinted)
        self.refresh_state()

    def action_panel(self) -> None:
        """Shows or hides the panel; where it is a line, all of it comes first."""
        if not any(self.has_class(name) for name in ("-wide", "-no-panel", "-no-figures", "-details")):
            self.add_class("-details")
            return
        self.remove_class("-details")
        self.toggle_class("-no-panel")
        if self.has_class("-no-figures") and not self.has_class("-no-panel"):
            self.tell("The panel appears with the first answer.")

    def action_saved(self) -> None:
        """Says where this chat is saved, to hands that save by habit."""
        storage = self.context.sessions.file
        saves = storage.was_open and not storage.failing
        where = "is saved as it goes (Ctrl+O lists all)" if saves else "is not saved"
        self.tell(f"This chat {where}. /export writes it to a file.")

    def action_copy_code(self) -> None:
        """Copies the last code block of the answers."""
        code = last_code([turn.text for turn in self.conversation.path() if turn.role == "assistant"])
        if code is None:
            self.tell("There is no code in this chat yet.")
        else:
            self.copy(code, "the last code block")

    def action_copy_answer(self) -> None:
        """Copies the last answer."""
        if (answer := self._last("assistant")) is not None:
            self.copy(answer.text, "the last answer")

    def action_copy_question(self) -> None:
        """Copies the last question."""
        if (question := self._last("user")) is not None:
            self.copy(question.text, "the last question")

    def action_reasoning(self) -> None:
        """Opens or closes the reasoning of all answers."""
        folds = [fold for fold in self.transcript.query(Collapsible) if fold.display]
        closed = any(fold.collapsed for fold in folds)
        for fold in folds:
            fold.collapsed = not closed

    def action_restart(self) -> None:
        """Starts the engine again."""
        self.show_banner("")
        self.run_worker(self.context.engine.start(again=True), group="engine", exclusive=True)

    async def action_race(self) -> None:
        """Races the text in the input, or the last question, plain against speculative."""
        await self._try(self.race(self.prompt.question()))

    async def action_demo(self) -> None:
        """Shows what speculation is for, on the embedded pair."""
        from edgespec_tui.screens.demo import IN_CHAT, DemoScreen  # most chats show none

        if self.is_free_to("watch the demo"):
            self.app.push_screen(DemoScreen(next_step=IN_CHAT))

    def action_scroll_up(self) -> None:
        """Scrolls the transcript a page up; in an empty chat, what the keys are."""
        self.query_one(Welcome).scroll_page_up(animate=False)
        self.transcript.reach_up()
        self.transcript.scroll_page_up(animate=False)

    def action_scroll_down(self) -> None:
        """Scrolls the transcript a page down; in an empty chat, what the keys are."""
        self.query_one(Welcome).scroll_page_down(animate=False)
        self.transcript.scroll_page_down(animate=False)
