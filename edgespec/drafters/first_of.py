"""Several drafters in order: the first that has a guess is taken."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.drafters import Drafter, Drafting
from edgespec.events import Draft
from edgespec.verify import Rule


class FirstOf:
    """Asks each drafter in turn; free and confident ones (lookup) stand before costly ones (a model).

    The choice looks at whether a guess exists, never at what a drawn token was, so it stays exact.
    """

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        for drafter in self.drafters:
            guess = yield from drafter.draft(tokens, limit, rule)
            if guess.tokens:
                return guess
        return Draft()
