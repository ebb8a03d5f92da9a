"""Show the progress of a stage, and notice when it is asked to stop."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Protocol

Log = Callable[[str], None]
SMOOTH = 0.05  # weight of the newest step in the displayed values


def minutes(until: float) -> str:
    """Return in words how far off a moment of the monotonic clock is."""
    left = until - time.monotonic()
    return f"{max(0.0, left) / 60:.1f} min left" if left < 1e9 else "no end set"


class StopRequest(Protocol):
    """Say whether a stop is requested."""

    @property
    def wanted(self) -> bool: ...


class Stop:
    """Turn SIGTERM and SIGINT into a request that the loop reads."""

    def __init__(self, message: str = "") -> None:
        self.wanted = False
        self.message = message
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.note)

    def note(self, number: int, frame: object) -> None:
        """Note a signal; from the second on, the operating system ends the program at once."""
        self.wanted = True
        signal.signal(number, signal.SIG_DFL)
        if self.message:  # bypassing Python's buffer, in which a line may be half written now
            os.write(sys.stderr.fileno(), f"{self.message}\n".encode())


class Until:
    """Turn a moment of the monotonic clock, or another request, into a request that the loop reads."""

    def __init__(self, moment: float, stop: StopRequest) -> None:
        self.moment, self.stop = moment, stop

    @property
    def wanted(self) -> bool:
        return self.stop.wanted or time.monotonic() >= self.moment


class Meter:
    """Average loss and speed, and print them every so many steps; the time left follows recent speed."""

    def __init__(self, name: str, goal: int, log: Log, every: int) -> None:
        self.name, self.goal, self.log, self.every = name, goal, log, every
        self.loss = self.rate = 0.0
        self.steps = 0
        self.clock = time.monotonic()

    def rest(self) -> None:
        """Leave out the time since the last step (saving, evaluating)."""
        self.clock = time.monotonic()

    def add(self, size: int, loss: float, done: int) -> None:
        """Count a step of so many tokens."""
        now = time.monotonic()
        self.steps += 1
        weight = max(SMOOTH, 1 / self.steps)
        self.rate += (size / (now - self.clock) - self.rate) * weight
        self.loss += (loss - self.loss) * weight
        self.clock = now
        if self.steps % self.every == 0:
            left = max(0.0, (self.goal - done) / self.rate / 60)
            shown = f"loss {self.loss:.3f}  {self.rate:5.0f}/s  {left:5.1f} min left"
            self.log(f"{self.name}: {done:,} of {self.goal:,} tokens  {shown}")
