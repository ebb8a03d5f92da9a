"""The saved chats: searched while typing, opened, renamed, deleted and restored."""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static

from edgespec.errors import SessionError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.listed import Listed, words_of
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.terminal.shown_text import Content, visible
from edgespec_tui.widgets.key_line import KeyLine

MOST_FOUND, MOST_LISTED = 200, 1000
SEARCH_AFTER_S = 0.15  # without another key


def marked(text: Content, words: Sequence[str]) -> Content:
    """Returns a text with the search words highlighted."""
    any_word = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    return text.highlight_regex(any_word, style="bold not dim $text-accent")


class SessionsScreen(ModalScreen[int | None]):
    """Lists chats; ends with the id of the one to open, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="sessions.leave"),
        Binding("f2", "rename", "Rename", id="sessions.rename", priority=True),
        Binding("delete,f8", "delete", "Delete", id="sessions.delete", priority=True),
        Binding("ctrl+z", "undo", "Undo delete", id="sessions.undo", priority=True),
        Binding("down", "app.focus('sessions-list')", "To the list", id="sessions.to_list", show=False),
    ]

    def __init__(self, sessions: Sessions, talk: Conversation, on_rename: Callable[[], None]) -> None:
        """talk: the chat on the screen, which is not deleted here. on_rename: called if that is renamed."""
        super().__init__()
        self._sessions, self._talk, self._on_rename = sessions, talk, on_rename
        self._found: list[Listed] = []
        self._renaming: Listed | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sessions"):
            yield Input(placeholder="Search titles and texts", id="sessions-search")
            yield OptionList(id="sessions-list")
            yield Static("", id="sessions-note")
            yield Input(placeholder="New title: Enter saves it, Esc cancels", id="sessions-title")
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        """Lists all; keys do not wait for it, as an old file may have to be changed first."""
        self.run_worker(self._fill(), group="search", exclusive=True)

    async def _fill(self) -> None:
        """Lists what the search finds, and stays on the marked chat."""
        query = self.query_one("#sessions-search", Input).value
        finding = self._sessions.searched(query, limit=MOST_FOUND if query.strip() else MOST_LISTED)
        try:
            self._found = await asyncio.wrap_future(finding)
        except SessionError as error:
            self._note(str(error))
            return
        options = self.query_one(OptionList)
        before, words = options.highlighted or 0, list(words_of(query))
        options.clear_options()
        options.add_options([self._line(one, words) for one in self._found])
        if self._found:
            options.highlighted = min(before, len(self._found) - 1)
        self._note("" if self._found else "Nothing found." if query else "There are no chats yet.")

    def _line(self, one: Listed, words: Sequence[str]) -> Content:
        when = one.age(time.time()).rjust(10)
        here = " (open)" if one.id == self._talk.id else ""
        asked = f"{one.questions} question{'s'[: one.questions != 1]}"
        about = " · ".join(filter(None, (asked, one.model, one.excerpt or one.beginning)))
        title, below = marked(Content(one.heading), words), marked(Content.styled(about, "dim"), words)
        return Content.assemble((when, "dim"), "  ", title, here, "\n", " " * 12, below)

    def _note(self, sentence: str) -> None:
        self.query_one("#sessions-note", Static).update(Content(sentence))

    def _marked(self) -> Listed | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None else self._found[at]

    @on(Input.Changed, "#sessions-search")
    @work(group="search", exclusive=True)
    async def _search(self) -> None:
        await asyncio.sleep(SEARCH_AFTER_S)
        await self._fill()

    @on(Input.Submitted, "#sessions-search")
    @on(OptionList.OptionSelected)
    def _open(self) -> None:
        if (one := self._marked()) is not None:
            self.dismiss(one.id)

    def action_leave(self) -> None:
        """Leaves a rename, or goes back."""
        if self._renaming is not None:
            self._end_rename()
        else:
            self.dismiss(None)

    def action_rename(self) -> None:
        """Asks for a new title of the marked chat."""
        self._renaming = self._marked()
        if self._renaming is not None:
            title = self.query_one("#sessions-title", Input)
            title.display = True
            title.value = visible(self._renaming.talk.title)  # all of it is selected: typing replaces it
            title.focus()

    def _end_rename(self) -> None:
        self._renaming = None
        self.query_one("#sessions-title").display = False
        self.query_one(OptionList).focus()

    @on(Input.Submitted, "#sessions-title")
    async def _rename(self, event: Input.Submitted) -> None:
        one, title = self._renaming, event.value.strip()
        self._end_rename()
        if one is not None and title:
            if await self._do(self._sessions.renamed(one.id, title), f"Renamed to {title!r} now."):
                if one.id == self._talk.id:
                    self._talk.title = title
                    self._on_rename()

    async def action_delete(self) -> None:
        """Deletes the marked chat; Ctrl+Z restores it."""
        if (one := self._marked()) is None:
            return
        if one.id == self._talk.id:
            self._note("This chat is open: start a new one first (Ctrl+N).")
        else:
            done = f"Deleted {one.heading!r}. Ctrl+Z restores it."
            await self._do(self._sessions.deleted(one.id), done)

    async def action_undo(self) -> None:
        """Restores the chat that was deleted last."""
        undone = self._sessions.undone()
        if await self._do(undone, ""):
            self._note(f"{undone.result()!r} is back.")

    async def _do(self, doing: Future[Any], done: str) -> bool:
        try:
            await asyncio.wrap_future(doing)
        except SessionError as error:
            self._note(str(error))
            return False
        await self._fill()
        self._note(done)
        return True
