"""One line on a terminal that shows progress, rewritten in place; nothing elsewhere."""

import shutil
import sys
from typing import Self, TextIO

CLEAR = "\r\033[K"


class StatusLine:
    """Shows a line on `out`, by default stderr, and clears it at the end of a `with`."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self.rewrites = self._out.isatty()  # False: nothing is shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replaces the text, cut at the width of the terminal."""
        if self.rewrites:
            self._out.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            self._out.flush()

    def clear(self) -> None:
        """Clears the line."""
        self.show("")
