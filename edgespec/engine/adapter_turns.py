"""Streams with the same LoRA adapters are evaluated together; those with others take turns with them."""

from collections.abc import Callable, Sequence

from edgespec.engine.slots import Slot
from edgespec.pairs.adapters import Scales

BLOCK = 8  # steps of a turn: to change adapters, llama.cpp plans its buffers anew


class AdapterTurns:
    """Says whose turn it is, and has the target evaluate with their adapters."""

    def __init__(self, own: Scales, adapt: Callable[[Scales], None]) -> None:
        """own: the scales it begins with. adapt: has the target evaluate with scales."""
        self._now, self._left, self._adapt = own, BLOCK, adapt

    def taking_part(self, running: Sequence[Slot]) -> list[Slot]:
        """Returns who takes part in the next step."""
        present = sorted({slot.adapters for slot in running})
        if present and (self._now not in present or self._left <= 0):
            self._now = next((scales for scales in present if scales > self._now), present[0])
            self._left = BLOCK
        self._left -= 1
        self._adapt(self._now)
        return [slot for slot in running if slot.adapters == self._now]
