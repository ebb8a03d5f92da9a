"""`edgespec serve` as a child of ours alone: its messages while it loads, and why it ended.

Its key goes in through a pipe, never in argv; it ends when the pipe closes, so even if we are killed.
Its state comes back as one JSON object a line. `server/announcing.py` is the other end.
"""

import json
import os
import queue
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, EngineDiedError
from edgespec.system.isolate import PRIVATE, cause_of_death, kills_for_memory

LOOK_AGAIN_S = 0.1
GOODBYE_S = 3.0  # an engine ends after its step; one that takes longer ends without being waited for
LINES_KEPT = 40


class PrivateEngine:
    """`edgespec serve`, started for us: its messages, and its end."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """arguments: flags of `edgespec serve`."""
        self.key = secrets.token_urlsafe(32)
        self._kills = kills_for_memory()
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._failed: str | None = None
        command = [sys.executable, "-P", "-m", "edgespec", "serve", "--owned", "--port", "0"]
        own = {name: value for name, value in os.environ.items() if name not in PRIVATE}
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(
            subprocess, "CREATE_NEW_PROCESS_GROUP", 0
        )
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=own,
            start_new_session=True,
            creationflags=flags,  # Ctrl+C in our terminal is not for it
        )
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._keep_lines, self._keep_events)
        ]
        for thread in self._threads:
            thread.start()
        assert self._process.stdin
        with suppress(OSError):  # it ended at once: its end gives the reason
            self._process.stdin.write(self.key.encode() + b"\n")
            self._process.stdin.flush()

    def _keep_lines(self) -> None:
        assert self._process.stderr
        with self._process.stderr as lines:
            for line in lines:
                self._lines.append(line[:1000].decode("utf-8", "replace").rstrip())

    def _keep_events(self) -> None:
        assert self._process.stdout
        with self._process.stdout as lines:
            for line in lines:
                with suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "failed":
                        self._failed = str(event["message"])
                    self._events.put(event)
        self._events.put({"event": "ended"})

    def next_event(self) -> dict[str, Any] | None:
        """Returns its next message; None if none comes for a moment."""
        try:
            return self._events.get(timeout=LOOK_AGAIN_S)
        except queue.Empty:
            return None

    def fault(self) -> str | None:
        """Returns why it ended; None while it runs."""
        return None if self._process.poll() is None else str(self.death())

    def death(self) -> EdgeSpecError:
        """Returns the error for its end, once its output has closed: its own reason, or the signal's name."""
        code = self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        if self._failed:
            return EndpointError(self._failed, code="load_failed")
        reasons = [line.removeprefix("edgespec: ") for line in self._lines if line.startswith("edgespec: ")]
        if cause := cause_of_death(code, "\n".join(self._lines), self._kills):
            return EngineDiedError(cause)
        if code and reasons:
            return EndpointError(reasons[-1], code="load_failed")
        return EndpointLostError(f"the engine ended (exit code {code})")

    def end(self) -> None:
        """Closes its pipe; it ends after its step."""
        assert self._process.stdin
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:  # it ends by itself; somebody has to collect its exit code
            threading.Thread(target=self._process.wait, daemon=True).start()
