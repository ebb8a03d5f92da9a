"""What is typed before the app has the keyboard: in its order, and Enter is Enter."""

from __future__ import annotations

import os
import pty
import sys
import termios

import pytest
from test_tui_chat import on_a_loop
from textual import events
from tui_driver import driven

from edgespec_tui.app import ChatApp
from edgespec_tui.fake_endpoint import FakeEndpoint
from edgespec_tui.typed_ahead import TypedAhead, keys_of

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)


def test_enter_stays_enter_and_the_terminal_is_as_it_was() -> None:
    """A terminal that nobody had prepared turned Enter into a line end, and the app began a new line."""
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        os.write(master, b"early\rhalf")  # before the program runs
        ahead = TypedAhead(slave)
        os.write(master, "\nlé\r".encode())
        assert ahead.taken() == "early\rhalf\nlé\r"
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


def test_keys_of_what_was_typed() -> None:
    assert [key.key for key in keys_of("a \r\n\x7f\x1b\x00é")] == [
        "a",
        "space",
        "enter",
        "ctrl+j",
        "backspace",
        "é",
    ]


@on_a_loop
async def test_what_was_typed_ahead_comes_before_what_is_typed_then() -> None:
    app = ChatApp(FakeEndpoint(), typed=lambda: "one\n1\rtw")
    for key in "o":
        app.post_message(events.Key(key, key))
    app.post_message(events.Key("enter", "\r"))
    async with driven(app) as it:
        await it.until(lambda: it.texts()[::2] == ["one\n1", "two"])
