"""How likely a guess is to be accepted: learned from earlier ones.

A drafter says how sure it is of each token; this counts how often such tokens were accepted, so that
guesses of every kind become comparable. Old counts fade, because texts change.
"""

import math
from dataclasses import dataclass, field

BINS = 10
FADE = 0.98  # of the weight of an observation, with each that follows in its bin
FADE_SILENT = 0.93  # the same for unverified guesses, which are few and far between
FADE_RESTING = 0.96  # of what is known of places in a draft, with each draft that ends before them
PRIOR_WEIGHT = 2.0  # observations that the assumption is worth
STIFFNESS = 2.0  # of the assumption as a whole: the larger, the more it takes to shift it
MOST_SHIFT = 3.0  # of all assumptions together, in units of log-odds


@dataclass(slots=True)
class Odds:
    """Acceptance by confidence, in BINS equal bins: 0 to 0.1, 0.1 to 0.2, and so on.

    What is seen in some bins shifts the assumption of all, in log-odds. Else guesses of a confidence that
    is never tried would count as bad for ever: a draft at temperature 1 is seldom sure of itself, and
    yet right if it is as unsure as the target.
    """

    assumed: tuple[float, ...]  # the acceptance of each bin until something is known
    accepted: list[float] = field(default_factory=lambda: [0.0] * BINS)
    seen: list[float] = field(default_factory=lambda: [0.0] * BINS)
    _off: list[float] = field(init=False, repr=False, compare=False)  # accepted more than assumed, by bin
    _weight: list[float] = field(init=False, repr=False, compare=False)  # the weight of that, by bin
    _found: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)  # by bin

    def __post_init__(self) -> None:
        self._off, self._weight = [0.0] * BINS, [0.0] * BINS
        for i in range(BINS):
            self._compare(i)

    def _compare(self, i: int) -> None:
        """Notes how far off a bin's assumption is."""
        assumed, seen = self.assumed[i], self.seen[i]
        self._off[i] = self.accepted[i] - seen * assumed
        self._weight[i] = seen * assumed * (1 - assumed)
        self._found.clear()

    def of(self, confidence: float) -> float:
        """Returns the probability that a guess of this confidence is accepted, given that it is reached."""
        i = bin_of(confidence)
        found = self._found.get(i)
        return self.of_bin(i) if found is None else found

    def of_bin(self, i: int) -> float:
        """Returns the same for a bin."""
        assumed = self._assumed(i)
        found = (self.accepted[i] + PRIOR_WEIGHT * assumed) / (self.seen[i] + PRIOR_WEIGHT)
        self._found[i] = found  # asked for several times in a round
        return found

    def _assumed(self, i: int) -> float:
        """Returns the assumption of a bin, shifted by what the other bins have shown.

        One step of Newton's from no shift towards the likeliest.
        """
        assumed = self.assumed[i]
        off, weight = sum(self._off) - self._off[i], sum(self._weight) - self._weight[i]
        if not 0 < assumed < 1 or not weight:
            return assumed
        shift = max(-MOST_SHIFT, min(off / (STIFFNESS + weight), MOST_SHIFT))
        odds = math.exp(shift) * assumed / (1 - assumed)
        return odds / (1 + odds)

    def onward(self, n: int) -> list[float]:
        """Returns the probability of each of the first `n` bins and on, the last for all that follow.

        Each is taken to be like all together until it is known: positions in a draft are much alike.
        """
        alike = (sum(self.accepted) + PRIOR_WEIGHT * self.assumed[0]) / (sum(self.seen) + PRIOR_WEIGHT)
        known = zip(self.accepted[:n], self.seen[:n], strict=True)
        out = [(accepted + PRIOR_WEIGHT * alike) / (seen + PRIOR_WEIGHT) for accepted, seen in known]
        return out + (out or [alike])[-1:] * (n - len(out))

    def note(self, confidence: float, accepted: float, *, fade: float = FADE) -> None:
        """Counts the result of one guess that was reached, or its probability of acceptance."""
        self.note_bin(bin_of(confidence), accepted, fade=fade)

    def note_bin(self, i: int, accepted: float, *, fade: float = FADE) -> None:
        """Counts the same for a bin."""
        self.accepted[i] = fade * self.accepted[i] + accepted
        self.seen[i] = fade * self.seen[i] + 1.0
        self._compare(i)

    def rest(self, first: int) -> None:
        """Lets what is known of the bins from `first` on fade: they were not tried."""
        for i in range(first, BINS):
            self.accepted[i] *= FADE_RESTING
            self.seen[i] *= FADE_RESTING
            self._compare(i)


def bin_of(confidence: float) -> int:
    """Returns the bin of a confidence in [0, 1]."""
    return min(int(confidence * BINS), BINS - 1)


def proportional(low: float, high: float) -> Odds:
    """Returns odds that at first rise evenly from `low` to `high` with the confidence."""
    step = (high - low) / BINS
    return Odds(tuple(low + step * (i + 0.5) for i in range(BINS)))
