"""What drafts have gained and lost so far, and what they may still lose."""

from dataclasses import dataclass, field

from edgespec.core.pace.tuning import TUNING

QUIETER = 0.85  # of the known floor: a machine this much quieter makes old records doubtful
KEPT_SHARE = 0.125  # of the gains of a record that are kept then


@dataclass(slots=True)
class Gain:
    """Tokens a token time, over the last rounds."""

    tokens: float = 0.0
    cost: float = 0.0

    def add(self, tokens: float, cost: float) -> None:
        self.tokens = TUNING.fade * self.tokens + tokens
        self.cost = TUNING.fade * self.cost + cost

    def over(self, expected: float) -> float:
        """Returns the gain, with `expected` counting as some rounds of the cost of one token."""
        return (self.tokens + TUNING.prior_rounds * expected) / (self.cost + TUNING.prior_rounds)


@dataclass(slots=True)
class Watch:
    """How often streams look for guesses if that takes a noticeable part of a cheap token's time.

    If none was worth its rows for some rounds, nobody looks for some more; then again, and more rarely
    each time.
    """

    looked: int = 0  # rounds in a row with looking and without a guess
    left: int = 0  # rounds without looking to come
    rest: int = TUNING.rest  # how many these will be at first, or next

    def note(self, guessed: bool) -> None:
        """Counts a round with looking."""
        if guessed:
            self.looked, self.rest = 0, TUNING.rest
            return
        self.looked += 1
        if self.looked >= TUNING.look:
            self.looked, self.left = 0, self.rest
            self.rest = min(2 * self.rest, TUNING.longest_rest)


@dataclass(slots=True)
class Record:
    """The record of one pair for one kind of request, at so many streams. Outlives requests.

    What may be spent on drafts that are not expected to pay is refilled by a share of the tokens, up to
    `saving`, so that a draft that has turned bad is not tried time after time for all that it had gained.
    """

    model: Gain = field(default_factory=Gain)  # of rounds in which the draft model guessed
    all: Gain = field(default_factory=Gain)  # of every round
    lost: float = 0.0  # token times that the draft model lost, balanced against its gains
    free_lost: float = 0.0  # the same of free guesses
    emitted: int = 0  # tokens
    since_plain: int = 0  # tokens since plain decoding was last seen
    trying: float = TUNING.start  # token times that may be spent on drafts that are not expected to pay
    saving: float = TUNING.start  # the limit of `trying`: what one try costs, if that is more
    # token times that the cheapest useful draft may lose, as last seen; not saved
    try_costs: float = field(default=0.0, repr=False, compare=False)
    watch: Watch = field(default_factory=Watch, repr=False, compare=False)  # not saved
    # the slowness floor when it was last used; not saved
    _floor: float | None = field(default=None, repr=False, compare=False)

    def take_up(self, floor: float | None) -> None:
        """Begins a round. What was recorded before the machine became this quiet is mostly forgotten.

        Draft and plain decoding were compared at other costs. floor: that of `Slowness`.
        """
        known = self._floor
        if known is None or floor is None or floor > known:
            self._floor = floor
        elif floor < QUIETER * known:
            self._floor = floor
            for gain in (self.model, self.all):
                gain.tokens, gain.cost = KEPT_SHARE * gain.tokens, KEPT_SHARE * gain.cost
            self.lost = min(self.lost, TUNING.share * self.emitted)
            self.free_lost = min(self.free_lost, TUNING.free_share * self.emitted)
            self.trying = max(self.trying, TUNING.start)

    def charge(self, lost: float) -> None:
        """Counts token times that the draft model lost; negative: gained.

        A draft that has paid lately owes no more than it may lose: anything beyond was a slow moment,
        and would shut it out for hundreds of tokens.
        """
        self.lost = max(-TUNING.credit, self.lost + lost)
        if self.model.over(1.0) > 1:
            self.lost = min(self.lost, TUNING.start + TUNING.share * self.emitted)

    def guessed_silently(self, cost: float) -> None:
        """Counts an unverified guess."""
        self.lost += cost
        self.trying -= cost
        self.model.add(0.0, 0.0)  # earlier rounds are older now

    @property
    def saved(self) -> float:
        """Token times that unverified guesses may take."""
        return min(TUNING.silent_start + TUNING.silent_share * self.emitted - self.lost, self.trying)

    @property
    def budget(self) -> float:
        """Token times that trying the draft model may still lose."""
        return TUNING.start + TUNING.share * self.emitted - self.lost

    @property
    def free_budget(self) -> float:
        """Token times that free guesses may still lose."""
        return TUNING.free_start + TUNING.free_share * self.emitted - self.free_lost

    def stale(self, settling: int) -> bool:
        """Returns whether plain decoding should be timed again; that may cost a hundredth of the speed.

        settling: rounds that come before the one that shows what it costs.
        """
        soonest, latest = TUNING.fresh, TUNING.refresh
        usual = min(max(soonest, 100 * (self.all.over(1.0) - 1)), latest)
        return self.since_plain >= (1 + settling) * usual


@dataclass(slots=True)
class Trust:
    """How far expected gains of free guesses came true, at one number of streams. Fades.

    Odds and prices are estimates, and the best of many is the one most overestimated; this limits the
    loss.
    """

    expected: float = 0.0
    found: float = 0.0

    @property
    def factor(self) -> float:
        """The factor for an expected gain."""
        return min(1.0, (self.found + TUNING.trust_prior) / (self.expected + TUNING.trust_prior))

    def note(self, expected: float, found: float) -> None:
        """Counts a step that took offers."""
        self.expected = TUNING.trust_fade * self.expected + expected
        self.found = TUNING.trust_fade * self.found + max(found, expected / TUNING.trust_leap)

    def rest(self) -> None:
        """Counts a step that took none, so that they are tried again some day."""
        self.expected *= TUNING.trust_rest
        self.found *= TUNING.trust_rest
