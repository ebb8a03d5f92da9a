"""Ctrl+C while text is generated: the first asks the loop to stop after its round, the second ends it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupt:
    """In a `with`, Ctrl+C sets `asked` instead of raising. Outside, Ctrl+C ends the process at once,
    also in the middle of a call into llama.cpp."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self.asked = False
        signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __call__(self) -> bool:
        return self.asked
