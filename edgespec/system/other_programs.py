"""How many cores other programs keep busy: what is timed while they work says little."""

import os
import time
from contextlib import suppress

import psutil

BUSY_CORES = 0.2  # kept busy by others, this much is worth a warning


class Others:
    """How many cores other programs (and, on a shared host, other machines) keep busy."""

    def __init__(self, *, children: bool = True) -> None:
        """children: whether ours count as ours: looking for them takes milliseconds."""
        self._own = _own_seconds if children else time.process_time
        self._then, self._busy, self._ours = time.monotonic(), _busy_seconds(), self._own()

    def cores(self) -> float:
        """Returns the mean since the last call. Our children, a peer among them, do not count."""
        now, busy, ours = time.monotonic(), _busy_seconds(), self._own()
        passed, theirs = now - self._then, (busy - self._busy) - (ours - self._ours)
        self._then, self._busy, self._ours = now, busy, ours
        return max(0.0, theirs) / passed if passed > 0 else 0.0


def _busy_seconds() -> float:
    """Returns the seconds that all cores together have worked, stolen time included."""
    spent = psutil.cpu_times()
    return float(
        sum(getattr(spent, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    )


def _own_seconds() -> float:
    """Returns the seconds that this process and all below it, living and dead, have worked."""
    spent = os.times()
    total = spent.user + spent.system + spent.children_user + spent.children_system
    with suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has ended since
                its = process.cpu_times()
                total += its.user + its.system + its.children_user + its.children_system
    return total
