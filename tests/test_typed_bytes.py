"""Bytes of a terminal become keys and pastes: any bytes, in any pieces; nothing of a paste becomes a key."""

from __future__ import annotations

import os
import random
import signal
import sys
from dataclasses import dataclass, field

import pytest
import textual
from textual import events
from textual.message import Message

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from terminal import Terminal

from edgespec_tui.terminal.typed_bytes import STALLED_S, TypedBytes, without_controls

COLOURED = b"\x1b[200~\x1b[31mred\x1b[0m\n\x07a\x11b\x9bc\r\nthe end of it\x1b[201~"


def test_the_guards_were_made_for_this_textual() -> None:
    """They stand on its inside: its parser, its driver's thread, its queues, `_pruning`, `_forward_event`.

    Where this fails, read `edgespec_tui/terminal` beside the new Textual, run `test_monkey.py` with its slow
    tests, drop the guards that are no longer needed, and then change the number.
    """
    assert textual.__version__.split(".")[:2] == ["8", "2"]


@dataclass
class Typed:
    """Bytes given in pieces, and what they became."""

    now: float = 0.0
    found: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bytes = TypedBytes(lambda: self.now)

    def give(self, *pieces: bytes, after: float = 0.0) -> list[str]:
        """Gives pieces, and a silence; returns all keys and pastes so far."""
        for piece in pieces:
            self.now += after
            self.found += self.bytes.feed(piece)
        self.found += self.bytes.quiet()
        return [name_of(message) for message in self.found]


def name_of(message: Message) -> str:
    if isinstance(message, events.Paste):
        return f"<{message.text}>"
    assert isinstance(message, events.Key)
    return message.character if message.character and message.is_printable else message.key


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (b"a\xffb", ["a", "\ufffd", "b"]),  # ended the app
        (b"\xe9a\x9bb", ["\ufffd", "a", "\ufffd", "b"]),  # a Latin-1 terminal
        ("é€".encode(), ["é", "€"]),
        (b"\x1b[1:2;3ux", ["x"]),  # ended the thread that reads
        (b"\x1b[99999999999uy", ["y"]),
        (b"\x1b[55296;1;55296uz", ["z"]),  # half a character
        (b"\x1b[48;0;0;0;0tw", ["w"]),  # a window of no size
        (b"\x1b[A\x1b[20~", ["up", "f9"]),
    ],
)
def test_every_byte_becomes_a_key_or_nothing(given: bytes, keys: list[str]) -> None:
    assert Typed().give(given) == keys


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_nothing_of_a_paste_acts_as_a_key(size: int) -> None:
    """An ESC in it made keys of what followed: a line end sent it, \\x07 began a race, \\x11 quit."""
    given = b"x" + COLOURED + b"y"
    pieces = [given[i : i + size] for i in range(0, len(given), size)]
    assert Typed().give(*pieces) == ["x", "<red\nab\ufffdc\nthe end of it>", "y"]


def test_an_end_within_a_paste_does_not_end_it() -> None:
    """tmux passes on what a buffer holds, this mark too: the rest was typed, and its line ends sent it."""
    assert Typed().give(b"\x1b[200~rm\x1b[201~\r -r\x1b[200~x\x1b[201~", b"\r", b"\x1b[201~") == [
        "<rm\n -rx\n>"
    ]
    twice = Typed()
    twice.give(b"\x1b[200~one\x1b[201~")
    assert twice.give(b"\r\x1b[200~two\x1b[201~") == ["<one>", "enter", "<two>"], (
        "with a silence between them"
    )


def test_a_paste_whose_end_never_comes_is_shown_and_left_with_one_key() -> None:
    typed = Typed()
    typed.give(b"\x1b[200~half")
    typed.now += 2 * STALLED_S
    assert typed.give() == ["<half>"]
    assert typed.give(b"more\r", b"\x03", b"k", after=2 * STALLED_S) == ["<half>", "<more\n>", "ctrl+c", "k"]


def test_random_bytes_never_fail() -> None:
    rng = random.Random(5)
    alphabet = [
        b"\x1b",
        b"[",
        b"<",
        b"?",
        b"200~",
        b"201~",
        b"48;",
        b"M",
        b"u",
        b";",
        b":",
        b"9",
        b"\xff",
        b"a",
    ]
    for _ in range(300):
        typed = Typed()
        for _ in range(30):
            typed.give(rng.choice(alphabet) if rng.random() < 0.8 else rng.randbytes(4), after=rng.random())
        typed.give(b"\x1b[201~", after=10)  # the end of a paste, if one had begun
        assert typed.give(b"z", after=10)[-1] == "z", "what is typed then arrives"


@pytest.mark.parametrize(
    ("pasted", "shown"),
    [
        ("a\x1b]0;title\x07b\x1b(Bc\x1b[1;31md\x1b[K", "abcd"),
        ("one\r\ntwo\rthree\tfour\n", "one\ntwo\nthree\tfour\n"),
        ("\x1b]never ended\nnext", "]never ended\nnext"),
        ("a\x1bb\x00\x85\x9b", "ab"),
    ],
)
def test_a_paste_keeps_its_text_and_loses_its_controls(pasted: str, shown: str) -> None:
    assert without_controls(pasted) == shown


def test_bytes_that_are_no_text_do_not_end_the_app() -> None:
    """One byte 0xff ended it: a screen of traceback, exit code 0, and the shell ran the rest of a paste."""
    with Terminal("chat", "--endpoint", "http://127.0.0.1:9", "--no-save") as terminal:  # nobody is there
        terminal.wait_for("F9")
        os.write(terminal.master, b"caf\xe9 \xff" + COLOURED)
        terminal.wait_for("the end of it")
        assert terminal.process.poll() is None
        os.write(terminal.master, b"\x1b[200~" + b"of a long paste\n" * 50)
        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ends() == 128 + signal.SIGTERM
        assert terminal.is_in_order() and "Traceback" not in terminal.written
