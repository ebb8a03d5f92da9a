"""One generation, made ready to be run beside others: its loop, and what a scheduler has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgespec.core.loop import Loop
from edgespec.core.pace.controller import Record
from edgespec.core.text import TextRelease


@dataclass(frozen=True, slots=True)
class Stream:
    """A generation of which nothing was evaluated yet.

    text: held-back text comes out of it after a cancellation. draft_length: None leaves it to the pace.
    record: what is known of such requests, by how many streams there are at once. grammar: the text keeps
    to one, which may settle tokens that the target has not seen. fresh: see `Request`.
    """

    loop: Loop
    text: TextRelease
    max_tokens: int
    draft_length: int | None
    record: Callable[[int], Record]
    grammar: bool = False
    fresh: bool = False
