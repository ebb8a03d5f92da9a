"""One line that shows progress: rewritten in place on a terminal; elsewhere a new one now and then."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CLEAR = "\r\033[K"
QUIET_S = 3.0  # usual time without a sign of life where a line cannot be rewritten
Show = Callable[[str], None]


@contextmanager
def status_line(*, every_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Gives what shows a text in place of the one before, on stderr, cut at the width of the terminal.

    every_s: how often a line is written elsewhere than on a terminal.
    """
    last = clock()

    def show(text: str) -> None:
        nonlocal last
        if sys.stderr.isatty():
            sys.stderr.write(CLEAR + text[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        elif text and clock() - last >= every_s:
            last = clock()
            print(text, file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")
