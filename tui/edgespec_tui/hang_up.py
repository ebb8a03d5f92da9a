"""What ends the app from outside: a signal, or a window that was closed.

Textual writes to the terminal from a thread, through a short queue. If the terminal is gone, that thread
has died, and the app waits for room in the queue for ever: its window is closed, and it runs on. So then it
is ended without waiting.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0  # in which the app may end by itself


def watch(end: Callable[[int], None], keep: Callable[[], object], *, has_window: bool) -> None:
    """Lets signals end the app, on its own event loop. Call it there.

    end: takes the exit code. keep: saves the chat if the app cannot end by itself.
    """
    loop = asyncio.get_running_loop()

    def hung_up(number: int, _frame: object) -> None:
        _end_soon(keep, 128 + number)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, 128 + number)

    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, a test's thread
        for asked in (signal.SIGTERM, signal.SIGINT):  # Ctrl+C in the window is a key, not this
            loop.add_signal_handler(asked, end, 128 + asked)
        if sys.platform != "win32" and has_window:
            signal.signal(signal.SIGHUP, hung_up)  # works even if the loop is stuck


def _end_soon(keep: Callable[[], object], code: int) -> None:
    """Ends the process after a moment, if it has not ended by then; our engine ends when its pipe closes."""

    def end() -> None:
        time.sleep(GRACE_S)
        try:
            keep()
        finally:
            os._exit(code)

    threading.Thread(target=end, daemon=True, name="hang-up").start()
