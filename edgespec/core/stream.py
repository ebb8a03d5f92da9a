"""One generation, ready to run with others: its loop, and what the engine has to know of it."""

from dataclasses import dataclass

from edgespec.core.loop import Loop
from edgespec.core.pace.pace import Pace
from edgespec.core.text import TextRelease


@dataclass(frozen=True, slots=True)
class Stream:
    """A generation of which nothing has been evaluated yet."""

    loop: Loop
    text: TextRelease  # gives held-back text after a cancellation
    pace: Pace
