"""The app: one engine, one window, its screens."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, work
from textual.app import SuspendNotSupported, SystemCommand
from textual.binding import BindingType
from textual.command import SimpleCommand
from textual.markup import escape
from textual.screen import Screen

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError, SessionError, SettingError
from edgespec.pairs.store import open_store
from edgespec_tui import hang_up, palette
from edgespec_tui.endpoint.endpoint import Endpoint
from edgespec_tui.endpoint.engine_state import KnownEngine
from edgespec_tui.endpoint.model_notes import note_of
from edgespec_tui.guarded_app import GuardedApp
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.screens.chat_context import ChatContext
from edgespec_tui.screens.help import HelpScreen
from edgespec_tui.screens.model_shelf import Shelf, ShelfPair
from edgespec_tui.screens.models import ModelsScreen
from edgespec_tui.screens.offers import LOOK_AFTER_S, Offers
from edgespec_tui.screens.sessions import SessionsScreen
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import rescue
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.beginning import settings_path
from edgespec_tui.settings.keys import key
from edgespec_tui.settings.settings import AppNames, Settings, begun, read
from edgespec_tui.settings.waits import Waits
from edgespec_tui.terminal.notification import notification
from edgespec_tui.terminal.shown_text import visible
from edgespec_tui.terminal.typed_bytes import TypedBytes
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.external_editor import editor
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.typed_ahead import TypedAhead
from edgespec_tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from edgespec_models.hub.model_pull import ModelPull

QUIT_TWICE_S = 2.0  # a second Ctrl+C within this time ends


class ChatApp(GuardedApp):
    """`edgespec chat`."""

    COMMANDS = {palette.Entries}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-middle"), (120, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [
        key("app.help", "f1", "Help", "Keys and commands", shown=True),
        key("app.new", "ctrl+n", "New", "Start a new chat"),
        key("app.sessions", "ctrl+o", "Chats", "Chats: search, open, rename, delete", shown=True),
        key("app.models", "ctrl+l", "Models", "Choose or pull a model"),
        key("app.use_found", "alt+u,f11", "Use found model", "Continue with the model that was found here"),
        key("app.pull_best", "alt+p", "Pull recommended", "Pull the recommended pair while this one answers"),
        key("app.quit", "ctrl+q", "Quit", "Quit; the chat is saved", action="quit_now", first=True),
        key("app.interrupt", "ctrl+c", "Stop or quit", "Copy, stop, clear input; twice: quit", first=True),
    ]

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        sessions: Sessions | None = None,
        settings: Settings | None = None,
        first: Conversation | None = None,
        options: AnswerOptions | None = None,
        notices: list[str] | None = None,
        shelf: Shelf | None = None,
        typed: TypedAhead | None = None,
        known: AppNames | None = None,
        toolbox: Toolbox | None = None,
        look_after_s: float = LOOK_AFTER_S,
        waits: Waits | None = None,
    ) -> None:
        """sessions: None keeps them in memory. notices: what people should know; others may add to it.

        known: the keys and themes that a settings file may name; without it they are not checked.
        """
        waits = waits or Waits()
        super().__init__(typed, key_s=waits.key_s)
        self._notices = notices if notices is not None else []
        self._sessions = sessions or Sessions(None, on_notice=self._notices.append)
        self._shelf = shelf or Shelf(open_store())
        self._shelf.on_end = self._pull_ended  # from another thread: the list is checked now and then
        engine, settings = KnownEngine(endpoint, self._engine_changed), settings or Settings()
        self.context = ChatContext(engine, self._sessions, settings, waits=waits)
        self.context.options = options or AnswerOptions()
        self.context.first_conversation = first or settings.new_conversation()
        self.chat = ChatScreen(self.context)
        self.chat.speculation = settings.speculation
        self.chat.set_class(not settings.panel, "-no-panel")
        self.context.toolbox = toolbox or Toolbox(())
        self.unsent = QuestionText("")  # what was written and not asked at the end
        self._interrupted = 0.0
        self._shown: set[str] = set()  # notices about the models shown so far
        self._began = False  # there has been an input that has the keyboard
        self._known = known
        self._asked_for = ""  # the server whose models were listed because it has several
        self.offers = Offers(self._shelf, self.chat, after_s=look_after_s)
        self.set_keymap(dict(settings.keys))

    def on_load(self) -> None:
        """Takes what was typed until now, just before Textual takes the keyboard."""
        typed = TypedBytes(time.monotonic).feed(self.typed.taken().encode())
        self._keys.extend(event for event in typed if isinstance(event, events.Key | events.Paste))

    def on_mount(self) -> None:
        self.theme = self.context.settings.theme or self.usual_theme
        hang_up.watch(self._end, self._keep, has_window=not self.is_headless)
        self.context.moments.begin()
        self.set_interval(1.0, self.context.moments.look)
        self.set_interval(0.5, self._tell_notices)
        self.push_screen(self.chat)
        self.run_worker(self.context.engine.start(), group="engine", exclusive=True)

    def _tell_notices(self) -> None:
        """Shows what came up elsewhere: a damaged file, a full disk, a setting that makes no sense."""
        while self._notices and self.chat.is_whole:
            self.chat.tell(self._notices.pop(0), "warning")

    def _engine_changed(self) -> None:
        info = self.context.engine.info
        if info is not None and self.context.engine.state == "ready":
            self._notices += [sentence for sentence in info.notices if sentence not in self._shown]
            self._shown.update(info.notices)
            if not info.model and self._asked_for != info.where:
                self._asked_for = info.where
                self.action_models()
            if note_of(info):
                self.run_worker(self.offers.look(), group="look")
        self.chat.engine_changed()

    def _keep(self) -> None:
        """Saves the chat wherever possible; nobody is there to read why not."""
        self.keep_words()
        rescue(self._sessions.close(), lambda _: None)

    def tell_fault(self, sentence: str) -> None:
        """Shows what has gone wrong."""
        self.chat.tell(sentence, "error")

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self.context.moments.key()
        await super().on_event(event)

    def takes_keys(self) -> bool:
        """True once the input has the keyboard."""
        self._began = self._began or (self.chat.is_whole and self.focused is not None)
        return self._began

    def keep_words(self) -> None:
        """Saves with the chat what is written and not asked; it is in the input when that is opened again."""
        if self.chat.is_whole:
            talk, self.unsent = self.chat.conversation, self.chat.unsent()
            talk.draft = self.unsent.draft()
            talk.title = talk.title or self.unsent.title()
            self._sessions.save(talk)

    async def on_unmount(self) -> None:
        self.context.moments.end()
        self._shelf.close()
        await self.context.toolbox.close()
        await self.context.engine.endpoint.close()

    # -- keys

    async def action_new(self) -> None:
        """Starts a new chat; the old one stays among the saved ones."""
        if self.chat.is_free_to("start a new chat"):
            await self.chat.open(self.context.settings.new_conversation())

    def action_interrupt(self) -> None:
        """Copies a selection; else stops the answer; else empties the input; twice: ends."""
        chat = self.chat
        selected = self.screen.get_selected_text() or chat.prompt.selected_text
        if selected:
            self.copy_to_clipboard(selected)
        elif chat.answering:
            chat.run_worker(chat.action_stop())
        elif self.screen is chat and chat.prompt.text:
            chat.prompt.clear_all()
        elif time.monotonic() - self._interrupted < QUIT_TWICE_S:
            self.action_quit_now()
        else:
            self._interrupted = time.monotonic()
            chat.tell("Press Ctrl+C again to quit.")

    def action_quit_now(self) -> None:
        """Ends; the chat is saved."""
        self._end(0)

    def _end(self, code: int) -> None:
        self.run_worker(self._stop_and_exit(code), exclusive=True, group="quit")

    async def _stop_and_exit(self, code: int) -> None:
        await self.chat.answers.stop()
        self.exit(code)

    def on_answer_ended(self) -> None:
        """Announces it as the settings say."""
        if self._driver is not None:
            self._driver.write(notification(self.context.settings.notify, "The answer is complete."))
            self._driver.flush()

    def action_help(self) -> None:
        """Shows keys and commands."""
        self.push_screen(HelpScreen(list(self.chat.active_bindings.values())))

    @work(group="open", exclusive=True)
    async def action_sessions(self) -> None:
        """Lists chats, and opens the one that is chosen."""
        chat = self.chat
        id = await self.push_screen_wait(
            SessionsScreen(self._sessions, chat.conversation, chat.refresh_state)
        )
        if id is None or id == chat.conversation.id or not chat.is_free_to("open another chat"):
            return
        try:
            await chat.open(await asyncio.wrap_future(self._sessions.loaded(id)))
        except SessionError as error:
            chat.tell(str(error), "error")

    def action_models(self) -> None:
        """Chooses a model."""
        info = self.context.engine.info
        if self.context.engine.is_foreign:
            self.run_worker(self._list_models(), group="list", exclusive=True)
            return
        running = "" if info is None else "embedded" if info.embedded else info.model
        self.push_screen(ModelsScreen(self._shelf, running=running), self._use_pair)

    async def _list_models(self) -> None:
        """Lists the models of another server."""
        engine = self.context.engine
        try:
            models = await engine.endpoint.models()
        except EdgeSpecError as error:
            self.chat.tell(str(error), "error")
            return
        listed = []
        for info in sorted(models, key=lambda info: info.model.lower()):
            about = ["answers now"] if info.model == engine.model else []
            about += [f"{info.n_ctx:,} tokens"] if info.n_ctx else []
            choose = functools.partial(self._choose_model, info.model)
            listed.append(SimpleCommand(escape(visible(info.model)), choose, ", ".join(about) or None))
        self.search_commands(listed, "Search the models of this server")

    def _choose_model(self, model: str) -> None:
        if self.chat.is_free_to("change the model"):
            self.run_worker(self.context.engine.choose(model), group="engine", exclusive=True)

    def _pull_ended(self, pull: ModelPull) -> None:
        """Reports how a pull has ended, if no screen shows it. In the pull's thread."""
        if not self._shelf.watched:
            self._notices.append(pull.sentence)

    def _use_pair(self, pair: ShelfPair | None) -> None:
        if pair is not None and pair.target is not None and self.chat.is_free_to("change the model"):
            self.run_worker(self._go_on_with(pair, pair.target), group="engine", exclusive=True)

    def action_pull_best(self) -> None:
        """Pulls the recommended pair in the background."""
        if (best := self.offers.best) is None:
            self.chat.tell("No pair is recommended here: Ctrl+L lists those there are.")
            return
        try:
            self._shelf.begin_pull(best.name)
        except SettingError as error:
            self.chat.tell(str(error), "error")
        else:
            self.chat.tell(f"{best.name} is being pulled: Ctrl+L shows how far, and continues with it.")

    def action_use_found(self) -> None:
        """Continues with the model that was found here."""
        if self.offers.found is None:
            self.chat.tell("No model of another program was found here.")
            return
        if not self.chat.is_free_to("change the model"):
            return
        found, self.offers.found = self.offers.found, None
        self.chat.query_one(Welcome).offer("")
        try:
            pair = self._shelf.take(found)
        except SettingError as error:
            self.chat.tell(str(error), "error")
            return
        self._use_pair(pair)

    async def _go_on_with(self, pair: ShelfPair, target: Path) -> None:
        """Lets another pair answer from now on; the conversation stays. One that has gone changes nothing."""
        if lost := await asyncio.to_thread(pair.gone):
            self.chat.tell(lost, "error")
            return
        await self.chat.answers.stop()
        self._shelf.note_use(pair)
        await self.context.engine.use(target, pair.draft)
        if self.context.engine.state == "ready":
            self.chat.tell(f"{pair.name} answers from now on.")

    def action_settings(self) -> None:
        """Opens the settings file in the editor that VISUAL or EDITOR names."""
        file = settings_path()
        try:
            command = editor(begun(file))
            with self.suspend():
                subprocess.run(command, check=False)
        except (EdgeSpecError, OSError, SuspendNotSupported) as error:
            self.chat.tell(f"{error}; the settings are in {file}", "error")
            return
        self._take_settings(file)

    def _take_settings(self, file: Path) -> None:
        """Reads the settings anew; they apply to new chats, keys and colours at once."""
        settings, complaints = read(file, known=self._known)
        self.context.settings = settings
        self.context.toolbox.most_rounds = settings.tool_rounds
        self._notices += complaints
        self.set_keymap(dict(settings.keys))
        self.theme = settings.theme or self.usual_theme
        self.chat.tell("Settings reloaded; sampling and system prompt apply to new chats.")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yields the entries of the command palette."""
        begin = self.chat.begin_command if screen is self.chat else None
        without = () if self.offers.found else ("use_found",)
        yield from palette.entries(self, screen, begin, without=without)
        yield from (one for one in super().get_system_commands(screen) if one.title != "Quit")  # is there
