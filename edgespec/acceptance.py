"""How likely a guess is to be accepted: learned from what became of earlier ones.

A drafter says how sure it is of each token; how often such tokens were accepted is counted here, so that
guesses of every kind come to the same currency. Old counts fade, because texts change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

BINS = 10
FADE = 0.98  # of the weight of an observation, with each that follows in its bin
PRIOR_WEIGHT = 2.0  # observations that the assumption is worth


@dataclass(slots=True)
class Odds:
    """Acceptance by confidence, in BINS equal bins; `assumed` is what each says until something is known."""

    assumed: tuple[float, ...]
    accepted: list[float] = field(default_factory=lambda: [0.0] * BINS)
    seen: list[float] = field(default_factory=lambda: [0.0] * BINS)

    def of(self, confidence: float) -> float:
        """Returns the probability that a guess of this confidence is accepted, given that it is reached."""
        return self.of_bin(bin_of(confidence))

    def of_bin(self, i: int) -> float:
        """Returns the same for a bin."""
        return (self.accepted[i] + PRIOR_WEIGHT * self.assumed[i]) / (self.seen[i] + PRIOR_WEIGHT)

    def onward(self, n: int) -> list[float]:
        """Returns the probability of each of the first `n` bins and on, the last for all that follow.

        Each is thought to be like all together until it is known: places in a draft are much alike.
        """
        alike = (sum(self.accepted) + PRIOR_WEIGHT * self.assumed[0]) / (sum(self.seen) + PRIOR_WEIGHT)
        known = zip(self.accepted[:n], self.seen[:n], strict=True)
        out = [(accepted + PRIOR_WEIGHT * alike) / (seen + PRIOR_WEIGHT) for accepted, seen in known]
        return out + (out or [alike])[-1:] * (n - len(out))

    def note(self, confidence: float, accepted: bool) -> None:
        """Counts what became of one guess that was reached."""
        self.note_bin(bin_of(confidence), accepted)

    def note_bin(self, i: int, accepted: bool) -> None:
        """Counts the same for a bin."""
        self.accepted[i] = FADE * self.accepted[i] + accepted
        self.seen[i] = FADE * self.seen[i] + 1.0


def bin_of(confidence: float) -> int:
    """Returns the bin of a confidence in [0, 1]."""
    return min(int(confidence * BINS), BINS - 1)


def proportional(low: float, high: float) -> Odds:
    """Returns odds that at first rise evenly from `low` to `high` with the confidence."""
    step = (high - low) / BINS
    return Odds(tuple(low + step * (i + 0.5) for i in range(BINS)))
