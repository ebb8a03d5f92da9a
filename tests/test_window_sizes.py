"""A window may get any size at any moment; the chat continues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from textual import events
from textual.geometry import Size
from tui_driver import Driven, driven

from edgespec_models.shelf.store import Store
from edgespec_tui.app import ChatApp
from edgespec_tui.screens.model_shelf import Shelf
from edgespec_tui.sessions.sessions import Sessions

ANSWER = (
    "# Head\n\nwords " * 40
    + "\n\n```python\nprint('a long line of code') # "
    + "x" * 90
    + "\n```\n\n| a | b |\n|-|-|\n| c | d |\n"
)
SAMPLE = (200, 45, 43, 1)
EVERY = range(200, 19, -1)


async def through(it: Driven, widths: Iterable[int], rng: random.Random) -> None:
    """Gives the window each of these widths, and heights that jump: faster than it is drawn, too."""
    widths = list(widths)
    for width in [*widths, 120, 44, 120, 30, *widths[::-1]]:
        size = Size(width, rng.choice((36, 24, 10, 3, 1)))
        it.app.post_message(events.Resize(size, size))
        if rng.random() < 0.3:
            await asyncio.sleep(0.01)
    await it.pilot.resize_terminal(120, 36)
    await it.pilot.pause()
    assert it.app.is_running and it.app.fault is None and it.text()


async def states(it: Driven, widths: Iterable[int], rng: random.Random, screens: Iterable[str]) -> None:
    """Everything that can be on the screen."""
    widths = list(widths)
    await through(it, widths, rng)
    it.chat.prompt.fill("some words that are being written\n" * 5)
    await through(it, widths, rng)
    await it.ask("how?")
    it.chat.prompt.fill("/")
    await through(it, widths, rng)
    it.chat.prompt.clear_all()
    await it.pilot.press("f2")
    await through(it, widths, rng)
    await it.pilot.press("f2", "f3")
    it.chat.show_banner("Something to say.", ("F9", "does something", "restart"))
    await through(it, widths, rng)
    for key in screens:
        await it.pilot.press(key)
        await it.until(lambda: it.app.screen is not it.chat)
        await through(it, widths, rng)
        await it.pilot.press("escape")
        await it.until(lambda: it.app.screen is it.chat)
    await it.ask("still there?")
    assert len(it.texts()) == 4


def sweep(widths: Iterable[int], folder: Path, seed: int, *screens: str) -> None:
    async def story() -> None:
        sessions = Sessions(folder, on_notice=lambda sentence: pytest.fail(sentence))
        try:
            shelf = Shelf(Store(folder / "models"), memory=16 * 2**30)
            app = ChatApp(FakeEndpoint(answers=[ANSWER]), sessions=sessions, shelf=shelf)
            async with driven(app, size=(120, 36)) as it:
                await states(it, widths, random.Random(seed), screens)
        finally:
            sessions.close()

    asyncio.run(story())


@pytest.mark.slow
def test_no_size_of_the_window_ends_the_chat(tmp_path: Path) -> None:
    """An input of no columns, on the way to 44, ended it: Textual wrapped its placeholder into nothing."""
    sweep(SAMPLE, tmp_path, 1, "f1", "f5")


@pytest.mark.slow
def test_every_width_there_and_back(tmp_path: Path) -> None:
    sweep(EVERY, tmp_path, 2, "f1", "ctrl+o", "ctrl+l", "f5", "ctrl+p")


@on_a_loop
async def test_a_window_made_narrow_and_wide_again_shows_what_it_showed() -> None:
    """Textual knew the height at the old width: nothing was wrapped again, and the end of a text fell off."""
    text = "A lighthouse keeper told a sailor of storms that he had seen, and of ships that came home. " * 6
    async with driven(ChatApp(FakeEndpoint(answers=[text])), size=(110, 34)) as it:
        for question in ("a story", "another"):
            await it.ask(question)
        await it.pilot.pause()
        before = it.text()
        for narrow in ((46, 14), (70, 30)):
            await it.pilot.resize_terminal(*narrow)
            await it.until(lambda: it.text() != before)
            await asyncio.sleep(0.2)  # drawn
            await it.pilot.resize_terminal(110, 34)
            await it.until(lambda: it.text() == before)


@on_a_loop
async def test_the_last_line_ends_with_the_palettes_key_however_narrow() -> None:
    """A letter of the key beneath it showed through behind it: "^p paletteH"."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        for width in (60, 50, 45, 44):
            await it.pilot.resize_terminal(width, 20)
            await it.until(lambda: it.text().splitlines()[-1].endswith("^p palette"), f"at {width}")
