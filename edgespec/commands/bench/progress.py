"""The progress of a run, on stderr: one line that changes on a terminal, else a line now and then."""

import sys
import time

from edgespec.commands.bench.lines import Line, Unit
from edgespec.commands.status_line import StatusLine

SHOWN_EVERY_S = 10.0  # if there is no terminal


class RunProgress:
    """Shows units and lines as they begin, and troubles in lines of their own."""

    def __init__(self, total: int, budget: float) -> None:
        self.total, self.budget = total, budget
        self.started = self.shown = time.monotonic()
        self.line = StatusLine()

    def show(self, unit: Unit, line: Line) -> None:
        now = time.monotonic()
        text = f"{unit.number + 1}/{self.total}  {now - self.started:.0f} s of {self.budget:.0f} at most"
        if self.line.rewrites:
            self.line.show(f"{text}  {unit.mode}  {unit.prompt.kind[:16]}  {line.name}")
        elif now - self.shown >= SHOWN_EVERY_S:
            self.shown = now
            print(text, file=sys.stderr, flush=True)

    def trouble(self, sentence: str) -> None:
        self.clear()
        print(f"edgespec: {sentence}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        self.line.clear()
