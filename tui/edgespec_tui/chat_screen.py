"""What the keys of a chat do, and what can be done with a turn."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.widgets import Collapsible

from edgespec.errors import EdgeSpecError
from edgespec_tui.answer_markdown import CodeFence
from edgespec_tui.code_blocks import last_code
from edgespec_tui.conversation import Turn
from edgespec_tui.keys import key
from edgespec_tui.panel import Measured
from edgespec_tui.prompt_input import PromptInput
from edgespec_tui.talk_screen import TalkScreen
from edgespec_tui.turn_view import TurnView


class ChatScreen(TalkScreen):
    """A chat with its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("chat.stop", "escape", "Stop", "Stop and keep what came; back to the input", shown=True),
        key("chat.again", "ctrl+r", "Again", "Answer the last question again", shown=True),
        key("chat.speculation", "f4,ctrl+s", "Speculation", "Speculation off and on", shown=True),
        key("chat.race", "f5,ctrl+g", "Race", "Race the question, plain against speculative", shown=True),
        key("chat.tint", "f3,ctrl+t", "Tint", "Colour tokens by who produced them", shown=True),
        key("chat.panel", "f2", "Panel", "Panel on and off"),
        key("chat.copy_code", "f6", "Copy code", "Copy the last code block", first=True),
        key("chat.copy_answer", "f7", "Copy answer", "Copy the last answer", first=True),
        key("chat.reasoning", "f8", "Reasoning", "Open and close the reasoning"),
        key("chat.restart", "f9", "Restart engine", "Start the engine again"),
        key("chat.edit_last", "ctrl+b", "Edit last question", "Edit and resend the last question"),
        key("chat.scroll_up", "pageup", "Scroll up", "A page up", first=True),
        key("chat.scroll_down", "pagedown", "Scroll down", "A page down", first=True),
    ]

    async def on_prompt_input_sent(self, event: PromptInput.Sent) -> None:
        if await self.context.commands.run(self, event.text):
            return
        await self.ask(event.text)

    # -- what is done with turns

    async def on_turn_view_wanted(self, event: TurnView.Wanted) -> None:
        turn = self.conversation.turns[event.turn]
        if event.deed == "copy":
            self.copy(turn.text, "the turn")
        elif event.deed == "edit":
            self.edit(turn)
        elif event.deed == "again" and turn.parent is not None:
            await self._again(self.conversation.turns[turn.parent])
        elif event.deed == "branch":
            await self.open(self.conversation.branch(turn.id))
            self.tell("A chat of its own from here; the old one stays among the sessions.")
        else:
            await self._other_version(turn, -1 if event.deed == "older" else 1)

    async def _other_version(self, turn: Turn, step: int) -> None:
        siblings = self.conversation.siblings(turn.id)
        at = siblings.index(turn.id) + step
        if 0 <= at < len(siblings):
            await self.stop_and_wait()
            self.conversation.select(siblings[at])
            self.context.keep(self.conversation)
            await self.transcript.show(self.conversation)

    def edit(self, turn: Turn) -> None:
        """Puts a question into the input, to be asked again in its place."""
        self.editing = turn
        self.prompt.fill(turn.text)
        self.prompt.focus()
        self.show_banner("Editing: Enter asks it in the place of the old one, Esc leaves it as it was.")

    async def _again(self, question: Turn) -> None:
        await self.stop_and_wait()
        self.answer_to(question)

    def on_code_fence_copied(self, event: CodeFence.Copied) -> None:
        self.copy(event.code, "the code")

    # -- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leaves out of the footer what would do nothing."""
        if action == "stop":
            return self.answering or self.editing is not None or self.app.focused is not self.prompt
        return True

    async def action_stop(self) -> None:
        """Stops the answer; leaves an edit; or goes back to the input."""
        if self.answering:
            await self.stop_and_wait()
        elif self.editing is not None:
            self.editing = None
            self.show_banner("")
            self.prompt.clear_all()
        self.prompt.focus()

    async def action_again(self) -> None:
        """Answers the last question again; the answer there was stays, as a version."""
        question = next((turn for turn in reversed(self.conversation.path()) if turn.role == "user"), None)
        if question is None:
            self.tell("There is no question yet.")
        else:
            await self._again(question)

    def action_edit_last(self) -> None:
        """Edits the last question."""
        question = next((turn for turn in reversed(self.conversation.path()) if turn.role == "user"), None)
        if question is not None:
            self.edit(question)

    def action_speculation(self) -> None:
        """Turns speculation off or on, from the next answer on."""
        self.speculation = not self.speculation
        when = ", from the next answer on" if self.answering else ""
        self.tell(f"Speculation {'on' if self.speculation else 'off: plain decoding'}{when}.")
        self.refresh_state()

    async def action_tint(self) -> None:
        """Colours tokens by who produced them, or not."""
        await self.transcript.set_tinted(not self.transcript.tinted)
        self.refresh_state()

    def action_panel(self) -> None:
        """Shows or hides the panel."""
        self.toggle_class("-no-panel")

    def action_copy_code(self) -> None:
        """Copies the last code block that was answered."""
        code = last_code([turn.text for turn in self.conversation.path() if turn.role == "assistant"])
        if code is None:
            self.tell("There is no code in this chat yet.")
        else:
            self.copy(code, "the last code block")

    def action_copy_answer(self) -> None:
        """Copies the last answer."""
        answer = next(
            (t for t in reversed(self.conversation.path()) if t.role == "assistant" and t.text), None
        )
        if answer is None:
            self.tell("There is no answer yet.")
        else:
            self.copy(answer.text, "the last answer")

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
        text = self.prompt.whole()
        try:
            await self.context.commands.race(self, text)
        except EdgeSpecError as error:
            self.tell_error(str(error))

    def take_measured(self, measured: Measured | None) -> None:
        """Shows a speed-up that was measured."""
        if measured is not None:
            self.measured = measured
        self.refresh_state()

    def action_scroll_up(self) -> None:
        """Scrolls the transcript a page up."""
        self.transcript.reach_up()
        self.transcript.scroll_page_up(animate=False)

    def action_scroll_down(self) -> None:
        """Scrolls the transcript a page down."""
        self.transcript.scroll_page_down(animate=False)
