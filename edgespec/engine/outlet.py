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

    def send(self, message: FromWorker) -> None:
        """Sends a message; from any thread."""
        data = packed(message)
        with self.lock:
            try:
                self.pipe.write(data)
                self.pipe.flush()
            except OSError:
                os._exit(1)
