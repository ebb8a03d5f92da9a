"""Ways of guessing what the target will say. One file each; verification knows nothing of them.

A drafter is entered with `yield from`: it yields an `Ask` for every evaluation it needs, stops where the
answer is None, and returns a `Draft`.

EXACTNESS: a token that was drawn is never withdrawn after looking at it. A drafter may stop by the shape
of the distribution that it is about to draw from, or after a token it keeps; both leave the output exact,
while dropping unlikely-looking tokens from the tail does not (total variation up to 0.25).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.events import Ask, Draft
from edgespec.verify import Rule

Drafting = Generator[Ask, "NDArray[np.float32] | None", Draft]


class Drafter(Protocol):
    """Something that guesses. It may keep state, which it syncs to the tokens that it is given."""

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        """Guesses at most `limit` tokens behind `tokens` ((n,) int32, prompt and output so far)."""
        ...


class NoDrafter:
    """Never guesses: plain decoding through the same loop."""

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        return Draft()
        yield  # a generator, as the protocol wants
