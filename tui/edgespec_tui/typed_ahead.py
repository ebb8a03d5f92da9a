"""What is typed while the program starts: kept, and taken for the keys that were pressed.

A terminal that nobody has prepared shows what is typed and turns Enter into a line end, which to an app is
Ctrl+J: a question sent at once would stand there with a new line behind it. So the terminal is prepared as
the first thing of all, and what lies in it by then is read as it was meant.
"""

from __future__ import annotations

import os
import select
import sys
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual import events

if sys.platform != "win32":
    import termios

MOST = 65536  # bytes; more was not typed
KEYS = {"\r": "enter", "\n": "ctrl+j", "\t": "tab", "\x7f": "backspace", "\b": "backspace", " ": "space"}


class TypedAhead:
    """A terminal that keeps what is typed. Make it early; `taken` gives it back as it was found.

    keyboard: the terminal's file descriptor; anything else is left alone.
    """

    def __init__(self, keyboard: int = 0) -> None:
        self._keyboard, self._before = keyboard, None
        self._early = b""  # typed before this: Enter stands in it as a line end
        if sys.platform == "win32":
            return
        try:
            before = termios.tcgetattr(keyboard)
            prepared = termios.tcgetattr(keyboard)
            prepared[0] &= ~termios.ICRNL
            prepared[3] &= ~(termios.ECHO | termios.ICANON)  # Ctrl+C still interrupts
            prepared[6][termios.VMIN], prepared[6][termios.VTIME] = 1, 0
            termios.tcsetattr(keyboard, termios.TCSANOW, prepared)
            self._early = self._waiting().replace(b"\n", b"\r")
        except (termios.error, OSError):  # no terminal, or one that is gone
            return
        self._before = before

    def taken(self) -> str:
        """Puts the terminal back as it was, and returns what was typed until now. Again: returns nothing."""
        if sys.platform == "win32" or self._before is None:
            return ""
        before, self._before = self._before, None
        try:
            typed = self._early + self._waiting()
            termios.tcsetattr(self._keyboard, termios.TCSANOW, before)
        except (termios.error, OSError):
            return ""
        return typed.decode(errors="ignore")

    def _waiting(self) -> bytes:
        typed = b""
        while len(typed) < MOST and select.select([self._keyboard], [], [], 0)[0]:
            piece = os.read(self._keyboard, 4096)
            if not piece:
                break
            typed += piece
        return typed


def keys_of(typed: str) -> Iterator[events.Key]:
    """Yields the keys of a text; what stands for no letter and no key above is left out."""
    from textual import events  # late: this module is imported before anything that takes time

    for character in typed:
        if character in KEYS:
            yield events.Key(KEYS[character], None if character == "\t" else character)
        elif unicodedata.category(character)[0] != "C":
            yield events.Key(character, character)
