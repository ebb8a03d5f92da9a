"""One line that shows progress: rewritten in place on a terminal; elsewhere a new one now and then."""

import math
import shutil
import sys
import time
from typing import ClassVar, Self, TextIO

CLEAR = "\r\033[K"
QUIET_S = 3.0  # usual time without a sign of life where a line cannot be rewritten


class StatusLine:
    """Shows a line on `out`, by default stderr, and clears it at the end of a `with`."""

    spoke: ClassVar[float] = (
        time.monotonic()
    )  # when the last line of its own was written, or the program began

    def __init__(self, out: TextIO | None = None, *, every_s: float = math.inf) -> None:
        """every_s: how often a line is written elsewhere than on a terminal."""
        self._out, self._every_s = out or sys.stderr, every_s
        self._rewrites = self._out.isatty()

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
        if self._rewrites:
            self._out.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self._out.flush()
        elif text and time.monotonic() - StatusLine.spoke >= self._every_s:
            StatusLine.spoke = time.monotonic()
            print(text, file=self._out, flush=True)

    def clear(self) -> None:
        """Clears the line."""
        self.show("")
