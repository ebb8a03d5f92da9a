"""What a draft of each length is worth, by its reach and the prices of verifying it."""

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.costs import Costs
from edgespec.core.values import LONGEST_DRAFT, BreakEven, Reach

LENGTHS = np.arange(1, LONGEST_DRAFT + 1)
LONGEST_PLANNED = 16  # guesses
GUESSES = np.arange(LONGEST_DRAFT + 1)
ACCEPTED = 0.7  # of guesses, before any was judged


def best_length(
    reach: Reach, prices: NDArray[np.float64], step: float, saved: float = 0.0
) -> tuple[float, int]:
    """Returns the best gain of a draft with this reach, and its length; (1, 0) if none beats plain.

    The arguments are those of `gains`.
    """
    found = gains(reach, prices, step, saved)
    i = int(found.argmax()) if found.size else -1
    return (float(found[i]), i + 1) if i >= 0 and found[i] > 1 else (1.0, 0)


def at_load(costs: Costs, *, accepted: float = ACCEPTED, longest: int = 16) -> float:
    """Returns the gain of the best draft length at these costs, if nothing is known of the guesses yet.

    Below 1 if none pays: guesses that are better than assumed may still pay.
    """
    reach = tuple(accepted**k for k in range(1, longest + 1))
    return float(gains(reach, costs.target.prices(longest + 1), costs.draft.seconds(1)).max())


def break_even(costs: Costs, *, drafts: bool) -> BreakEven:
    """Returns how good guesses have to be. drafts: there is a draft or a head."""
    prices, guess = costs.target.prices(LONGEST_PLANNED + 1), costs.draft.seconds(1) if drafts else 0.0
    each, once = (0.0, guess) if costs.at_once else (guess, 0.0)
    least, least_free = _least(prices, each, once), _least(prices, 0.0, 0.0)
    return BreakEven(float(prices[2] / prices[1]), float(guess / prices[1]), least, least_free)


def _least(prices: NDArray[np.float64], each: float, once: float) -> float:
    """Returns the smallest share of right guesses with which a draft pays. each, once: its seconds."""
    low, high = 0.0, 1.0
    while high - low > 0.005:
        share = (low + high) / 2
        reach = tuple(share**k for k in range(1, LONGEST_PLANNED + 1))
        pays = best_length(reach, prices, each, -once)[1] > 0
        low, high = (low, share) if pays else (share, high)
    return high


def gains(reach: Reach, prices: NDArray[np.float64], step: float, saved: float = 0.0) -> NDArray[np.float64]:
    """Returns the gain of drafts of 1, 2, ... tokens with this reach: float64, (len(reach),).

    prices: seconds of verifying 0, 1, ... tokens. step: seconds of making one guess; saved: of all
    of them, those that were spent before.
    """
    n = len(reach)
    seconds = prices[2 : n + 2] + step * np.arange(1, n + 1) - saved
    found: NDArray[np.float64] = (1.0 + np.cumsum(reach)) * prices[1] / seconds
    return found


def round_costs(prices: NDArray[np.float64], step: float, once: float) -> NDArray[np.float64]:
    """Returns the token times of a round with 0, 1, ... guesses: float64, (LONGEST_DRAFT + 1,).

    prices, step: as of `gains`; once: seconds that guesses take, however many there are.
    """
    found: NDArray[np.float64] = (prices[1:] + step * GUESSES + once * (GUESSES > 0)) / prices[1]
    return found


def can_pay(cost: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns for 1, 2, ... guesses whether they pay if all of them are accepted. cost: `round_costs`."""
    found: NDArray[np.bool_] = cost[1:] < LENGTHS + 1
    return found


def cheapest_try(cost: NDArray[np.float64]) -> float:
    """Returns the token times that the cheapest useful draft may lose; inf if none is useful."""
    return float(cost[1:].min(initial=np.inf, where=can_pay(cost))) - 1


def affordable(cost: NDArray[np.float64], reading: float, stake: float) -> int:
    """Returns the longest draft that loses no more than `stake` token times if all of it fails.

    cost: token times of a round with 0, 1, ... guesses. reading: token times spent before.
    """
    found = np.flatnonzero(cost - 1 + reading <= stake)
    return int(found[-1]) if found.size else 0
