"""How long a draft may be, who guesses, and when not to guess: an economic decision.

Everything is counted in the time of one token of plain decoding. A round that costs c of these and emits
e tokens has the gain e / c; plain decoding has 1. A guess is worth making where the probability that it
counts exceeds its marginal cost times the gain that time has elsewhere (Dinkelbach's rule for
renewal-reward; algorithms 4.8). Plain decoding always competes, and what a draft may lose against it is
bounded by a budget, whatever the draft does (`Record`).

EXACTNESS: decisions see positions, costs and reach, which never depend on a token that is not yet kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.costs import Beside, CostTable
from edgespec.core.values import LONGEST_DRAFT, Ask, Reach, Round
from edgespec.errors import SettingError

LONGEST = LONGEST_DRAFT  # sizes the target's buffers
LENGTHS = np.arange(1, LONGEST + 1)


class Pace(Protocol):
    """Grants or refuses what loop and drafters ask for. Its decisions never see a drafted token."""

    def window(self, lag: int) -> int:
        """How many tokens may the draft read, of `lag` that it has not read yet? Asked each round."""
        ...

    def grants_step(self, ask: Ask, lag: int) -> bool:
        """May the draft model guess one token more? `lag`: tokens it has to evaluate for that, 0 if none."""
        ...

    def grants_rows(self, ask: Ask) -> int:
        """How many of the ask's tail tokens may the target verify?"""
        ...

    def spent(self, ask: Ask | None, n_evaluated: int, seconds: float) -> None:
        """Takes note of seconds: of an ask with its follow-up in Python, or (None) of Python alone."""
        ...

    def observe(self, round_: Round) -> float:
        """Takes note of a finished round; returns the gain that had been expected of it."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Every draft has at most `length` tokens; 0 is plain decoding. A likelier free guess goes first."""

    length: int

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or not 0 <= self.length <= LONGEST:
            raise SettingError(f"the draft length is {self.length!r}: it must be from 0 to {LONGEST}")

    def window(self, lag: int) -> int:
        return lag

    def grants_step(self, ask: Ask, lag: int) -> bool:
        if ask.otherwise and ask.reach and ask.otherwise[0] >= ask.reach[0]:
            return False
        return len(ask.tail) < self.length

    def grants_rows(self, ask: Ask) -> int:
        return min(len(ask.tail), self.length)

    def spent(self, ask: Ask | None, n_evaluated: int, seconds: float) -> None:
        pass

    def observe(self, round_: Round) -> float:
        return 1.0


FADE = 0.95  # of what earlier rounds say, with each new one
PRIOR_ROUNDS = 6.0  # rounds that the expectation of a draft never tried is worth
SHARE, START = 0.015, 3.0  # the budget: a share of the tokens emitted, and token times to begin with
FREE_SHARE, FREE_START = 0.005, 1.5  # the same for free guesses: what they are worth shows without trying
CREDIT = 8.0  # token times of past gains that may be lost again
AHEAD = 16  # guesses looked ahead where the next alone would not pay: costs are not monotonic
HORIZON = 256  # tokens over which reading the prompt with the draft has to pay, at most
LIGHT_S = 0.002  # seconds of a token below which looking for guesses is felt; some 0.1 ms a round
LOOK, REST = 8, 24  # rounds, see `Controller._rests`
TRIAL = 32  # fewest tokens of prompt worth showing to a draft
FRESH, REFRESH = 8, 256  # tokens after which plain decoding is timed again, at the soonest and at the latest


@dataclass(slots=True)
class Gain:
    """Tokens a token time, over the last rounds."""

    tokens: float = 0.0
    cost: float = 0.0

    def add(self, tokens: float, cost: float) -> None:
        self.tokens = FADE * self.tokens + tokens
        self.cost = FADE * self.cost + cost

    def over(self, expected: float) -> float:
        """Returns the gain, `expected` counting as PRIOR_ROUNDS rounds of the cost of one token."""
        return (self.tokens + PRIOR_ROUNDS * expected) / (self.cost + PRIOR_ROUNDS)


@dataclass(slots=True)
class Record:
    """What one pair has shown at one kind of request. Outlives requests.

    model: the gain of rounds in which the draft model guessed; all: of every round. lost: token times
    that the draft model cost more than it brought, past gains counting up to CREDIT; free_lost: the same of
    free guesses. emitted: tokens. trying: token times that may be spent on drafts that are not expected to
    pay; they come back by SHARE of the tokens, up to `saving`, START or what one try costs, so that a draft
    which has turned bad is not tried time after time for all that it had brought.
    """

    model: Gain = field(default_factory=Gain)
    all: Gain = field(default_factory=Gain)
    lost: float = 0.0
    free_lost: float = 0.0
    emitted: int = 0
    since_plain: int = 0  # tokens since plain decoding was last seen
    trying: float = START
    saving: float = START

    def charge(self, lost: float) -> None:
        """Takes note of token times that the draft model lost; negative: won.

        A draft that has paid lately owes no more than it may lose: what was beyond that was a slow moment,
        and would shut it out for hundreds of tokens.
        """
        self.lost = max(-CREDIT, self.lost + lost)
        if self.model.over(1.0) > 1:
            self.lost = min(self.lost, START + SHARE * self.emitted)

    @property
    def budget(self) -> float:
        """Token times that trying the draft model may still lose."""
        return START + SHARE * self.emitted - self.lost

    @property
    def free_budget(self) -> float:
        """Token times that free guesses may still lose."""
        return FREE_START + FREE_SHARE * self.emitted - self.free_lost

    @property
    def stale(self) -> bool:
        """True where plain decoding is to be timed again; that may cost a hundredth of the speed."""
        return self.since_plain >= min(max(FRESH, 100 * (self.all.over(1.0) - 1)), REFRESH)


@dataclass(slots=True)
class Costs:
    """What one token, or several, cost on target and draft, and what it does to draft beside a verification.

    beside: None where that was not measured. rereads: the draft is a head, which reads what a round brought
    once more, in the target's rows. at_once: one step makes all guesses of a draft.
    """

    target: CostTable
    draft: CostTable
    beside: Beside | None = None
    rereads: bool = False
    at_once: bool = False


class Controller:
    """The pace of one request: weighs costs against acceptance, and plain decoding against both."""

    def __init__(self, costs: Costs, record: Record, *, max_tokens: int) -> None:
        """costs, record: shared by the requests of a pair; max_tokens: of this request."""
        self.costs, self.record = costs, record
        self._left = max_tokens
        self._by: Literal["plain", "model", "free"] = "plain"
        self._gain = 1.0  # expected of this round
        self._seconds = self._reading = 0.0  # of this round; of those, the draft's reading of old tokens
        self._begun = False  # was the prompt evaluated?
        self._prices: NDArray[np.float64] = np.empty(0)
        self._step = 0.0  # seconds of one guess
        self._once = 0.0  # seconds of all guesses together, where they are made at once
        self._trial = 0  # guesses granted without asking what they are worth, in a round that tries the draft
        self._most = LONGEST  # guesses that may be lost in this round
        self._n_ctx = -1
        self._plain_rounds = 0  # since the last that had a guess
        self._said = 1  # tokens of the last round

    @property
    def usual(self) -> int:
        """Returns how many tokens the draft may have to read before any round."""
        return max(2, self._said) if self.costs.rereads else 2

    def window(self, lag: int) -> int:
        """Reads all where that is affordable; else what is, so that a draft can show what it is worth."""
        token = self.costs.draft.seconds(lag) / lag / self._token_time()
        affordable = int(max(self._worth_reading(), self.record.budget / 4) / token)
        return lag if affordable >= lag else min(lag, max(affordable, TRIAL))

    def _worth_reading(self) -> float:
        """Returns the token times that the draft may spend on reading: half of what it should save."""
        gain = self.record.model.over(1.0)
        return min(self._left, HORIZON) * (1 - 1 / gain) / 2 if gain > 1 else 0.0

    def grants_step(self, ask: Ask, lag: int) -> bool:
        if not ask.rows and not ask.reach:
            return not self._rests()
        n = len(ask.tail)
        if ask.rows and not n:
            return self._grants_model(ask, lag)
        if n >= self._most:
            return False
        return n < self._trial or self._pays(n, ask.reach, self._step if ask.rows else 0.0)

    def _rests(self) -> bool:
        """Is looking for guesses, which takes a part of a cheap token's time, left out for some rounds?

        Where none was worth its rows for LOOK rounds, for REST rounds; then they are looked for again.
        """
        light = self.costs.target.seconds(1) < LIGHT_S
        return light and self._plain_rounds >= LOOK and self._plain_rounds % (LOOK + REST) >= LOOK

    def _grants_model(self, ask: Ask, lag: int) -> bool:
        """Decides between the draft model, the free guess, and none."""
        self._look(ask.skipped + ask.tokens.size)
        one = float(self._prices[1])  # what is kept in the record is no numpy scalar
        saved = self._step if lag == 0 else 0.0  # what was read ahead costs nothing now
        step = self._step + self._once
        if self.costs.rereads and 1 < lag <= self.usual:
            saved = step - self.costs.draft.seconds(lag, self._n_ctx)
        saved -= self._once
        planned, _ = best_length(ask.reach, self._prices, self._step, saved)
        instead = max(1.0, best_length(ask.otherwise, self._prices, 0.0)[0])
        gain = self.record.model.over(planned)
        reading = max(0.0, self.costs.draft.seconds(lag) - step) / one if lag > self.usual else 0.0
        worth_it = gain > instead
        if not worth_it and (instead > 1 or self.record.since_plain):
            return False  # drafts are tried where there is no better guess, and plain decoding was just timed
        reading = reading if not worth_it or reading > self._worth_reading() else 0.0
        stake = self._stake(self.record.budget if worth_it else min(self.record.budget, self.record.trying))
        self._most = self._affordable(reading + self._once / one, self._step, stake)
        can_pay = self._can_pay(reading)
        self._trial = 0
        if not worth_it and can_pay.size:
            reach = (*ask.reach, *(0.0,) * LONGEST)[:LONGEST]
            expected = gains(reach, self._prices, self._step, -self._once)
            self._trial = int(can_pay[expected[can_pay - 1].argmax()])
        granted = can_pay.size > 0 and not self.record.stale
        if granted:
            self._by, self._gain = "model", float(gain)
        return granted

    def _can_pay(self, reading: float) -> NDArray[np.int64]:
        """Returns the lengths up to `_most` that pay if all of the draft is accepted.

        Where a second token is the dearest, drafts of one guess lose even if they are right. What the
        cheapest length that can pay may lose, `reading` included, is saved up for.
        """
        cost = (self._prices[2 : LONGEST + 2] + self._step * LENGTHS + self._once) / self._prices[1]
        can_pay: NDArray[np.int64] = LENGTHS[cost < LENGTHS + 1]
        if can_pay.size:
            self.record.saving = max(START, float(cost[can_pay - 1].min()) - 1 + reading)
        affordable: NDArray[np.int64] = can_pay[can_pay <= self._most]
        return affordable

    def _stake(self, budget: float) -> float:
        """Returns the token times of a budget that this round may lose."""
        return budget

    def _affordable(self, reading: float, step: float, stake: float) -> int:
        """Returns the longest draft that, all of it failing, loses no more than `stake` token times.

        reading: token times spent before; step: seconds of one guess.
        """
        lengths = np.arange(LONGEST + 1)
        lost = (self._prices[1:] + lengths * step) / self._prices[1] - 1 + reading
        found = np.flatnonzero(lost <= stake)
        return int(found[-1]) if found.size else 0

    def _pays(self, n: int, reach: Reach, step: float) -> bool:
        """Is one guess more than `n` worth its time, alone or together with those it makes possible?"""
        prices, rate = self._prices, max(1.0, self.record.all.over(self._gain)) / self._prices[1]
        worth, cost = 0.0, step - self._step
        for m, counts in enumerate(reach[: min(AHEAD, LONGEST - n)], 1):
            worth += counts
            cost += self._step
            if worth >= rate * (cost + prices[n + 1 + m] - prices[n + 1]):
                return True
        return False

    def grants_rows(self, ask: Ask) -> int:
        if not ask.reach:  # drawn guesses, each granted when it was drawn; or none
            return len(ask.tail)
        self._look(ask.tokens.size)
        affordable = self._affordable(0.0, 0.0, 2 * self.record.free_budget)
        gain, length = best_length(ask.reach[:affordable], self._prices, 0.0)
        if gain > 1 and not self.record.stale:
            self._by, self._gain = "free", gain
            return length
        return 0

    def _look(self, n_ctx: int) -> None:
        """Looks up what things cost now."""
        if n_ctx != self._n_ctx:
            self._prices = self.costs.target.prices(LONGEST + 1, n_ctx)
            self._price_guesses(self.costs.draft.seconds(1, n_ctx))
            self._n_ctx = n_ctx

    def _price_guesses(self, step: float) -> None:
        """Takes note of the seconds of a step of the draft."""
        self._step, self._once = (0.0, step) if self.costs.at_once else (step, 0.0)

    def _token_time(self) -> float:
        """Returns the seconds of one token of plain decoding, as known by now."""
        return self.costs.target.seconds(1, max(self._n_ctx, 0))

    def spent(self, ask: Ask | None, n_evaluated: int, seconds: float) -> None:
        self._seconds += seconds
        if ask is None:
            return
        n_ctx = ask.tokens.size + len(ask.tail) - n_evaluated
        if ask.model == "draft":
            if n_evaluated == 0:
                return
            self.costs.draft.learn(n_evaluated, n_ctx, seconds)
            if n_evaluated > self.usual:
                self._reading = max(0.0, seconds - self._step - self._once)
            return
        if n_evaluated == ask.rows + ask.forced:
            self.costs.target.learn(n_evaluated, n_ctx, seconds)
            if ask.forced:  # what a grammar settled would cost plain decoding as much
                more, own = (self.costs.target.seconds(n, n_ctx) for n in (n_evaluated, ask.rows))
                self._seconds -= max(0.0, more - own)
        elif self._begun:  # a recurrent model could not just drop what was rejected the last time
            again = max(0.0, seconds - self.costs.target.seconds(ask.rows, n_ctx))
            self._seconds -= again
            again /= self.costs.target.seconds(1, n_ctx)
            self.record.model.add(0.0, again)
            self.record.lost += again
        else:
            self._seconds = 0.0  # the prompt: not a round of speculation
        self._begun = True

    def observe(self, round_: Round) -> float:
        gain, self._gain = self._gain, 1.0
        by, self._by = self._by, "plain"
        seconds, self._seconds = self._seconds, 0.0
        reading, self._reading = self._reading, 0.0
        tokens = round_.accepted + 1
        self._left -= tokens
        self._said = tokens
        self.record.emitted += tokens
        self.record.trying = min(self.record.saving, self.record.trying + SHARE * tokens)
        self._plain_rounds = self._plain_rounds + 1 if by == "plain" else 0
        self.record.since_plain = 0 if by == "plain" else self.record.since_plain + tokens
        if seconds > 0:
            one = self._token_time()
            cost = (seconds - reading) / one if by == "model" else seconds / one
            self.record.all.add(tokens, cost)
            if by == "model":
                self.record.model.add(tokens, cost)
                self.record.charge(seconds / one - tokens)
                if self._trial:
                    self.record.trying = max(-START, self.record.trying + tokens - seconds / one)
            elif by == "free":
                self.record.free_lost = max(-CREDIT, self.record.free_lost + seconds / one - tokens)
        return gain


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
