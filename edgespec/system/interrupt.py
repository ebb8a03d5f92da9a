"""Ctrl+C while text is generated: the first asks the loop to stop after its round, the second ends it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Has Ctrl+C make what is given return True, instead of raising. Behind the `with`, Ctrl+C ends the
    process at once, also in the middle of a call into llama.cpp."""
    came = list[int]()

    def ask(number: int, _: object) -> None:
        came.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
