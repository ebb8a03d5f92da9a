"""What drafts have brought and lost so far, and what they may still lose."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.pace.tuning import TUNING


@dataclass(slots=True)
class Gain:
    """Tokens a token time, over the last rounds."""

    tokens: float = 0.0
    cost: float = 0.0

    def add(self, tokens: float, cost: float) -> None:
        self.tokens = TUNING.fade * self.tokens + tokens
        self.cost = TUNING.fade * self.cost + cost

    def over(self, expected: float) -> float:
        """Returns the gain, `expected` counting as some rounds of the cost of one token."""
        return (self.tokens + TUNING.prior_rounds * expected) / (self.cost + TUNING.prior_rounds)


@dataclass(slots=True)
class Watch:
    """How often streams look for guesses where that takes a part of a cheap token's time.

    Where none was worth its rows for some rounds, nobody looks for some more; then again, and more rarely
    each time.
    """

    looked: int = 0  # rounds in a row in which somebody did, and no guess was made
    left: int = 0  # rounds in which nobody will
    rest: int = TUNING.rest  # how many these will be at first, or next

    def note(self, guessed: bool, longest: int = TUNING.longest_rest) -> None:
        """Takes note of a round in which somebody looked. longest: rounds that a rest may have."""
        if guessed:
            self.looked, self.rest = 0, TUNING.rest
            return
        self.looked += 1
        if self.looked >= TUNING.look:
            self.looked, self.left = 0, min(self.rest, longest)
            self.rest = min(2 * self.rest, TUNING.longest_rest)


@dataclass(slots=True)
class Record:
    """What one pair has shown at one kind of request, among so many streams. Outlives requests.

    What may be spent on drafts that are not expected to pay comes back by a share of the tokens, up to
    `saving`, so that a draft which has turned bad is not tried time after time for all that it had brought.
    """

    model: Gain = field(default_factory=Gain)  # of rounds in which the draft model guessed
    all: Gain = field(default_factory=Gain)  # of every round
    lost: float = 0.0  # token times that the draft model cost more than it brought, or less
    free_lost: float = 0.0  # the same of free guesses
    emitted: int = 0  # tokens
    since_plain: int = 0  # tokens since plain decoding was last seen
    trying: float = TUNING.start  # token times that may be spent on drafts that are not expected to pay
    saving: float = TUNING.start  # what `trying` grows to: what one try costs, where that is more
    # token times that the cheapest draft which can pay may lose, as last seen; kept for no other start
    try_costs: float = field(default=0.0, repr=False, compare=False)
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)  # kept for no other start

    def charge(self, lost: float) -> None:
        """Takes note of token times that the draft model lost; negative: won.

        A draft that has paid lately owes no more than it may lose: what was beyond that was a slow moment,
        and would shut it out for hundreds of tokens.
        """
        self.lost = max(-TUNING.credit, self.lost + lost)
        if self.model.over(1.0) > 1:
            self.lost = min(self.lost, TUNING.start + TUNING.share * self.emitted)

    def guessed_silently(self, cost: float) -> None:
        """Takes note of a guess that was made and is not verified."""
        self.lost += cost
        self.trying -= cost
        self.model.add(0.0, 0.0)  # what earlier rounds say is older now

    @property
    def saved(self) -> float:
        """Token times that guesses may take which are not verified."""
        return min(TUNING.silent_start + TUNING.silent_share * self.emitted - self.lost, self.trying)

    @property
    def budget(self) -> float:
        """Token times that trying the draft model may still lose."""
        return TUNING.start + TUNING.share * self.emitted - self.lost

    @property
    def free_budget(self) -> float:
        """Token times that free guesses may still lose."""
        return TUNING.free_start + TUNING.free_share * self.emitted - self.free_lost

    @property
    def stale(self) -> bool:
        """True where plain decoding is to be timed again; that may cost a hundredth of the speed."""
        soonest, latest = TUNING.fresh, TUNING.refresh
        return self.since_plain >= min(max(soonest, 100 * (self.all.over(1.0) - 1)), latest)


@dataclass(slots=True)
class Trust:
    """How far expected gains of free guesses came true, among one number of streams. What it says fades.

    Odds and prices are estimates, and the best of many is the one most overestimated; this bounds what
    that costs.
    """

    expected: float = 0.0
    found: float = 0.0

    @property
    def factor(self) -> float:
        """What an expected gain is to be multiplied with."""
        return min(1.0, (self.found + TUNING.trust_prior) / (self.expected + TUNING.trust_prior))

    def note(self, expected: float, found: float) -> None:
        """Takes note of a step that took offers."""
        self.expected = TUNING.trust_fade * self.expected + expected
        self.found = TUNING.trust_fade * self.found + max(found, expected / TUNING.leap)

    def rest(self) -> None:
        """Takes note of a step that took none, so that they are tried again some day."""
        self.expected *= TUNING.trust_rest
        self.found *= TUNING.trust_rest
