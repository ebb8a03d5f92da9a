"""What is typed before the app has the keyboard: in its order, and Enter is Enter."""

from __future__ import annotations

import os
import pty
import sys
import termios

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import driven

from edgespec_tui.app import ChatApp
from edgespec_tui.settings.settings import Settings
from edgespec_tui.widgets.typed_ahead import TypedAhead, light_by_environment

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)


def test_enter_stays_enter_and_the_terminal_is_as_it_was() -> None:
    """A terminal that nobody had prepared turned Enter into a line end, and the app began a new line."""
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        os.write(master, b"early\rhalf")  # before the program runs
        ahead = TypedAhead(slave)
        os.write(master, "\nlé\r\x11".encode())  # Ctrl+Q is the terminal's own, unless it is told otherwise
        assert ahead.taken() == "early\rhalf\nlé\r\x11"
        assert termios.tcgetattr(slave) == before
        assert ahead.taken() == ""
    finally:
        os.close(master)
        os.close(slave)


def test_what_is_no_terminal_is_left_alone() -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"a question\n")
        assert TypedAhead(read).taken() == "" and os.read(read, 99) == b"a question\n"
    finally:
        os.close(read)
        os.close(write)


@on_a_loop
async def test_what_was_typed_ahead_comes_before_what_is_typed_then() -> None:
    class Typed(TypedAhead):
        def taken(self) -> str:
            return "ne\x1b[Ho\x1b[F\n1\rtwo\r"

    async with driven(ChatApp(FakeEndpoint(), typed=Typed(None))) as it:
        await it.until(lambda: it.texts()[::2] == ["one\n1", "two"])


@pytest.mark.parametrize(
    ("expected", "light"), [("ffff/ffff/f0f0", True), ("1e1e/1e1e/1e1e", False), ("ff/fa/e0", True)]
)
def test_the_terminal_says_whether_it_is_light(
    expected: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app was dark whatever the terminal was."""
    monkeypatch.setattr(os, "write", lambda fd, text: len(text) if fd == 1 else written(fd, text))
    for name, value in (("TERM", "xterm"), ("COLORFGBG", "")):
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    try:
        ahead = TypedAhead(slave)
        ahead.ask_background()
        written(master, f"he\x1b]11;rgb:{expected}\x1b\\llo".encode())
        assert ahead.taken() == "hello" and ahead.is_light is light
    finally:
        os.close(master)
        os.close(slave)


written = os.write


@pytest.mark.parametrize(
    ("expected", "light"), [("15;0", False), ("0;15", True), ("0;default;7", True), ("x", None), ("", None)]
)
def test_some_terminals_say_it_in_the_environment(expected: str, light: bool | None) -> None:
    assert light_by_environment({"COLORFGBG": expected}) is light


@pytest.mark.slow
@on_a_loop
async def test_the_app_is_as_light_as_its_terminal_where_no_theme_was_chosen() -> None:
    for is_light, settings, theme in (
        (True, Settings(), "edgespec-light"),
        (None, Settings(), "edgespec-dark"),
        (True, Settings(theme="nord"), "nord"),
    ):
        typed = TypedAhead(None)
        typed.is_light = is_light
        async with driven(ChatApp(FakeEndpoint(), typed=typed, settings=settings)) as it:
            assert it.app.theme == theme
