"""The app on a fake endpoint, driven by tests: what is shown, what was asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import textual.app
import textual.pilot
from rich.cells import cell_len
from textual.app import App
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Static

from edgespec_tui.app import ChatApp
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.widgets.notice_line import NoticeLine

PATIENCE_S = 10.0
LOOK_S, SELDOM_S = 0.02, 0.05  # between two looks at first, and later: a look at the screen draws it
IDLE_S = 0.02  # more than a frame: in it an app that is done with a key does next to nothing


async def idle(_least: float = 0.0, most: float = 0.3) -> None:
    """Waits until the app is done with what it was sent, or for the `most`: an answer may be coming.

    Textual's own waits until no thread of the process works. With more workers than cores, that took a
    second after many keys.
    """
    end = time.monotonic() + min(most, 0.3)
    while time.monotonic() < end:
        before = time.thread_time()
        await asyncio.sleep(IDLE_S)
        if time.thread_time() - before < IDLE_S / 20:
            return


textual.app.wait_for_idle = textual.pilot.wait_for_idle = idle  # type: ignore[attr-defined]


def strips_of(app: App[Any]) -> list[Strip]:
    """Returns what the terminal shows, line by line; Textual has no public way to it."""
    return app.screen._compositor.render_strips()


class Driven:
    """An app that runs without a screen."""

    def __init__(self, app: ChatApp, pilot: Pilot[int | None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def chat(self) -> ChatScreen:
        return self.app.chat

    async def until(
        self, holds: Callable[[], object], what: str = "", *, seconds: float = PATIENCE_S, fails: bool = True
    ) -> None:
        """Waits until something holds; fails where it never does."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < seconds:
            if holds():
                return
            await asyncio.sleep(LOOK_S if waited < 10 * LOOK_S else SELDOM_S)
        if not fails:
            return
        raise AssertionError(f"never came true: {what or holds}; shown: {self.text()!r}")

    async def ask(self, question: str) -> None:
        """Writes a question, sends it, and waits until it is answered."""
        self.chat.prompt.fill(question)
        await self.pilot.press("enter")
        await self.pilot.pause()
        await self.until(lambda: not self.chat.answering, f"an answer to {question!r}")
        await self.pilot.pause()

    async def say(self, line: str) -> None:
        """Sends a line and does not wait for more than the keys."""
        self.chat.prompt.fill(line)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def click(self, words: str) -> None:
        """Clicks on words that the screen shows, the lowest of them, once they have come to rest."""
        await self.until(lambda: words in self.text(), words)
        before = None
        while (place := self._place(words)) != before:
            before = place
            await self.pilot.pause()  # what waits in the app's queues may move them yet
            await self.pilot.pause(0.05)
        await self.pilot.click(offset=place)
        await self.pilot.pause()

    def _place(self, words: str) -> tuple[int, int]:
        """Returns the column and the line of words on the screen."""
        strips = strips_of(self.app)
        y = max(y for y, strip in enumerate(strips) if words in strip.text)
        return cell_len(strips[y].text[: strips[y].text.index(words)]) + 1, y

    def text(self) -> str:
        """Returns what the screen shows, line by line."""
        return "\n".join(strip.text.rstrip() for strip in strips_of(self.app))

    def shown(self, selector: str) -> str:
        """Returns the text of one widget."""
        return str(self.app.screen.query_one(selector, Static).content)

    async def notified(self, words: str) -> None:
        """Waits until a sentence with these words is shown for a moment."""
        line = self.chat.query_one(NoticeLine)
        await self.until(
            lambda: (
                any(words in sentence for sentence, _ in line.sentences)
                or any(words in notice.message for notice in self.app._notifications)
            ),
            words,
        )

    def texts(self) -> list[str]:
        """Returns the turns on the path."""
        return [turn.text for turn in self.chat.conversation.path()]


@asynccontextmanager
async def driven(
    app: ChatApp, *, size: tuple[int, int] = (130, 28), ready: bool = True
) -> AsyncIterator[Driven]:
    """Runs an app; gives its driver, once there is an engine (ready: False does not wait for one)."""
    async with app.run_test(size=size) as pilot:
        it = Driven(app, pilot)
        if ready:
            await it.until(lambda: app.context.engine.state != "starting" and it.chat.is_whole, "an engine")
        await pilot.pause()
        yield it
