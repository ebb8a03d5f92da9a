"""One line that shows progress: rewritten in place on a terminal; elsewhere a new one now and then."""

import math
import shutil
import sys
import time
from typing import Self

CLEAR = "\r\033[K"
QUIET_S = 3.0  # usual time without a sign of life where a line cannot be rewritten


class StatusLine:
    """Shows a line on stderr, and clears it at the end of a `with`."""

    def __init__(self, *, every_s: float = math.inf) -> None:
        """every_s: how often a line is written elsewhere than on a terminal."""
        self._every_s, self._last = every_s, time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replaces the text, cut at the width of the terminal."""
        if sys.stderr.isatty():
            sys.stderr.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        elif text and time.monotonic() - self._last >= self._every_s:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clears the line."""
        self.show("")
