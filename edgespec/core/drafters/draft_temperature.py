"""How warm a draft should guess: the temperature at which most of its guesses are accepted.

Exact verification accepts a sampled guess with probability 1 - TV(p, q) = sum min(p, q) (Leviathan et
al., 2211.17192, section 3.3), whatever q is; so q may be sharpened or flattened freely. This corrects a
draft that is too sure of itself, or not sure enough. What comparing samples would accept (the target
draws, the guess is the draft's likeliest token) is recorded too.
"""

from dataclasses import dataclass, field

import numpy as np

from edgespec.sampling.sampler import Distribution

FACTORS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5)  # times the target's temperature
UNCHANGED = FACTORS.index(1.0)
FADE = 0.99  # weight of earlier positions, with each new one
ENOUGH = 20.0  # positions before anything is changed
BETTER = 0.01  # acceptance that a change must promise
SLIGHT = 1e-4  # probabilities below this are ignored; this only affects the choice of a temperature
MOST_OF_IT = 0.5  # of a draft's probability that must be left then: at high temperatures all are slight


@dataclass(slots=True)
class DraftTemperature:
    """Learns which of FACTORS suits a draft. `chosen` is an index into them."""

    chosen: int = UNCHANGED
    overlap: list[float] = field(default_factory=lambda: [0.0] * len(FACTORS))  # faded sums of 1 - TV
    compared: float = 0.0  # the same of p(the draft's likeliest token)
    seen: float = 0.0

    @property
    def factor(self) -> float:
        return FACTORS[self.chosen]

    def acceptance(self) -> tuple[float, float] | None:
        """Returns the average acceptance at a position: by exact verification, by comparing samples."""
        return (self.overlap[self.chosen] / self.seen, self.compared / self.seen) if self.seen else None

    def learn(self, p: Distribution, q: Distribution) -> None:
        """Learns from one position; q was made at the chosen factor.

        Point masses teach nothing, nor does what is nearly flat.
        """
        if p.likeliest()[1] == 1.0 or q.likeliest()[1] == 1.0:
            return
        likely = q.probs > SLIGHT
        ids, probs = q.ids[likely], q.probs[likely]
        if probs.sum() < MOST_OF_IT:
            return
        log_q = np.log(probs)
        target = p.on(ids)
        for i, factor in enumerate(FACTORS):
            weights = np.exp(log_q * (self.factor / factor))
            weights /= weights.sum()
            self.overlap[i] = FADE * self.overlap[i] + float(np.minimum(target, weights).sum())
        self.compared = FADE * self.compared + float(target[log_q.argmax()])
        self.seen = FADE * self.seen + 1.0
        best = max(range(len(FACTORS)), key=self.overlap.__getitem__)
        if self.seen > ENOUGH and self.overlap[best] > self.overlap[self.chosen] + BETTER * self.seen:
            self.chosen = best
