"""What a draft of each length is worth, by its reach and the prices of verifying it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import Reach


def best_length(
    reach: Reach, prices: NDArray[np.float64], step: float, saved: float = 0.0
) -> tuple[float, int]:
    """Returns the best gain of a draft with this reach, and its length; (1, 0) where none beats plain.

    The arguments are those of `gains`.
    """
    found = gains(reach, prices, step, saved)
    i = int(found.argmax()) if found.size else -1
    return (float(found[i]), i + 1) if i >= 0 and found[i] > 1 else (1.0, 0)


def gains(reach: Reach, prices: NDArray[np.float64], step: float, saved: float = 0.0) -> NDArray[np.float64]:
    """Returns the gain of drafts of 1, 2, ... tokens with this reach: float64, (len(reach),).

    prices: seconds of verifying 0, 1, ... tokens. step: seconds that one guess takes to make; saved: of all
    of them, those that were spent before.
    """
    n = len(reach)
    seconds = prices[2 : n + 2] + step * np.arange(1, n + 1) - saved
    found: NDArray[np.float64] = (1.0 + np.cumsum(reach)) * prices[1] / seconds
    return found
