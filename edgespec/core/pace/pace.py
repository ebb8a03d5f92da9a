"""What may be guessed, and how far: the protocol of a stream's pace, and the fixed one."""

from dataclasses import dataclass
from typing import Protocol

from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.values import DRAFT_LENGTHS, Ask, Reach, Round


class Pace(Protocol):
    """Grants or refuses what one stream asks for, round by round. Its decisions never see a drafted token."""

    def enter(self, batch: BatchPlan, slot: int) -> None:
        """Begins a round of the stream in this slot."""

    def looks(self) -> bool:
        """Returns whether to look for guesses in the next round. Asked once for each."""

    def drafts(self) -> bool:
        """Returns whether the draft model may guess too. Asked once for each round with `looks`."""

    @property
    def usual(self) -> int:
        """Returns how many tokens the draft may read before any round."""

    def window(self, lag: int) -> int:
        """Returns how many tokens the draft may read, of `lag` that it has not read yet."""

    def grants_step(self, ask: Ask, lag: int) -> bool:
        """Returns whether the draft model may guess one token more. lag: tokens to evaluate for it, or 0.

        May be asked more than once for one guess.
        """

    def drafted(self) -> None:
        """Counts an evaluation of the draft that was granted and made."""

    def read(self, seconds: float) -> None:
        """Counts seconds in which the draft read old tokens; no round is charged with them."""

    def offer(self, ask: Ask) -> tuple[int, Reach]:
        """Returns how many tokens of a free offer to verify in any case, or else which to weigh."""

    def took(self, guesses: int, gain: float) -> None:
        """Notes how many tokens of a weighed offer are verified, and the expected gain."""

    def rewound(self, seconds: float) -> None:
        """Counts seconds in which a recurrent target went back; no round is charged with them."""

    def observe(self, round_: Round, seconds: float) -> float:
        """Learns from a finished round; returns the gain that had been expected of it.

        seconds: this stream's part of the step. 0: do not count it, such as a prompt's.
        """


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every draft has at most `length` tokens; 0 is plain decoding. A likelier free guess goes first."""

    length: int

    def looks(self) -> bool:
        return self.length > 0

    def drafts(self) -> bool:
        return True

    @property
    def usual(self) -> int:
        return 2

    def __post_init__(self) -> None:
        DRAFT_LENGTHS.check("the draft length", self.length)

    def enter(self, batch: BatchPlan, slot: int) -> None:
        pass

    def window(self, lag: int) -> int:
        return lag

    def grants_step(self, ask: Ask, lag: int) -> bool:
        if ask.otherwise and ask.reach and ask.otherwise[0] >= ask.reach[0]:
            return False
        return len(ask.tail) < self.length

    def drafted(self) -> None:
        pass

    def read(self, seconds: float) -> None:
        pass

    def offer(self, ask: Ask) -> tuple[int, Reach]:
        return min(len(ask.tail), self.length), ()

    def took(self, guesses: int, gain: float) -> None:
        pass

    def rewound(self, seconds: float) -> None:
        pass

    def observe(self, round_: Round, seconds: float) -> float:
        return 1.0
