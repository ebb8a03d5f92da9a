"""Where questions are written: several lines, a history, suggestions, pastes of any size.

A large paste is one short mark in the text and is put in its place when the question is sent, so
that a 5,000-line log neither hides the question nor makes typing slow.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widgets import TextArea

from edgespec_tui.terminal.shown_text import visible
from edgespec_tui.widgets.attached_files import Mention, mention_of, mentions
from edgespec_tui.widgets.completions import Suggestion, Suggestions, choices
from edgespec_tui.widgets.project_files import ProjectFiles
from edgespec_tui.widgets.question import Insert, QuestionText, count_of, is_large

HISTORY = 500
PASTES = 50  # that the history still shows as marks
MARK = re.compile(r"\[(?:pasted text|output) \d+: [\d,]+ lines?\]")
OUTPUT = "[output"  # how the mark of what a command wrote begins
PLACEHOLDERS = (  # the longest that has room
    "Ask something. Enter sends, Ctrl+J starts a new line, / lists commands, @ adds a file.",
    "Ask something. Enter sends, / lists commands.",
    "Ask something.",
)


class PromptInput(TextArea):
    """The input. Enter sends; Ctrl+J, Shift+Enter or Alt+Enter begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="input.send", show=False),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", id="input.newline", show=False),
        Binding("tab", "complete", "Complete", id="input.complete", show=False),
        Binding("escape", "close_list", "Close the list", id="input.close", show=False),
    ]

    @dataclass
    class Sent(Message):
        """A question, or a slash command."""

        question: QuestionText

    def __init__(self) -> None:
        super().__init__(id="prompt", soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False)
        self.past: list[str] = []
        self.take_back: Callable[[], QuestionText | None] = lambda: None  # a waiting question, to be changed
        self.tell: Callable[[str], object] = lambda _: None  # shows a sentence for a moment
        self.show: Callable[[Suggestions | None], object] = lambda _: None  # shows suggestions that changed
        self.show_files: Callable[[Sequence[Mention]], object] = lambda _: None  # files named, that changed
        self._files: list[Mention] = []
        self._project = ProjectFiles()
        self.choices: Suggestions | None = None
        self._at: int | None = None  # place in the history; None: something new is being written
        self._written = ""  # what that was
        self._pasted: dict[str, str] = {}  # by mark: those in the input, and the last ones before
        self._n_pasted = 0

    # -- what is written

    def action_send(self) -> None:
        """Takes the marked suggestion; else sends what is written, pastes in full."""
        marked = self.choices.marked if self.choices else None
        if marked is not None and marked.text.rstrip() != self._typed():
            self._take(marked)
            if not marked.final:
                return
        question = self.question()
        if not question.text.strip():
            return
        self.remember(question.text)
        self.clear_all()
        self.post_message(self.Sent(question))

    def question(self) -> QuestionText:
        """Returns what is written, pasted texts in full."""
        text, inserts, at = "", [], 0
        for mark in MARK.finditer(self.text):
            if (pasted := self._pasted.get(mark[0])) is not None:
                text += self.text[at : mark.start()]
                inserts.append(Insert(len(text), len(text) + len(pasted), mark[0]))
                text, at = text + pasted, mark.end()
        return QuestionText(text + self.text[at:], tuple(inserts))

    def remember(self, text: str) -> None:
        """Puts a text at the end of the history, once."""
        self.past = [line for line in self.past if line != text][-HISTORY + 1 :] + [text]

    def recall(self, question: QuestionText) -> None:
        """Puts a question of a saved chat at the end of the history."""
        self._with_marks(question)
        self.remember(question.text)

    def clear_all(self) -> None:
        """Empties it."""
        self.load_text("")
        self._at, self._written = None, ""
        self.update_suggestion()

    def fill(self, question: QuestionText | str) -> None:
        """Puts a question in, with the cursor after it."""
        self.clear_all()
        self.load_text(self._with_marks(question))
        self.move_cursor(self.document.end)
        self.update_suggestion()

    def put_before(self, question: QuestionText | str) -> None:
        """Puts a question before what has been written since; nothing of either is lost."""
        since = self.text
        given = self._with_marks(question)
        self.fill(given + ("\n" if since and not given.endswith("\n") else "") + since)

    def _with_marks(self, question: QuestionText | str) -> str:
        """Returns a question as the input shows it: pasted text is a mark, typed text is not."""
        if isinstance(question, QuestionText):
            return "".join(
                typed + (self._mark_of(question.text[one.start : one.end], one.mark) if one else "")
                for typed, one in question.parts()
            )
        for mark, pasted in sorted(self._pasted.items(), key=lambda one: -len(one[1])):
            question = question.replace(pasted, mark)
        return self._mark_of(question) if is_large(question) else question

    def _mark_of(self, pasted: str, before: str = "") -> str:
        """Returns the mark for a text. before: the mark that it had."""
        known = next((mark for mark, text in self._pasted.items() if text == pasted), None)
        if known is None:
            self._n_pasted += 1
            what = "output" if before.startswith(OUTPUT) else "pasted text"
            known = f"[{what} {self._n_pasted}: {count_of(pasted)}]"
            self._pasted[known] = pasted
            unused = [mark for mark in self._pasted if mark not in self.text]
            for mark in unused[:-PASTES]:  # the history shows it in full from now on
                del self._pasted[mark]
        return known

    # -- keys

    async def _on_key(self, event: events.Key) -> None:
        """Runs our own key bindings at once.

        Left to Textual, a binding runs when the key has bubbled up to the app, and letters that came after
        it are in the text by then; a priority binding runs before letters that came ahead of it.
        """
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self:
            event.stop()
            event.prevent_default()
            await self.run_action(bound.binding.action)

    async def _on_paste(self, event: events.Paste) -> None:
        text = event.text.replace("\r\n", "\n").replace("\r", "\n")
        event.prevent_default()
        event.stop()
        text = mention_of(text) or (self._mark_of(text) if is_large(text) else text)
        self._replace_via_keyboard(text, *self.selection)

    def action_newline(self) -> None:
        """Begins a new line."""
        self._replace_via_keyboard("\n", *self.selection)

    def action_complete(self) -> None:
        """Completes with the marked suggestion, or the first; without a list, goes to the next widget."""
        if self.choices is not None:
            self._take(self.choices.marked or self.choices.items[0])
        else:
            self.screen.focus_next()

    def action_cursor_up(self, select: bool = False) -> None:
        if self.choices is not None and not select:
            self._show(self.choices.moved(-1))
        elif not select and not self.text and (waiting := self.take_back()) is not None:
            self.fill(waiting)
        elif not select and self.cursor_location[0] == 0 and self.past:
            self._walk(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self.choices is not None and not select:
            self._show(self.choices.moved(1))
        elif not select and self._at is not None and self.cursor_at_last_line:
            self._walk(1)
        else:
            super().action_cursor_down(select)

    def _walk(self, step: int) -> None:
        """Walks through the history; after its end is what was being written."""
        at = len(self.past) if self._at is None else self._at
        if self._at is None:
            self._written = self.text
        at = max(0, at + step)
        newest = at >= len(self.past)
        text = self._written if newest else self._with_marks(self.past[at])
        self._at = None if newest else at
        self.load_text(text)
        self.move_cursor(self.document.end)
        self._show(None)

    def action_undo(self) -> None:
        """Undoes what was typed last; says so if there is nothing, as elsewhere Ctrl+Z leaves a program."""
        if self.history.undo_stack:
            super().action_undo()
        else:
            self.tell("Nothing to undo. (Ctrl+Z undoes what you type; Ctrl+Q quits.)")

    # -- what may be meant

    def update_suggestion(self) -> None:
        """Looks for suggestions; Textual calls this after each change of the text."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        self._show(choices(before, first_line=row == 0, files=self._project_files))
        files = mentions(self.text, self._project_files) if "@" in self.text else []
        if files != self._files:
            self._files = files
            self.show_files(files)

    def _project_files(self) -> Sequence[str]:
        return self._project.known(lambda: self.app.call_later(self.update_suggestion))

    def remove_file(self, number: int) -> None:
        """Takes the name of a file out of the text; Ctrl+Z brings it back."""
        if number < len(self._files):
            one, text = self._files[number], self.text
            end = one.end + (text[one.end : one.end + 1] == " ")
            lines = [text[:at].split("\n") for at in (one.start, end)]
            start, end_at = ((len(above) - 1, len(above[-1])) for above in lines)
            self._replace_via_keyboard("", start, end_at)
            self.focus()

    def _show(self, found: Suggestions | None) -> None:
        if found != self.choices:
            self.choices = found
            self.show(found)

    def _typed(self) -> str:
        """Returns what a suggestion would replace."""
        assert self.choices is not None
        row, column = self.cursor_location
        return self.document.get_line(row)[self.choices.start : column]

    def take_choice(self, number: int) -> None:
        """Completes with a suggestion that was clicked."""
        if self.choices is not None and number < len(self.choices.items):
            self._take(self.choices.items[number])

    def _take(self, choice: Suggestion) -> None:
        assert self.choices is not None
        row, column = self.cursor_location
        self.replace(choice.text, (row, self.choices.start), (row, column))

    def action_close_list(self) -> None:
        """Closes the list of suggestions."""
        self._show(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leaves Escape to others while there is no list."""
        return self.choices is not None if action == "close_list" else True

    # -- how it looks

    def get_line(self, line_index: int) -> Text:
        """Returns a line as it is shown; what is sent is what was written."""
        return Text(visible(self.document.get_line(line_index)), end="", no_wrap=True)

    def _recompute_cursor_offset(self) -> None:
        """Leaves the cursor where an undo has removed its line: Textual 8.2 moves it after it has looked."""
        if self.cursor_location[0] < self.document.line_count:
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if width < 1:  # a window on its way to another size: a text area would wrap into no columns
            return Strip.blank(0)
        return super().render_line(y)

    def _on_resize(self) -> None:
        super()._on_resize()
        width = self.content_size.width
        self.placeholder = next((text for text in PLACEHOLDERS if len(text) <= width), PLACEHOLDERS[-1])
