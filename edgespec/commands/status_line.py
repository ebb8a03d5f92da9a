"""One line that shows progress: rewritten in place on a terminal; elsewhere a new one now and then."""

import shutil
import sys
import time
from typing import ClassVar, Self, TextIO

CLEAR = "\r\033[K"
QUIET_S = 3.0  # longest time without a sign of life where a line cannot be rewritten


class StatusLine:
    """Shows a line on `out`, by default stderr, and clears it at the end of a `with`."""

    spoke: ClassVar[float] = (
        time.monotonic()
    )  # when the last line of its own was written, or the program began

    def __init__(self, out: TextIO | None = None, *, lines: bool = False) -> None:
        """lines: elsewhere than on a terminal, a line now and then; else nothing."""
        self._out, self._lines = out or sys.stderr, lines
        self.rewrites = self._out.isatty()  # False: lines are written one below the other

    @classmethod
    def begin(cls) -> None:
        """Counts the time without a sign of life from now on."""
        cls.spoke = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replaces the text, cut at the width of the terminal."""
        if self.rewrites:
            self._out.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self._out.flush()
        elif text and self._lines and time.monotonic() - StatusLine.spoke >= QUIET_S:
            StatusLine.spoke = time.monotonic()
            print(text, file=self._out, flush=True)

    def clear(self) -> None:
        """Clears the line."""
        self.show("")
