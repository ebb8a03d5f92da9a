"""A window that was closed: the app ends as it always does, or without a terminal where it cannot.

Textual writes to the terminal from a thread, through a short queue. Where the terminal is gone, that
thread has died, and the app waits for room in the queue for ever: its window is closed, and it runs on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0  # in which the app may end by itself


def end_soon(keep: Callable[[], object], code: int) -> None:
    """Lets the process end with a code after a moment, if it has not ended by then.

    keep: writes what was said. Everything else ends with the process: an engine of ours by its life line.
    """

    def end() -> None:
        time.sleep(GRACE_S)
        keep()
        os._exit(code)

    threading.Thread(target=end, daemon=True, name="hang-up").start()
