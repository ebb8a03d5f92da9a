"""Keys that come without a pause, in the order they come: as a slow line, a paste or a macro sends them."""

from __future__ import annotations

import asyncio
import random

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from textual import events
from tui_driver import Driven, driven

from edgespec_tui.app import ChatApp

KEYS = {"\r": "enter", "\n": "ctrl+j", "\x7f": "backspace", "\x1b[D": "left", "\x1b[F": "end"}


def script(rng: random.Random, length: int) -> list[str]:
    """Draws what is pressed: letters, the keys above, and pastes (more than one character, no escape)."""
    pressed = []
    for _ in range(length):
        drawn = rng.random()
        if drawn < 0.66:
            pressed.append(rng.choice("abcdefg "))
        elif drawn < 0.9:
            pressed.append(rng.choice(list(KEYS)))
        else:
            pressed.append(rng.choice(["two words", "two\nlines", "line\n" * 30]))
    return pressed


def expected(pressed: list[str]) -> tuple[list[str], str]:
    """Returns what has been asked and what is still being written, by the simplest editor there is."""
    sent, text, at = [], "", 0
    for key in pressed:
        if key == "\r":
            if text.strip():
                sent.append(text)
                text, at = "", 0
        elif key == "\x7f":
            text, at = text[: max(0, at - 1)] + text[at:], max(0, at - 1)
        elif key == "\x1b[D":
            at = max(0, at - 1)
        elif key == "\x1b[F":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        else:
            text, at = text[:at] + key + text[at:], at + len(key)
    return sent, text


def press(it: Driven, pressed: list[str]) -> None:
    """Sends it all in one go."""
    for key in pressed:
        if key in KEYS:
            it.app.post_message(events.Key(KEYS[key], key if len(key) == 1 else None))
        elif len(key) > 1:
            it.app.post_message(events.Paste(key))
        else:
            it.app.post_message(events.Key("space" if key == " " else key, key))


async def check(it: Driven, pressed: list[str]) -> None:
    await it.app.action_new()
    it.chat.prompt.clear_all()
    sent, left = expected(pressed)
    press(it, pressed)
    asked = lambda: [turn.text for turn in it.chat.conversation.turns.values() if turn.role == "user"]  # noqa: E731
    await it.until(lambda: asked() == sent and it.chat.prompt.question().text == left, f"{sent} and {left!r}")
    await it.until(lambda: not it.chat.answering)


def without_long_pastes(pressed: list[str]) -> list[str]:
    """A large paste is one mark in the text, over which the cursor goes as over its own letters."""
    return [key for key in pressed if len(key) < 100]


@on_a_loop
async def test_keys_without_a_pause_arrive_in_order() -> None:
    """Send and newline were left to bubbling bindings, which later letters passed: "md Enter typed" asked
    "mdtyped", `one ^J two ^J three` became `one / twothree`."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        await check(it, [*"one", "\n", *"two", "\n", *"three"])
        await check(it, [*"md", "\r", *"typed after"])
        await check(it, [*"with", "line\n" * 30, *"behind", "\r", *"next"])
        rng = random.Random(11)
        for _ in range(6):
            await check(it, without_long_pastes(script(rng, 30)))


@pytest.mark.slow
@on_a_loop
async def test_undoing_lines_that_needed_a_scrollbar_fails_nothing() -> None:
    """Textual looks for the cursor before it has moved it from a line that is gone: a random key found it."""
    async with driven(ChatApp(FakeEndpoint()), size=(20, 12)) as it:
        for text in ("word", "one\n" * 9, "x"):
            it.app.post_message(events.Paste(text))
        for key in ("enter", "up", *["ctrl+z", "ctrl+y"] * 3, "ctrl+z"):
            await it.pilot.press(key)
            it.app.post_message(events.Paste("a\nb\n" * 4))
            await it.pilot.press("ctrl+z")
            await it.pilot.pause()
        assert it.app.is_running


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_many_scripts_arrive_in_order(seed: int) -> None:
    async def story() -> None:
        async with driven(ChatApp(FakeEndpoint())) as it:
            rng = random.Random(seed)
            for _ in range(25):
                await check(it, without_long_pastes(script(rng, rng.randrange(5, 80))))

    asyncio.run(story())
