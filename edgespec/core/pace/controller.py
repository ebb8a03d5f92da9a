"""How long a draft may be, who guesses, and when not to guess: an economic decision.

Everything is counted in the time of one token of plain decoding. A round that costs c of these and emits
e tokens has the gain e / c; plain decoding has 1. A guess is worth making where the probability that it
counts exceeds its marginal cost times the gain of that time elsewhere (Dinkelbach's rule for
renewal-reward processes). Plain decoding always competes, and what a draft may lose against it is
bounded by a budget, whatever the draft does (`Record`). Each round's `BatchPlan` knows what things cost;
free offers of all streams are cut together, there (`BatchPlan.allot`).

EXACTNESS: decisions see positions, costs and reach, which never depend on a token that is not yet kept.
"""

import math
import sys
from collections.abc import Callable
from typing import Literal

from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.record import Record
from edgespec.core.pace.tuning import TUNING
from edgespec.core.pace.worth import (
    LENGTHS,
    affordable,
    best_length,
    can_pay,
    cheapest_try,
    gains,
    round_costs,
)
from edgespec.core.values import LONGEST_DRAFT, Ask, Reach, Round


class Controller:
    """The pace of one stream: weighs costs against acceptance, and plain decoding against both."""

    def __init__(self, records: Callable[[int], Record], *, max_tokens: int | None) -> None:
        """records: of such requests so far, by the number of streams; max_tokens: of this one."""
        self._records = records
        self._streams = 0
        self._left = sys.maxsize if max_tokens is None else max_tokens
        self._guesser: Literal["plain", "model", "free"] = "plain"
        self._gain = 1.0  # expected of this round
        self._planned = 1.0  # expected of it, should the model draft
        self._trial = 0  # guesses granted without asking for their worth, in a round that tries the draft
        self._most = LONGEST_DRAFT  # guesses that may be lost in this round
        self._light = False  # a token is so cheap that looking for guesses shows
        self._resting = False  # nobody looks in this round
        self._timing = 0  # rounds from the next on in which plain decoding is timed, too
        self._stale = False  # it is to be timed in this one
        self._emitted = 1  # tokens of the last round
        self._idle = 0  # rounds in which the draft model need not be asked

    def looks(self) -> bool:
        """Returns whether to look for guesses in this round.

        Where tokens are cheap, looking pauses for some rounds, and while plain decoding is timed.
        """
        watch, costs = self.record.watch, self._batch.costs
        longest = costs.longest_rest
        if longest and not self._resting:
            watch.note(self._guesser != "plain")
        self._light = costs.light
        if watch.left > longest:  # looking shows less than that, or the machine has become slower
            watch.left = longest
        if watch.left:
            watch.left -= 1
            self._resting = True
        else:
            after = TUNING.refresh if costs.timed else TUNING.fresh
            self._resting = self._light and self._due(self.record.since_plain >= after)
        return not self._resting

    def drafts(self) -> bool:
        """The model is not asked while the answer is known: that takes half a millisecond."""
        if self._idle:
            self._idle -= 1
            return False
        return True

    @property
    def usual(self) -> int:
        return max(2, self._emitted) if self._batch.costs.rereads else 2

    def enter(self, batch: BatchPlan, slot: int) -> None:
        self._batch, self._slot = batch, slot
        if batch.streams != self._streams:
            self._streams, self.record, self._idle = batch.streams, self._records(batch.streams), 0
        slowness = batch.costs.target.slowness
        self.record.take_up(slowness.floor)
        self._guesser, self._gain = "plain", 1.0
        if not self._resting:
            self._stale = not self._light and self._due(
                self.record.stale(batch.costs.settling) or slowness.asks
            )
            batch.weigh()

    def window(self, lag: int) -> int:
        """Reads all if that is affordable; else what is, so that a draft can show its worth."""
        if lag <= TUNING.trial:
            return lag
        token = self._batch.costs.draft.seconds(lag) / lag / self._batch.one
        batch = self._batch
        cost = round_costs(batch.prices_for(self._slot), batch.step(), batch.once())
        trial = 0.0 if cheapest_try(cost) > TUNING.dear else self.record.budget / 4
        most = int(max(self._worth_reading(), trial) / token)
        return min(lag, max(most, TUNING.trial))

    def _worth_reading(self) -> float:
        """Returns the token times that the draft may spend on reading: half of what it should save."""
        return min(self._left, TUNING.horizon) * (1 - 1 / self.record.model.over(1.0)) / 2

    def grants_step(self, ask: Ask, lag: int) -> bool:
        n = len(ask.tail)
        if ask.rows and not n:
            return self._grants_model(ask, lag)
        if n >= self._most:
            return False
        return n < self._trial or self._pays(n, ask.reach, free=not ask.rows)

    def _due(self, again: bool) -> bool:
        """Returns whether to time plain decoding in this round: once if `again`, behind those that settle."""
        if self._timing:
            self._timing -= 1
            return True
        self._timing = self._batch.costs.settling if again else 0
        return again

    def _grants_model(self, ask: Ask, lag: int) -> bool:
        """Decides between the draft model, the free guess, and none."""
        prices, step, once = self._batch.prices_for(self._slot), self._batch.step(), self._batch.once()
        one = float(prices[1])  # what is kept in the record is no numpy scalar
        draft, evaluation = self._batch.costs.draft, self._batch.evaluation()
        saved = step if lag == 0 else 0.0  # what was read ahead costs nothing now
        if self._batch.costs.rereads and 1 < lag <= self.usual:
            saved = evaluation - draft.seconds(lag, self._batch.n_ctx)
        saved -= once
        planned, _ = best_length(ask.reach, prices, step, saved)
        instead = max(1.0, best_length(ask.otherwise, prices, 0.0)[0])
        gain = self.record.model.over(planned)
        worth_it = gain > instead
        if not worth_it and (instead > 1 or self.record.since_plain):
            return False  # drafts are tried if there is no better guess, and plain decoding was just timed
        if (
            self._light
            and not worth_it
            and min(self.record.budget, self.record.trying) < self.record.try_costs
        ):
            return False  # looking closer takes noticeable time
        reading = 0.0
        if lag > self.usual:  # with what the others read, in one evaluation
            together = self._batch.together
            reading = max(0.0, draft.seconds(lag * together) / together - evaluation) / one
        reading = reading if not worth_it or reading > self._worth_reading() else 0.0
        cost = round_costs(prices, step, once)
        cheapest = cheapest_try(cost)
        if cheapest == math.inf:
            self._idle = TUNING.longest_idle
            return False
        if not worth_it and cheapest > TUNING.dear:
            return self._may_guess_silently(evaluation / one, reading)
        # Where a second token costs most, drafts of one guess lose even if they are right. What the
        # cheapest useful length may lose is saved up for.
        self.record.try_costs = cheapest + reading
        self.record.saving = max(TUNING.start, self.record.try_costs)
        budget = self.record.budget if worth_it else min(self.record.budget, self.record.trying)
        self._most = affordable(cost, reading, budget / (1 + self._batch.tries))
        lengths = LENGTHS[: self._most][can_pay(cost)[: self._most]]
        self._trial = 0
        if not worth_it and lengths.size:
            reach = (*ask.reach, *(0.0,) * LONGEST_DRAFT)[:LONGEST_DRAFT]
            self._trial = int(lengths[gains(reach, prices, step, -once)[lengths - 1].argmax()])
        self._planned = float(gain)
        return lengths.size > 0 and not self._stale

    def _may_guess_silently(self, step: float, reading: float) -> bool:
        """Returns whether the draft may guess one unverified token, which shows its worth cheaply.

        step, reading: token times that this takes, and what is read before. That pays for some guesses only.
        """
        self._most = self._trial = 0
        cost = reading + TUNING.silent_guesses * step if reading else step
        missing = cost * (1 + self._batch.tries) - self.record.saved
        if missing > 0:
            self._idle = min(int(missing / TUNING.silent_share), TUNING.longest_idle)
        return missing <= 0 and not self._stale

    def _pays(self, n: int, reach: Reach, *, free: bool) -> bool:
        """Returns whether one guess more than `n` is worth its time, alone or with those it makes possible.

        free: it was evaluated already, and only needs verification.
        """
        prices, step = self._batch.prices_for(self._slot), self._batch.step()
        rate = max(1.0, self.record.all.over(self._planned)) / prices[1]
        worth, cost = 0.0, -step if free else 0.0
        for m, counts in enumerate(reach[: min(TUNING.ahead, LONGEST_DRAFT - n)], 1):
            worth += counts
            cost += step
            if worth >= rate * (cost + prices[n + 1 + m] - prices[n + 1]):
                return True
        return False

    def drafted(self) -> None:
        if self._most:
            self._guesser, self._gain = "model", self._planned
        else:
            self.record.guessed_silently(self._batch.evaluation() / self._batch.one)

    def read(self, seconds: float) -> None:
        self.record.lost += seconds / self._batch.one

    def offer(self, ask: Ask) -> tuple[int, Reach]:
        if self._stale:
            return 0, ()
        prices, sure = self._batch.prices_for(self._slot), sum(worth >= TUNING.sure for worth in ask.reach)
        risked = affordable(prices[1:] / prices[1], 0.0, 2 * self.record.free_budget)
        return 0, ask.reach[: max(risked, sure)]  # reach falls along an offer

    def took(self, guesses: int, gain: float) -> None:
        if guesses:
            self._guesser, self._gain = "free", gain

    def rewound(self, seconds: float) -> None:
        again = seconds / self._batch.one
        self.record.model.add(0.0, again)
        self.record.lost += again

    def observe(self, round_: Round, seconds: float) -> float:
        record, by, tokens = self.record, self._guesser, round_.accepted + 1
        self._left -= tokens
        self._emitted = tokens
        record.emitted += tokens
        record.trying = min(record.saving, record.trying + TUNING.share * tokens)
        record.since_plain = 0 if by == "plain" else record.since_plain + tokens
        if seconds <= 0:
            return self._gain
        cost = seconds / self._batch.one
        record.all.add(tokens, cost)
        if by == "model":
            record.model.add(tokens, cost)
            record.charge(cost - tokens)
            if self._trial:
                record.trying = max(-TUNING.start, record.trying + tokens - cost)
        elif by == "free":
            record.free_lost = max(-TUNING.credit, record.free_lost + cost - tokens)
        return self._gain
