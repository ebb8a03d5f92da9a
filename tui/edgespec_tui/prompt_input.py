"""Where questions are written: several lines, a history, and paste of texts of any size.

A large paste stands as one short mark in the text and is put in its place when the question is sent, so
that a 5,000-line log neither hides the question nor makes typing slow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

LARGE_LINES, LARGE_CHARACTERS = 20, 2000
HISTORY = 500
OURS = ("send", "newline", "complete")
MARK = re.compile(r"\[pasted text (\d+): \d+ lines?\]")


class PromptInput(TextArea):
    """The input. Enter sends; Ctrl+J, Shift+Enter or Alt+Enter begin a new line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="input.send", show=False),
        Binding("ctrl+j,shift+enter,alt+enter", "newline", "New line", id="input.newline", show=False),
        Binding("tab", "complete", "Complete", id="input.complete", show=False),
    ]

    class Sent(Message):
        """A question, or a slash command."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, commands: Sequence[str] = ()) -> None:
        """commands: what is completed after a slash."""
        super().__init__(id="prompt", soft_wrap=True, tab_behavior="focus", highlight_cursor_line=False)
        self.past: list[str] = []
        self._commands = commands
        self._at: int | None = None  # place in the history; None: something new is being written
        self._written = ""  # what that was
        self._pasted: dict[int, str] = {}
        self.placeholder = "Ask something. Enter sends, Ctrl+J begins a new line, / lists commands."

    def action_send(self) -> None:
        """Sends what is written, with what was pasted in its places."""
        text = self.whole()
        if not text.strip():
            return
        self.remember(self.text if not self._pasted else text)
        self.clear_all()
        self.post_message(self.Sent(text))

    def whole(self) -> str:
        """Returns what is written, pasted texts in full."""
        return MARK.sub(lambda mark: self._pasted.get(int(mark[1]), mark[0]), self.text)

    def remember(self, text: str) -> None:
        """Puts a text at the end of the history, once."""
        self.past = [line for line in self.past if line != text][-HISTORY + 1 :] + [text]

    def clear_all(self) -> None:
        """Empties it."""
        self.load_text("")
        self._pasted.clear()
        self._at, self._written = None, ""

    def fill(self, text: str) -> None:
        """Puts a text in, the cursor behind it."""
        self.clear_all()
        self.load_text(self._folded(text))
        self.move_cursor(self.document.end)

    def action_newline(self) -> None:
        """Begins a new line."""
        self.insert("\n")

    def action_complete(self) -> None:
        """Completes a slash command, or goes on to the next thing."""
        if self.suggestion:
            self.insert(self.suggestion)
        else:
            self.screen.focus_next()

    def update_suggestion(self) -> None:
        """Suggests the rest of a slash command."""
        text = self.text
        if text.startswith("/") and " " not in text and "\n" not in text:
            match = next((c for c in self._commands if c.startswith(text) and c != text), "")
            self.suggestion = match[len(text) :]

    def action_cursor_up(self, select: bool = False) -> None:
        if not select and self.cursor_location[0] == 0 and self.past:
            self._walk(-1)
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if not select and self._at is not None and self.cursor_at_last_line:
            self._walk(1)
        else:
            super().action_cursor_down(select)

    def _walk(self, step: int) -> None:
        """Goes through the history; behind its end is what was being written."""
        at = len(self.past) if self._at is None else self._at
        if self._at is None:
            self._written = self.text
        at = max(0, at + step)
        newest = at >= len(self.past)
        text = self._written if newest else self.past[at]
        self._at = None if newest else at
        self.load_text(text if newest else self._folded(text))
        self.move_cursor(self.document.end if step < 0 else self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        """Leaves to the bindings what they are for: a text area would take Enter as text.

        They are no priority bindings, which run at once: Enter would overtake letters typed fast before it.
        """
        bound = self.screen.active_bindings.get(event.key)
        if bound is not None and bound.node is self and bound.binding.action in OURS:
            event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        folded = self._folded(event.text.replace("\r\n", "\n").replace("\r", "\n"))
        event.prevent_default()
        event.stop()
        self.insert(folded)

    def _folded(self, text: str) -> str:
        """Returns a mark for a large text, and a small one as it is."""
        lines = text.count("\n") + 1
        if lines <= LARGE_LINES and len(text) <= LARGE_CHARACTERS:
            return text
        number = max(self._pasted, default=0) + 1
        self._pasted[number] = text
        return f"[pasted text {number}: {lines} line{'s' if lines > 1 else ''}]"
