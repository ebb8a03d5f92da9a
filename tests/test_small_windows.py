"""In a small window: keys are whole or absent, help is indented, and what is written is seen."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from fake_endpoint import FAKE, FakeEndpoint
from test_tui_chat import on_a_loop
from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from tui_driver import driven

from edgespec_tui.app import ChatApp
from edgespec_tui.widgets.key_line import KeyLine


@pytest.mark.slow
@on_a_loop
async def test_a_small_window_shows_whole_keys_and_the_input() -> None:
    """The footer cut a key in two; at 20x5 the input had no line; help began wrapped lines at the margin."""
    grown = replace(FAKE, model="target-60m-Q8_0-0123456789ab", draft="draft-20m-Q8_0-ba9876543210")
    async with driven(ChatApp(FakeEndpoint(info=grown)), size=(40, 12)) as it:
        await it.until(lambda: re.search(r"f4 Speculation +▏\^p palette$", it.text()), "whole keys")
        for _ in range(4):
            await it.pilot.press("pagedown")
        await it.until(lambda: "F1" in it.text(), "all that the welcome says can be reached")
        await it.pilot.press("f1", "pagedown", "pagedown")
        await it.until(
            lambda: "      Answer the last question  " in it.text() and "\n│      again" in it.text()
        )
        await it.pilot.press("escape", "slash")
        await it.until(
            lambda: re.search(r"\d more", it.text()) and "│ /" in it.text(), "the list leaves the input"
        )
        await it.pilot.press("backspace", *"words")
        await it.pilot.resize_terminal(20, 5)
        await it.until(lambda: "words" in it.text())
        await it.ask("how?")
        await it.pilot.press(*"more")
        await it.until(lambda: "more" in it.text())
        await it.pilot.resize_terminal(140, 30)
        await it.until(
            lambda: "target-60m-Q8_0 + draft-20m-Q8_0\n" in it.text(), "names without digits of files"
        )
        await it.pilot.press("ctrl+u", "ctrl+n")
        it.chat.prompt.clear_all()
        await it.pilot.press("ctrl+z")
        await it.notified("Nothing to undo.")


@on_a_loop
async def test_keys_are_laid_out_anew_for_a_new_width_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layout of the keys may resize their line, and was followed by another, for ever."""
    made: list[int] = []
    compose = KeyLine.compose

    def counted(self: KeyLine) -> ComposeResult:
        made.append(self.app.size.width)
        return compose(self)

    monkeypatch.setattr(KeyLine, "compose", counted)
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.pilot.resize_terminal(40, 12)
        await it.pilot.pause(0.2)
        before = len(made)
        for height in (11, 12, 5, 12):
            await it.pilot.resize_terminal(40, height)
            it.chat.query_one(KeyLine).post_message(events.Resize(Size(40, 1), Size(40, 1)))
            await it.pilot.pause(0.05)
        assert len(made) == before


@on_a_loop
async def test_keys_that_were_to_be_shown_on_a_screen_that_is_gone_end_nothing() -> None:
    """A window that changed its size as a screen closed ended the app: NoScreen."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        keys = it.chat.query_one(KeyLine)
        made = list(keys.children)
        await keys.recompose()
        assert made and list(keys.children) == made, "the same keys are not made again"
        await keys.remove()
        await keys.recompose()
