"""An app that nothing typed can end: keys are handled one at a time, and a fault costs its key alone.

Textual 8.2 forwards a key at once to whatever has the focus then. Keys that come in one burst (a held key, a
slow line, a macro) are so handled by a screen that the first of them has closed, or by one that is not drawn
yet, and each of these raises an error that ends the app. Here a key waits until all that the one before it
has caused is done, and what a closed screen still wants is dropped.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from textual import events, messages
from textual._context import active_message_pump
from textual.actions import ActionParseResult
from textual.app import App, ScreenStackError
from textual.css.query import NoMatches
from textual.dom import DOMNode
from textual.driver import Driver
from textual.geometry import Size
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widget import AwaitMount, MountError, Widget
from textual.widgets import Input, TextArea
from textual.worker import NoActiveWorker, WorkerFailed, get_current_worker

from edgespec.system import config
from edgespec_tui.settings.themes import DARK_TINTS, DEFAULT_THEME, LIGHT_THEME, LIGHT_TINTS, THEMES
from edgespec_tui.terminal.shown_text import Unobeyed, visible
from edgespec_tui.widgets.typed_ahead import TypedAhead

NARROWEST = 12  # columns to lay out for, in narrower windows too: Textual wraps into none, and fails
MOST_SCREENS = 3  # above each other: the chat, a list or a race, the palette
MOST_FAULTS, FAULTS_S = 5, 60.0  # that the app survives in this time
OF_WHAT_IS_GONE = (NoMatches, ScreenStackError, MountError)  # errors of code whose screen has been closed


class GuardedApp(App[int]):
    """Gives keys their turn, and survives faults. In tests, faults end it as they end every Textual app."""

    TITLE = "EdgeSpec"
    CSS_PATH = "chat.tcss"
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (9, "-low"), (24, "-high"), (45, "-tall")]

    def __init__(self, typed: TypedAhead | None, *, key_s: float = 0.5) -> None:
        """typed: has what was typed before the app had the keyboard, and knows the terminal's background.

        key_s: how long a key waits for the one before it.
        """
        super().__init__()
        self._key_s = key_s
        self.typed = typed or TypedAhead(None)
        for theme in THEMES:
            self.register_theme(theme)
        self._filters.append(Unobeyed())
        self.fault: str | None = None  # why the app ended, if it was not asked to
        self._faults: deque[float] = deque(maxlen=MOST_FAULTS)
        self._keys: deque[events.Event] = deque()  # that wait for their turn
        self._in_hand: object | None = None  # the key that is being handled
        self._overdue = False  # it takes too long: later ones do not wait for it

    @property
    def usual_theme(self) -> str:
        """Returns our theme for the terminal's background."""
        return LIGHT_THEME if self.typed.is_light else DEFAULT_THEME

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Returns the tints for themes without any."""
        return DARK_TINTS if self.current_theme.dark else LIGHT_TINTS

    def get_driver_class(self) -> type[Driver]:
        if sys.platform == "win32":
            return super().get_driver_class()
        from edgespec_tui.terminal.driver import TerminalDriver

        return TerminalDriver

    def keep_words(self) -> None:
        """Saves what people have written, before the app ends."""

    def exit(self, result: int | None = None, return_code: int = 0, message: Any = None) -> None:
        self.keep_words()
        super().exit(result, return_code, message)

    # -- keys, one at a time

    def takes_keys(self) -> bool:
        """Returns whether there is something to type into. Until then, keys wait."""
        return True

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Resize):
            event.size = Size(max(event.size.width, NARROWEST), event.size.height)
        if isinstance(event, events.Key) and event.key.startswith("alt+"):
            event.character = None  # of a terminal it has one, and an input would take it for a letter
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            self._keys.append(event)
        else:
            await super().on_event(event)
        await self._next_keys()

    async def _next_keys(self) -> None:
        while self._keys and (self._in_hand is None or self._overdue) and self.takes_keys():
            event = self._keys.popleft()
            in_text = isinstance(self.focused, TextArea | Input)
            if in_text and isinstance(event, events.Key) and event.is_printable:  # nothing waits for a letter
                await super().on_event(event)
                continue
            screen, nodes = self.screen, (self.focused or self.screen).ancestors_with_self
            key = self._in_hand = object()
            self._overdue = False
            await super().on_event(event)
            asyncio.get_running_loop().call_later(self._key_s, self._wait_no_longer, key)
            # the key goes from widget to widget up to the app; then, what it has caused does
            self._hop(key, screen, chain(nodes, nodes))

    def _hop(self, key: object, screen: Screen[Any], nodes: Iterator[MessagePump]) -> None:
        """Passes through the queues behind a key; then through that of a screen which it has opened."""
        for node in nodes:
            if node.call_later(self._hop, key, screen, nodes):
                return
        opened = self._running and self.screen is not screen
        if opened and self.screen.call_after_refresh(self._hop, key, self.screen, iter(())):
            return
        if self._in_hand is key:
            self._in_hand, self._overdue = None, False
            self.call_later(self._next_keys)

    def _wait_no_longer(self, key: object) -> None:
        if self._in_hand is key:
            self._overdue = True
            self.call_later(self._next_keys)

    def push_screen(
        self,
        screen: Screen[Any] | str,
        callback: Callable[[Any], Any] | None = None,
        wait_for_dismiss: bool = False,
        *,
        mode: str | None = None,
    ) -> Any:
        """Shows a screen above the others, unless there are too many: each draws all that lie below it."""
        if len(self.screen_stack) >= MOST_SCREENS:
            return AwaitMount(self.screen, [])
        return super().push_screen(screen, callback, wait_for_dismiss, mode=mode)  # type: ignore[call-overload]

    def notify(self, message: str, **named: Any) -> None:
        """Shows a message over the screen, whoever wrote it."""
        super().notify(visible(message), **named)

    # -- what is gone

    def _is_gone(self, node: MessagePump | None) -> bool:
        """True for what is on no screen any more, or is being taken from it."""
        while node is not None and not isinstance(node, Screen):
            if node is self:
                return self._exit or not self._running
            if isinstance(node, Widget) and node._pruning:
                return True
            node = node._parent
        return node not in self._screen_stack

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Runs an action, unless what it belongs to is gone."""
        if default_namespace is not None and self._is_gone(default_namespace):
            return True
        return await super().run_action(action, default_namespace, namespaces)

    async def _dispatch_action(self, namespace: DOMNode, action_name: str, params: Any) -> bool:
        try:
            return await super()._dispatch_action(namespace, action_name, params)
        except KeyError:  # Textual's lists turn pages by lines that they lack before they are drawn
            if "page" not in f"{action_name} {params}":
                raise
            return True

    # -- faults

    def _register_child(self, parent: DOMNode, child: Widget, *place: Any) -> None:
        """Adds a widget, whose messages are guarded from now on."""
        super()._register_child(parent, child, *place)
        dispatch = functools.partial(self._guarded, child, child._dispatch_message)
        child._dispatch_message = dispatch  # type: ignore[method-assign]

    async def _dispatch_message(self, message: Message) -> None:
        await self._guarded(self, super()._dispatch_message, message)

    async def _guarded(
        self, node: MessagePump, dispatch: Callable[[Message], Awaitable[None]], message: Message
    ) -> None:
        """Handles a message. Left to Textual, an error in it ends the queue of its widget, and the app.

        A screen that is laid out sends itself its new size. With two of them on their way, each changes the
        layout and so sends itself again, for ever: only the size of now counts.
        """
        if isinstance(message, events.Resize) and isinstance(node, Screen):
            message.size = self.size
        if isinstance(message, events.Compose | events.Mount):
            await dispatch(message)  # what cannot even begin is reported by Textual
        elif not (_acts(message) and self._is_gone(node)):
            try:
                await dispatch(message)
            except Exception as error:  # the last resort: whatever it is, the app goes on
                self._bear(error, node)

    def _bear(self, error: Exception, node: MessagePump) -> None:
        """Tells a fault and goes on, unless there are too many of them."""
        cause = error.error if isinstance(error, WorkerFailed) else error
        if isinstance(cause, OF_WHAT_IS_GONE) and self._is_gone(node):
            return
        if self.is_headless:
            super()._handle_exception(error)
            return
        self._faults.append(now := time.monotonic())
        if len(self._faults) == MOST_FAULTS and now - self._faults[0] < FAULTS_S:
            self._give_up(error)
        else:
            try:
                self.tell_fault(fault_sentence(cause, "was met, and the chat goes on"))
            except Exception:  # what would show it is broken, too
                self._give_up(error)

    def tell_fault(self, sentence: str) -> None:
        """Shows what has gone wrong."""
        self.notify(sentence, severity="error", markup=False)

    def _handle_exception(self, error: Exception) -> None:
        """Takes an error from outside of all messages: of a worker, a timer, something that cannot begin."""
        try:
            node: MessagePump | None = get_current_worker().node
        except NoActiveWorker:
            node = active_message_pump.get(None)
        if isinstance(error, (WorkerFailed, *OF_WHAT_IS_GONE)) or self.is_headless:
            self._bear(error, node or self)
        else:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Ends the app in order, without a traceback. (Textual would print one.)"""
        if self.fault is None:
            self.fault, self._return_code = fault_sentence(error, "ended the chat"), 1
            self._close_messages_no_wait()
            self.keep_words()


def _acts(message: Message) -> bool:
    """True for input, and for what widgets say of it: a press, a choice, a submission."""
    if isinstance(message, events.Event):
        return isinstance(message, events.InputEvent | events.Paste)
    return type(message).__module__ != messages.__name__


def fault_sentence(error: BaseException, did: str) -> str:
    """Writes a bug of our own into a file; returns the sentence for the screen. did: "ended the chat"."""
    text = "".join(traceback.format_exception(error))
    folder = config.state_folder() / "faults"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="chat-", suffix=".txt", dir=folder, delete=False
        ) as file:
            file.write(text)
        where = f"details are in {Path(file.name)}"
    except OSError as problem:
        where = f"details could not be written ({problem.strerror})"
    return f"a fault of EdgeSpec's own {did} ({type(error).__name__}); {where}."
