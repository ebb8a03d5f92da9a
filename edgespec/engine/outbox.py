"""The worker's messages to its owner, from any thread."""

import os
import threading
from dataclasses import dataclass, field
from typing import BinaryIO

from edgespec.protocol.messages import FromWorker, packed


@dataclass(slots=True)
class Outbox:
    """The way to the owner. If the owner no longer listens, the worker ends."""

    pipe: BinaryIO
    lock: threading.Lock = field(default_factory=threading.Lock)
    held: list[FromWorker] = field(default_factory=list)

    def send(self, message: FromWorker) -> None:
        """Sends a message, and those held before it; from any thread."""
        with self.lock:
            self.held.append(message)
            self._write()

    def hold(self, message: FromWorker) -> None:
        """Keeps a message until the next one is sent, or `release`."""
        with self.lock:
            self.held.append(message)

    def release(self) -> None:
        """Sends what is held."""
        with self.lock:
            if self.held:
                self._write()

    def _write(self) -> None:
        """Writes what is held, all at once: the first brings into the cache what all need."""
        try:
            self.pipe.write(b"".join(map(packed, self.held)))
            self.pipe.flush()
        except OSError:
            os._exit(1)
        self.held.clear()
