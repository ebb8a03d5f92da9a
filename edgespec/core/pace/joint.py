"""The pace of several streams in one evaluation: rows go where they are worth most.

Counted is in the time of one token of plain decoding with as many streams: what an evaluation of one row
for each costs, shared out. A row more costs what it adds to the combined evaluation; it is worth how
likely it counts. So a `JointController` is the controller of one request, shown prices that depend on what
the others hold by now. Free offers are cut all together, by one sorted list (algorithms, section 6).

EXACTNESS: as for one stream. How much the others hold may follow from their own drafted tokens, and
whether this one goes on from guesses that it keeps; nobody's guess is withdrawn after it was drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.controller import LONGEST, Controller, Costs, Record
from edgespec.core.values import Ask, Reach

LEAP = 4.0  # no step counts for more than this many times what was expected: machines pause
FADE, REST = 0.95, 0.985  # of what earlier steps say: with each that takes offers, with each that does not
PRIOR = 4.0  # steps that believing the expectation is worth


@dataclass(slots=True)
class Trust:
    """How far expectations of free offers came true among so many streams. What it says fades.

    Odds and prices are estimates, and the best of many is the one most overestimated; this bounds what
    that costs.
    """

    expected: float = 0.0
    found: float = 0.0

    @property
    def factor(self) -> float:
        """What an expected gain is to be multiplied with."""
        return min(1.0, (self.found + PRIOR) / (self.expected + PRIOR))

    def note(self, expected: float, found: float) -> None:
        """Takes note of a step that took offers."""
        self.expected = FADE * self.expected + expected
        self.found = FADE * self.found + found

    def rest(self) -> None:
        """Takes note of a step that took none, so that they are tried again some day."""
        self.expected *= REST
        self.found *= REST


@dataclass(slots=True)
class Load:
    """What the next evaluation of the target holds so far. least: its tokens with no guess at all, by slot.

    most: tokens that it may hold. guesses: granted so far, by slot. expected: tokens that will count.
    drafting: seconds of the draft that count towards it. together: slots that share a step of the draft.
    tries: streams that were granted a draft in this step.
    """

    costs: Costs
    least: Mapping[int, int]
    most: int
    n_ctx: int  # tokens before the rows, on average
    guesses: Counter[int] = field(default_factory=Counter)
    expected: float = 0.0
    drafting: float = 0.0
    together: int = 1
    tries: int = 0
    base: int = field(init=False)
    prices: NDArray[np.float64] = field(init=False)
    one: float = field(init=False)  # seconds of one token of plain decoding

    def __post_init__(self) -> None:
        self.base = sum(self.least.values())
        self.prices = self.costs.target.prices(max(self.most, self.base), self.n_ctx)
        self.one = float(self.prices[self.base]) / max(len(self.least), 1)
        self.expected = float(len(self.least))

    @property
    def total(self) -> int:
        """Tokens it holds so far."""
        return self.base + self.guesses.total()

    @property
    def room(self) -> int:
        """Guesses that may still be added."""
        return self.most - self.total

    def step(self) -> float:
        """Returns the seconds of one guess of the draft model, its evaluation shared."""
        return self.costs.draft.seconds(self.together, self.n_ctx) / self.together

    def prices_for(self, slot: int) -> NDArray[np.float64]:
        """Returns the seconds that 0, 1, ... tokens of a slot cost beside what the others hold."""
        others = self.total - self.guesses[slot] - 1
        top = min(LONGEST + 1, self.most - others)
        found = np.full(LONGEST + 2, np.inf)
        found[0] = 0.0
        found[1 : top + 1] = self.prices[others + 1 : others + top + 1] + (self.one - self.prices[others + 1])
        return found

    def granted(self, slot: int, worth: float) -> None:
        """Takes note of a guess that will be verified."""
        self.guesses[slot] += 1
        self.expected += worth

    def allot(self, offers: Mapping[int, Reach], trust: float = 1.0) -> tuple[Counter[int], float]:
        """Returns how many guesses of each free offer to verify, and the gain that is expected of all.

        trust: how much of an expected gain comes true.

        Reach falls along an offer, so the likeliest rows of all together are beginnings of each.
        """
        rows = sorted(((worth, -slot) for slot, reach in offers.items() for worth in reach), reverse=True)
        rows = rows[: max(self.room, 0)]
        worth = np.array([worth for worth, _ in rows])
        tokens = self.expected + np.concatenate([[0.0], np.cumsum(worth)])
        total = self.total
        seconds = self.drafting + self.prices[total : total + len(rows) + 1]
        gains = tokens * self.one / seconds
        gains[1:] *= trust
        n = int(gains.argmax())
        return Counter(-slot for _, slot in rows[:n]), float(gains[n])

    def share(self, slot: int, steps: float) -> float:
        """Returns what part of the seconds a slot is expected to cause. steps: seconds of its guesses."""
        n = self.guesses[slot]
        return self.one + float(self.prices[self.total] - self.prices[self.total - n]) + steps


class JointController(Controller):
    """The controller of one stream among several: `enter` begins its step, `charge` and `observe` end it."""

    def __init__(self, costs: Costs, record: Record, *, slot: int, max_tokens: int) -> None:
        """slot: whose stream it is."""
        super().__init__(costs, record, max_tokens=max_tokens)
        self.slot = slot
        self._load = Load(costs, {slot: 1}, 1, 0)
        self._steps = 0.0  # seconds of the guesses of this step

    def enter(self, load: Load, record: Record) -> None:
        """Begins a step. record: of such requests among as many streams."""
        self._load, self.record, self._steps = load, record, 0.0

    def grants_step(self, ask: Ask, lag: int) -> bool:
        if not ask.rows and not ask.reach:
            return super().grants_step(ask, lag)
        if self._load.room <= 0:
            return False
        self._look(ask.tokens.size)
        granted = super().grants_step(ask, lag)
        if not granted and not ask.tail and ask.rows:
            self._by, self._gain = "plain", 1.0
        return granted

    def would_read(self, ask: Ask, lag: int) -> bool:
        """Is it worth while to show the draft `lag` tokens, in more steps than one?"""
        granted = self.grants_step(ask, lag)
        self._by, self._gain = "plain", 1.0
        return granted

    def drafted(self) -> None:
        """Takes note of a step of the draft model."""
        self._steps += self._load.step()

    def read(self, seconds: float) -> None:
        """Takes note of seconds in which the draft read old tokens."""
        self.record.lost += seconds / self._load.one

    @property
    def takes_offers(self) -> bool:
        """False where plain decoding is to be seen again."""
        return not self.record.stale

    def took(self, guesses: int, gain: float) -> None:
        """Takes note of what became of a free offer."""
        if guesses:
            self._by, self._gain = "free", gain

    def share(self) -> float:
        """Returns the seconds of this step that are expected of this stream."""
        return self._load.share(self.slot, self._steps)

    def charge(self, seconds: float) -> None:
        """Takes note of its part of the seconds of this step."""
        self._seconds = min(seconds, LEAP * self.share())

    def _look(self, n_ctx: int) -> None:
        self._n_ctx = n_ctx
        self._prices = self._load.prices_for(self.slot)
        self._price_guesses(self._load.step())

    def _token_time(self) -> float:
        return self._load.one

    def _stake(self, budget: float) -> float:
        return budget / (1 + self._load.tries)
