"""A program on its own terminal, for tests that type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "edgespec", *sys.argv[1:]])
"""


class Terminal:
    """A program on a terminal of its own, typed to and read from."""

    def __init__(self, *arguments: str | Path) -> None:
        import pty

        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.master)

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self.master, text.encode())

    def wait_for(self, text: str, *, seconds: float = 15) -> None:
        """Reads until `text` is shown."""
        import select

        deadline = time.monotonic() + seconds
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self.master], [], [], left)[0], (
                f"no {text!r} in {self.shown!r}"
            )
            try:
                self.shown += os.read(self.master, 4096).decode(errors="replace")
            except OSError:  # Linux says so where the other side is closed
                raise AssertionError(f"ended without {text!r}: {self.shown!r}") from None
