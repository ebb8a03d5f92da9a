"""Children within limits that are kept for further questions, and replaced when one of them is gone."""

import queue
from collections.abc import Callable
from contextlib import suppress

from edgespec.errors import GivenUpError
from edgespec.system.closing import Closing
from edgespec.system.limited_child import GIVEN_UP, LOOK_S, REFUSED, TEXT, LimitedChild, Limits


class LimitedChildren(Closing):
    """At most so many `LimitedChild`ren of one module, each started when it is needed. Thread-safe."""

    def __init__(self, module: str, *, most: int = 1) -> None:
        self._module, self._kills = module, 0
        self._idle: queue.LifoQueue[LimitedChild | None] = queue.LifoQueue()
        for _ in range(most):
            self._idle.put(None)  # one that may be started
        self.started: set[LimitedChild] = set()

    def kill(self) -> None:
        """Ends what the children do: whoever waits for an answer now has given up."""
        self._kills += 1
        for child in tuple(self.started):
            child.kill()

    def close(self) -> None:
        """Ends the children; a later question starts others."""
        for child in tuple(self.started):
            self._end(child)

    def warm(self) -> None:
        """Starts one, without waiting for it; does nothing where all are busy."""
        with suppress(queue.Empty):
            self._idle.put(self._running(self._idle.get_nowait()))

    def answer(self, asked: bytes, limits: Limits) -> tuple[bytes, str]:
        """Returns what `LimitedChild.answer` does, of the first that is idle.

        One that does not answer is replaced. Raises GivenUpError if whoever asks has given up.
        """
        left, kills = GIVEN_UP.get(), self._kills

        def given_up() -> bool:
            return kills != self._kills or (left is not None and left.is_set())

        child = self._turn(given_up, LOOK_S if left else None)
        try:
            child = self._running(child)
            kind, text = child.answer(asked, limits)
            if kind not in (TEXT, REFUSED):
                self._end(child)
        except BaseException:  # Ctrl+C: its answer would be taken for that of the next question
            if child:
                self._end(child)
            raise
        finally:
            self._idle.put(child if child in self.started else None)
        if kind not in (TEXT, REFUSED) and given_up():
            raise GivenUpError
        return kind, text

    def _turn(self, given_up: Callable[[], bool], look_s: float | None) -> LimitedChild | None:
        """Waits for a child that is idle, or may be started. Raises GivenUpError."""
        while not given_up():
            with suppress(queue.Empty):
                child = self._idle.get(timeout=look_s)
                if not given_up():
                    return child
                self._idle.put(child)
        raise GivenUpError

    def _running(self, child: LimitedChild | None) -> LimitedChild:
        """Returns a child that runs: another one in place of one that has ended."""
        if child and child.runs():
            return child
        if child:
            self._end(child)
        made = LimitedChild(self._module)
        self.started.add(made)
        return made

    def _end(self, child: LimitedChild) -> None:
        child.end()
        self.started.discard(child)
