"""What a grammar demands, guessed as it is usually written.

`{"name": ` may be the only text that can follow, and still be split into tokens in many ways, of which the
target chooses. The usual one is a guess like any other: it is verified, never taken as emitted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Offer, offer
from edgespec.core.pace.odds import Odds
from edgespec.core.values import Judged
from edgespec.sampling.masks import Masks

SURE, LAST = 0.95, 0.55  # confidence begins here; the last token may be longer than the text demanded so far
ASSUMED = (0.1, 0.1, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)  # acceptance until it is known
LONGEST_TEXT = 1000  # bytes that are split into tokens


class DemandedText:
    """Offers the usual tokens of the bytes with which every allowed text continues."""

    name = "grammar"

    def __init__(
        self, masks: Masks, tokenize: Callable[[bytes], list[int]], odds: Odds | None = None
    ) -> None:
        """tokenize: the usual tokens of bytes, with nothing added."""
        self.odds = odds or Odds(ASSUMED)
        self._masks, self._tokenize = masks, tokenize

    def for_text(self) -> DemandedText:
        return self

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Offers at most `limit` tokens of the text demanded after `tokens`."""
        text = self._masks.only_text(tokens)[:LONGEST_TEXT]
        if not text:
            return Offer()
        usual = self._tokenize(text)
        confidence = [SURE] * (len(usual) - 1) + [LAST]
        return offer(usual[:limit], confidence[:limit], self.odds)

    def learn(self, judged: Judged) -> None:
        pass
