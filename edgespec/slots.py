"""Sequences of a pair's contexts, and the requests that hold them.

A slot keeps its tokens when a request ends. A new one goes where the longest beginning of its prompt is
held, on the target first and then on the draft, and otherwise to the slot that was used longest ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.decode import Rows, Scorer, Want
from edgespec.events import Ask, ModelName, Round
from edgespec.joint_pace import JointController
from edgespec.pace import FixedLength
from edgespec.stream import Stream


class Cache(Scorer, Protocol):
    """A context that can forget."""

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        ...


@dataclass(slots=True, eq=False)
class Running:
    """A request, waiting or in its slot: its loop stands at `ask`. Entering it checks prompt and settings."""

    id: str
    prompt: NDArray[np.int32]
    stream: Stream
    ask: Ask
    number: int  # of the requests so far
    pace: JointController | FixedLength = FixedLength(0)
    reading: bool = True  # the target lacks more than what one evaluation beside others may hold
    first: bool = True  # no round has ended since it came into its slot
    told: bool = False  # that it has started
    fed: int = 0  # the step in which it was last shown a piece of its prompt
    read_from: int | None = None  # the draft reads the settled tokens from here on

    def advance(self, answer: Rows | None) -> Round | None:
        """Answers the ask; returns the round that this ends, or None where another ask follows."""
        item = self.stream.loop.send(answer)
        if isinstance(item, Round):
            self.first = False
            return item
        self.ask = item
        return None

    @property
    def drawn(self) -> int:
        """Guesses that were drawn and wait for the target: they may not be withdrawn."""
        return 0 if self.ask.model == "draft" or self.ask.reach else len(self.ask.tail)

    def go_on(self) -> bool:
        """Goes from a round to the next ask; False where there is none."""
        try:
            item = self.stream.loop.send(None)
        except StopIteration:
            return False
        assert isinstance(item, Ask)
        self.ask = item
        return True


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of both contexts, with the request that it is lent to."""

    seq: int
    running: Running | None = None
    used: int = 0  # the step in which it was last given back
    holds: bool = False  # tokens of a request that has ended

    def want(self, n_guesses: int | None = None) -> Want:
        """Returns what the request asks of the target, with so many of its guesses."""
        ask = self.request.ask
        tail = ask.tail[:n_guesses]
        return Want(ask.tokens, tail, ask.rows - len(ask.tail) + len(tail), self.seq)

    @property
    def request(self) -> Running:
        assert self.running is not None
        return self.running


def shared(slot: Slot, context: Scorer, prompt: NDArray[np.int32]) -> int:
    """Returns how many tokens of a prompt need not be evaluated again in this slot."""
    return prompt.size - context.missing(Want(prompt, seq=slot.seq))


def best_slot(
    idle: Sequence[Slot], contexts: Mapping[ModelName, Scorer], prompt: NDArray[np.int32]
) -> tuple[Slot, int]:
    """Returns the slot for a prompt, and how many of its tokens the target holds there."""

    def worth(slot: Slot) -> tuple[int, int, int]:
        target = shared(slot, contexts["target"], prompt)
        draft = shared(slot, contexts["draft"], prompt) if target and "draft" in contexts else 0
        return target, draft, -slot.used

    best = max(idle, key=worth)
    return best, worth(best)[0]
