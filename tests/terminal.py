"""A pseudo-terminal with a program on it: typed to, read from, looked at when the program has ended."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from in_terminal import IN_TERMINAL

ALTERNATE_ON, ALTERNATE_OFF = "\x1b[?1049h", "\x1b[?1049l"
LEFT_IN_ORDER = (ALTERNATE_OFF, "\x1b[?25h", "\x1b[?1000l", "\x1b[?2004l")  # screen, cursor, mouse, paste
SEQUENCE = re.compile(
    r"\x1b(?:\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_]|P[^\x1b]*\x1b\\)"
)


class Terminal:
    """A terminal of 100 columns and 30 lines. It answers nothing that a program asks of it, as old ones."""

    def __init__(self, *command: str | Path, environment: Mapping[str, str] = {}) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(100, 30)
        self.before = termios.tcgetattr(self.slave)
        # what ran in this process before may have left a size there, which would hold for the program
        inherited = {name: text for name, text in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *map(str, command)],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,  # and no `preexec_fn`: a fork of a process with threads may hang
            env={**inherited, "TERM": "xterm-256color", **environment},
        )
        self.written = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)

    def resize(self, columns: int, lines: int) -> None:
        """Gives the window another size."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        """Presses keys."""
        os.write(self.master, text.encode())

    def read(self, seconds: float) -> None:
        """Reads what is written in this time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([self.master], [], [], left)[0]:
            self.written += os.read(self.master, 65536).decode(errors="replace")

    @property
    def shown(self) -> str:
        """Everything written, without what moves and colours it, and without blanks."""
        return re.sub(r"\s+", "", SEQUENCE.sub("", self.written))

    def wait_for(self, text: str, *, seconds: float = 30, times: int = 1) -> None:
        """Reads until a text was written (blanks do not count), so many times in all."""
        wanted = re.sub(r"\s+", "", text)
        until = time.monotonic() + seconds
        while self.shown.count(wanted) < times:
            assert time.monotonic() < until, f"no {text!r} in {self.shown[-3000:]!r}"
            self.read(0.1)

    def ends(self, seconds: float = 15) -> int:
        """Waits for the end of the program, reading on; returns its exit code."""
        until = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < until, f"does not end: {self.shown[-2000:]!r}"
            self.read(0.05)
        self.read(0.1)
        return self.process.returncode

    def is_in_order(self) -> bool:
        """True where the terminal is as it was: settings, screen, cursor, mouse, paste."""
        same = termios.tcgetattr(self.slave) == self.before
        return same and all(
            self.written.rfind(mark) > self.written.find(ALTERNATE_ON) for mark in LEFT_IN_ORDER
        )
