"""What can wait waits while somebody types: Python's cycle collector, and drawing that nobody asked for.

A full collection looks at every object there is: 200 ms in an app of this size, twice a second while an
answer streams, and keys wait for it. So older objects are frozen, which takes them out of the
automatic collections, and are looked at again only in moments without keys.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

QUIET_S = 1.5  # without a key
FULL_S = 30.0  # between two looks at everything
TYPING_S = 0.3
NEVER = 10_000
YOUNG = 2_000  # new objects before the youngest are looked at; 700 is Python's


@dataclass(slots=True)
class QuietMoments:
    """Knows when keys come, and collects when none do.

    Call `key` at each key, `look` every second or so. clock: seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _key: float = float("-inf")
    _done: float = float("-inf")

    def begin(self) -> None:
        """Takes over from Python's own timing."""
        gc.set_threshold(YOUNG, 10, NEVER)
        gc.freeze()  # what is garbage of it by now goes with the first look at everything
        self._done = self.clock()

    def key(self) -> None:
        """Notes a key."""
        self._key = self.clock()

    def since_key(self) -> float:
        """Returns seconds since the last key."""
        return self.clock() - self._key

    @property
    def is_typing(self) -> bool:
        """True for a moment after each key."""
        return self.since_key() < TYPING_S

    def look(self) -> bool:
        """Collects, if that disturbs nobody and was not done lately; returns whether it did."""
        now = self.clock()
        if now - self._key < QUIET_S or now - self._done < FULL_S:
            return False
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._done = self.clock()
        return True

    def end(self) -> None:
        """Gives the timing back to Python: what is frozen goes with the program, which ends now."""
        gc.set_threshold(700, 10, 10)
