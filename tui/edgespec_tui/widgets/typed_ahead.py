"""What is typed while the program starts: kept, and replayed as the keys that were pressed.

An unprepared terminal shows what is typed and turns Enter into a line end, which an app reads as
Ctrl+J: a question sent at once would sit there with a new line after it. So the terminal is prepared
first of all, and what was typed by then is read as it was meant.
"""

import contextlib
import os
import re
import select
import sys
from collections.abc import Mapping
from typing import Any

if sys.platform != "win32":
    import termios

HEX = rb"([0-9a-fA-F]{2,4})"
BACKGROUND = re.compile(rb"\x1b\]11;rgb:" + HEX + b"/" + HEX + b"/" + HEX + rb"(?:\x07|\x1b\\)")
MOST = 65536  # bytes; more was not typed


class TypedAhead:
    """A terminal that keeps what is typed. Make it early; `taken` restores it.

    keyboard: the terminal's file descriptor; anything else is left alone, None too.
    """

    def __init__(self, keyboard: int | None = 0) -> None:
        self.is_light: bool | None = None  # the terminal's background; None if it does not say
        self._before: list[Any] | None = None
        self._early = b""  # typed before this: Enter is a line end in it
        if sys.platform == "win32" or keyboard is None:
            return
        self._keyboard = keyboard
        try:
            before = termios.tcgetattr(keyboard)
            prepared = termios.tcgetattr(keyboard)
            prepared[0] &= ~(termios.ICRNL | termios.IXON)  # else Ctrl+Q would only resume output
            prepared[3] &= ~(termios.ECHO | termios.ICANON)  # Ctrl+C still interrupts
            prepared[6][termios.VMIN], prepared[6][termios.VTIME] = 1, 0
            termios.tcsetattr(keyboard, termios.TCSANOW, prepared)
            self._early = self._waiting().replace(b"\n", b"\r")
        except (termios.error, OSError):  # no terminal, or one that is gone
            return
        self._before = before

    def ask_background(self) -> None:
        """Asks the terminal for its background colour; the answer comes with what is typed.

        Over a slow connection an answer may come after `taken`, and get into the input: no question there.
        """
        self.is_light = light_by_environment(os.environ)
        far = any(name in os.environ for name in ("SSH_CONNECTION", "SSH_TTY"))
        if self._before is not None and not far and os.environ.get("TERM", "") not in ("", "dumb", "linux"):
            with contextlib.suppress(OSError):
                os.write(1, b"\x1b]11;?\x1b\\")

    def taken(self) -> str:
        """Restores the terminal, and returns what was typed until now. The second time, returns nothing."""
        if sys.platform == "win32" or self._before is None:
            return ""
        before, self._before = self._before, None
        try:
            typed = self._early + self._waiting()
            termios.tcsetattr(self._keyboard, termios.TCSANOW, before)
        except (termios.error, OSError):
            return ""
        if found := BACKGROUND.search(typed):
            red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
            self.is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
        return BACKGROUND.sub(b"", typed).decode(errors="ignore")

    def _waiting(self) -> bytes:
        typed = b""
        while len(typed) < MOST and select.select([self._keyboard], [], [], 0)[0]:
            piece = os.read(self._keyboard, 4096)
            if not piece:
                break
            typed += piece
        return typed


def light_by_environment(environment: Mapping[str, str]) -> bool | None:
    """Returns what COLORFGBG says of the background, which some terminals set ("15;0": white on black)."""
    number = environment.get("COLORFGBG", "").rpartition(";")[2]
    return int(number) in (7, *range(9, 16)) if number.isdecimal() and int(number) < 16 else None
