"""The program that started this server for itself alone, at the other end of two pipes.

Its key comes in at stdin, so that it is in no process list and no environment; the engine's state
goes out at stdout, one JSON object a line. When the parent ends, even by kill -9, stdin closes and
the server ends. Other attached programs are told so.
"""

import asyncio
import json
import os
import threading
from contextlib import suppress
from typing import Any

from edgespec.errors import SettingError


class ParentProcess:
    """The parent of a private engine."""

    def __init__(self) -> None:
        """Takes stdin and stdout and reads the key; raises SettingError if none comes."""
        self._words = os.fdopen(os.dup(0), "rb")
        self._ears = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # nothing else that is printed gets between the objects
        self.key = self._words.readline(1000).decode("ascii", "replace").strip()
        if not self.key:
            raise SettingError("--owned is for programs that hand over a key: leave it out")

    def tell(self, event: str, **about: Any) -> None:
        """Sends the parent a message; ignores a parent that no longer listens."""
        with suppress(OSError):
            self._ears.write(json.dumps({"event": event, **about}).encode() + b"\n")
            self._ears.flush()

    async def gone(self) -> None:
        """Waits until the parent has gone."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            with suppress(OSError):
                while self._words.read(4096):
                    pass
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(end.set)

        threading.Thread(target=listen, daemon=True).start()
        await end.wait()
