"""The worker's way to its owner: messages, from any thread."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import BinaryIO

from edgespec.engine.messages import FromWorker, packed


@dataclass(slots=True)
class Outlet:
    """The way to the owner. One that does not listen any more ends the worker."""

    pipe: BinaryIO
    lock: threading.Lock = field(default_factory=threading.Lock)
    held: list[bytes] = field(default_factory=list)

    def send(self, message: FromWorker) -> None:
        """Sends a message, and what was held before it; from any thread."""
        self._write(packed(message))

    def hold(self, message: FromWorker) -> None:
        """Keeps a message until the next one is sent, or `release`."""
        data = packed(message)
        with self.lock:
            self.held.append(data)

    def release(self) -> None:
        """Sends what is held."""
        if self.held:
            self._write(b"")

    def _write(self, data: bytes) -> None:
        with self.lock:
            self.held.append(data)
            try:
                self.pipe.write(b"".join(self.held))
                self.pipe.flush()
            except OSError:
                os._exit(1)
            self.held.clear()
