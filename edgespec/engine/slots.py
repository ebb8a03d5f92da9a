"""Sequences of a pair's contexts, and the requests that hold them. A slot keeps its tokens at the end."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Scorer, Want
from edgespec.core.pace.pace import Pace
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.values import Ask
from edgespec.engine.prompt_files import Fetch
from edgespec.llama.checkpoints import Checkpoints
from edgespec.llama.saved import Saved
from edgespec.pairs.adapters import Scales


class Parts(Protocol):
    """The state of some tokens of a sequence by itself."""

    def save(self, s: int, start: int, end: int) -> Saved:
        """Returns a copy of what a sequence holds from token `start` to `end`."""

    def add(self, s: int, saved: Saved) -> bool:
        """Puts a part behind what a sequence holds; False if cells have run out."""


class Cache(Scorer, Protocol):
    """A context that can forget, and have its sequences saved, restored and shared."""

    @property
    def tried(self) -> float:
        """Returns the seconds that evaluations took longer because another number of threads was tried."""

    @property
    def batches(self) -> bool:
        """False if several sequences are evaluated one after another."""

    @property
    def fills(self) -> bool:
        """Returns whether tokens that nobody wanted leave its memory again for nothing."""

    @property
    def parts(self) -> Parts | None:
        """Parts of its sequences; None if they are saved as a whole alone."""

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Its checkpoints; None if it makes none."""

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence holds."""

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence holds."""

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False, and nothing is held, if there is no room."""

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another; False if that is impossible."""

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds after its first n tokens, or more if it cannot go back there."""

    def keep_cells(self, on: bool) -> None:
        """on: removed tokens keep their cells occupied, so that those of others stay in their order."""

    def give_back_cells(self) -> bool:
        """Frees the cells that were kept; False if there were none."""


@dataclass(slots=True, eq=False)
class Running:
    """A request, waiting or in its slot: its loop is at `ask`. Entering it checks prompt and settings."""

    id: str
    prompt: NDArray[np.int32]
    wanted: Request
    stream: Stream
    ask: Ask
    number: int  # of the requests so far
    since: float  # when it came, by the engine's clock
    reading: bool = True  # the target lacks more than one evaluation with others may hold
    first: bool = True  # no round has ended since it got its slot
    served: int = 0  # the step in which it took part in an evaluation last
    reported: bool = False  # its start has been reported
    read_from: int = 0  # the draft reads the settled tokens from here on
    catching_up: bool = False  # it has read a chunk of what it had not read, and not all
    adapters: Scales = ()  # of the target's adapters, for all of it
    owner: str = ""  # whose earlier texts it may be compared with
    replays: bool = False  # these may have its tokens
    written: list[int] = field(default_factory=list)  # its answer so far
    borders: tuple[int, ...] = ()  # of its prompt: see `borders.py`
    fetch: Fetch | None = None  # what is read from the disk for it
    notice: str = ""  # why the draft is not asked any more
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = self.stream.pace

    @property
    def drawn(self) -> int:
        """Guesses that were drawn and wait for the target: they may not be withdrawn."""
        return 0 if self.ask.model == "draft" or self.ask.reach else len(self.ask.tail)


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence of both contexts, with the request that it is lent to."""

    seq: int
    running: Running | None = None
    request: Running = field(init=False)  # the one that runs, or ran last: read many times in each step
    adapters: Scales = ()  # with which the target read what it holds
    used: int = 0  # the step in which it was last released
    holds: bool = True  # maybe: of a request that has ended, of measuring, of an engine before this one
    whole: int = 0  # first tokens that the target read in whole chunks, as it would from nothing

    def want(self, n_guesses: int | None = None) -> Want:
        """Returns what the request asks of the target, with so many of its guesses."""
        ask = self.request.ask
        tail = ask.tail[:n_guesses]
        return Want(ask.tokens, tail, ask.rows - len(ask.tail) + len(tail), self.seq)

    def least_rows(self, target: Scorer) -> int:
        """Returns how many tokens the target evaluates for it at least."""
        if self.request.first:  # the end of its prompt
            return max(1, target.missing(self.want()))
        return 1 + self.request.drawn

    def lend(self, running: Running) -> None:
        """Gives a request the slot."""
        self.running = self.request = running
