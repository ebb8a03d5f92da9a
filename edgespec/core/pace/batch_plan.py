"""What the next evaluation of the target holds so far, and what one row or guess more would cost in it.

Several streams share an evaluation, and a row of one costs what it adds for all; so each stream's pace is
shown prices that depend on what the others hold by now. One stream alone is the same with nothing next to
it. Free offers are cut all together, by one sorted list.

Rows may be added that are thrown away, where a larger evaluation is cheaper (`cost_table.filled`); prices
are those of the cheapest one. So a draft goes on while further guesses are cheaper than such rows.

EXACTNESS: as for one stream. How much the others hold may follow from their own drafted tokens, and
whether this one continues from guesses that it keeps; nobody's guess is withdrawn after it was drawn.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.cost_table import LARGEST, filled
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import LONGEST_DRAFT, Reach


class BatchPlan:
    """The evaluation that one step of the streams ends with. Counts in tokens, by slot."""

    __slots__ = (
        "_curve", "_prices", "_shared", "_step", "_steps", "base", "costs", "drafting", "expected", "fills",
        "guesses", "least", "most", "n_ctx", "one", "streams", "together", "total", "tries", "weighed",
    )  # fmt: skip

    def __init__(
        self,
        costs: Costs,
        least: Mapping[int, int],
        most: int,
        n_ctx: int,
        reading: int = 0,
        *,
        fills: bool = False,
    ) -> None:
        """least: tokens it has without any guess; most: its limit; n_ctx: before them, on average.

        reading: tokens of prompts that are read along with it. fills: rows may be added that nobody wants.
        """
        self.costs, self.least, self.most, self.n_ctx, self.fills = costs, least, most, n_ctx, fills
        self.guesses = dict.fromkeys(least, 0)  # granted so far
        self.base = self.total = sum(least.values()) + reading
        self.streams = max(len(least), 1)
        self.expected = float(self.streams)  # tokens that will count
        self.drafting = 0.0  # seconds of the draft for them
        self.together = 1  # slots that share a step of the draft
        self.tries = 0  # streams that were granted a draft in this step of the draft
        self.weighed = False  # whether anybody needs its costs
        self._curve: NDArray[np.float64] | None = None  # seconds of exactly 0, 1, ... tokens
        self._prices: NDArray[np.float64] | None = None  # of at least so many
        self.one = 0.0  # seconds of one token of plain decoding with as many streams: the unit
        self._step: dict[int, float] = {}  # seconds of one guess, by how many share the evaluation
        self._steps: dict[int, float] = {}  # seconds of a slot's own guesses
        self._shared: dict[int, NDArray[np.float64]] = {}  # prices, by the tokens of others

    def weigh(self) -> None:
        """Looks up what a token costs, for paces that depend on it."""
        if not self.weighed:
            self.weighed = True
            if self.fills and 1 < self.base <= LARGEST:
                self.one = float(self.prices[self.base]) / self.streams
            else:
                self.one = self.costs.target.seconds(self.base, self.n_ctx) / self.streams

    @property
    def prices(self) -> NDArray[np.float64]:
        """Seconds of evaluating 0, 1, ... tokens, filled up where that is cheaper."""
        if self._prices is None or len(self._prices) <= self.total:  # it shows on a light target if unused
            self._curve = self.costs.target.curve(max(self.most, self.total), self.n_ctx)
            self._prices = filled(self._curve) if self.fills else self._curve
        return self._prices

    def filling(self) -> int:
        """Returns how many rows to add, which are thrown away, so that the evaluation is the cheapest."""
        if not (self.weighed and self.fills and 1 < self.total <= LARGEST):
            return 0
        found = self.prices  # and with them the curve
        assert self._curve is not None
        return int(self._curve[self.total :].argmin()) if found[self.total] < self._curve[self.total] else 0

    @property
    def room(self) -> int:
        """Guesses that may still be added."""
        return self.most - self.total

    def step(self) -> float:
        """Returns the seconds that one guess more takes: none if one step makes all of them."""
        return 0.0 if self.costs.at_once else self.evaluation()

    def once(self) -> float:
        """Returns the seconds that guesses take, however many there are."""
        return self.evaluation() if self.costs.at_once else 0.0

    def evaluation(self) -> float:
        """Returns a stream's part of the seconds of a step of the draft."""
        found = self._step.get(self.together)
        if found is None:
            found = self.costs.draft.seconds(self.together, self.n_ctx) / self.together
            self._step[self.together] = found
        return found

    def prices_for(self, slot: int) -> NDArray[np.float64]:
        """Returns the seconds that 0, 1, ... tokens of a slot cost next to what the others hold."""
        others = self.total - self.guesses[slot] - 1
        found = self._shared.get(others)
        if found is None and not others and self.most > LONGEST_DRAFT:
            found = self._shared[0] = self.prices[: LONGEST_DRAFT + 2]
        elif found is None:
            top = max(1, min(LONGEST_DRAFT + 1, self.most - others))  # its own token is never refused
            found = np.full(LONGEST_DRAFT + 2, np.inf)
            found[0] = 0.0
            found[1 : top + 1] = self.prices[others + 1 : others + top + 1]
            found[1 : top + 1] += self.one - self.prices[others + 1]
            self._shared[others] = found
        return found

    def take(self, slot: int, guesses: int) -> None:
        """Counts guesses that will be verified."""
        self.guesses[slot] += guesses
        self.total += guesses

    def granted(self, slot: int, worth: float) -> None:
        """Counts a guess that will be verified. worth: the probability that it counts."""
        self.guesses[slot] += 1
        self.total += 1
        self.expected += worth

    def drafted(self, slot: int, seconds: float) -> None:
        """Counts a slot's part of a step of the draft model."""
        self._steps[slot] = self._steps.get(slot, 0.0) + seconds

    def allot(self, offers: Mapping[int, Reach], trust: float = 1.0) -> tuple[Counter[int], float]:
        """Returns how many guesses of each free offer to verify, and the expected gain of all.

        trust: how much of an expected gain comes true.

        Reach falls along an offer, so the likeliest rows of all together are beginnings of each.
        """
        rows = sorted(((worth, -slot) for slot, reach in offers.items() for worth in reach), reverse=True)
        rows = rows[: max(self.room, 0)]
        worth = np.array([worth for worth, _ in rows])
        tokens = self.expected + np.concatenate([[0.0], np.cumsum(worth)])
        seconds = self.drafting + self.prices[self.total : self.total + len(rows) + 1]
        gains = tokens * self.one / seconds
        gains[1:] *= trust
        n = int(gains.argmax())
        return Counter(-slot for _, slot in rows[:n]), float(gains[n])

    def parts(self, seconds: float, slots: Iterable[int]) -> dict[int, float]:
        """Returns the share of the step's seconds that each slot caused, none far more than expected."""
        shares = {slot: self._share(slot) for slot in slots}
        whole = sum(shares.values())
        return {slot: min(seconds / whole, TUNING.leap) * share for slot, share in shares.items()}

    def _share(self, slot: int) -> float:
        """Returns the seconds of the step that a slot is expected to cause."""
        seconds = self.one + self._steps.get(slot, 0.0)
        if guesses := self.guesses[slot]:
            seconds += float(self.prices[self.total] - self.prices[self.total - guesses])
        return seconds
