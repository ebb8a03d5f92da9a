"""How long a draft may be: the seam where the economic decision is made.

For now the length is fixed. The controller that weighs measured costs against measured acceptance, with
plain decoding among its choices, takes this place behind the same three calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edgespec.errors import SettingError
from edgespec.events import Ask, Round

LONGEST = 48  # no draft is longer (batches past 63 rows may use other kernels); sizes the target's buffers


class Pace(Protocol):
    """Grants or refuses what loop and drafters ask for. Its decisions never see a drafted token."""

    def grants_step(self, ask: Ask) -> bool:
        """May the draft model evaluate this, to guess one token more?"""
        ...

    def grants_rows(self, ask: Ask) -> int:
        """How many of the ask's tail tokens may the target verify?"""
        ...

    def observe(self, round_: Round) -> None:
        """Takes note of a finished round."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every draft has at most `length` tokens; 0 is plain decoding."""

    length: int

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or not 0 <= self.length <= LONGEST:
            raise SettingError(f"the draft length is {self.length!r}: it must be from 0 to {LONGEST}")

    def grants_step(self, ask: Ask) -> bool:
        return len(ask.tail) < self.length

    def grants_rows(self, ask: Ask) -> int:
        return min(len(ask.tail), self.length)

    def observe(self, round_: Round) -> None:
        pass
