"""The program that started this server for itself alone, at the other end of two pipes.

Its key comes in at stdin, so that it is in no list of processes and in no environment; what becomes of the
engine goes out at stdout, one JSON object a line. stdin is the life line: when the owner is gone, even by
kill -9, it closes and the server ends. Whoever else is attached is told so.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

from edgespec.errors import SettingError


class Owner:
    """The owner of a private engine."""

    def __init__(self) -> None:
        """Takes stdin and stdout for itself and reads the key; raises SettingError where none comes."""
        self._words = os.fdopen(os.dup(0), "rb")
        self._ears = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # nothing else that is printed gets between the objects
        self.key = self._words.readline(1000).decode("ascii", "replace").strip()
        if not self.key:
            raise SettingError("--owned is for programs that hand over a key: leave it out")

    def tell(self, event: str, **about: Any) -> None:
        """Tells the owner something; one that does not listen any more is passed over."""
        try:
            self._ears.write(json.dumps({"event": event, **about}).encode() + b"\n")
            self._ears.flush()
        except OSError:
            pass

    async def gone(self) -> None:
        """Waits until the owner has gone."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            try:
                while self._words.read(4096):
                    pass
            except OSError:
                pass
            try:
                loop.call_soon_threadsafe(end.set)
            except RuntimeError:  # the loop has ended by itself
                pass

        threading.Thread(target=listen, daemon=True).start()
        await end.wait()
