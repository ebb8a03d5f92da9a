"""Streams of acceptances on a virtual clock: the real loop, engine, drafter and controller, without models.

A stream says for each position of a text how sure the draft is there and whether its guess would be right.
Right guesses are token 0, wrong ones token 1, and the text is all zeros. Evaluations take no time: they move
a clock by a table, with some noise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from fakes import OneSequence, rounds_of
from numpy.typing import NDArray

from edgespec.core.drafters import Guesser
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.pace import Pace
from edgespec.core.text import TextRelease
from edgespec.core.values import LONGEST_DRAFT, Draft, ModelName, Round
from edgespec.core.verify import Target, Verdict
from edgespec.engine.experience import Experience
from edgespec.engine.slots import Cache
from edgespec.sampling.sampler import Distribution, Sampler, Sampling, point_mass

LONG = 8192  # positions of a stream
# Milliseconds of n tokens: of a 0.6B F16 and a 1.1B Q4_0 target on two cores (measured), and of what a large
# GPU might take, with its edges at 4/5 and 8/9. On neither CPU are 3 tokens much cheaper than 4.
MACHINES: Mapping[str, Mapping[int, float]] = {
    "memory-bound": {1: 33, 2: 34.5, 3: 35.3, 4: 44.5, 6: 46.9, 8: 56, 12: 76, 16: 100, 32: 200, 48: 300},
    "compute-bound": {1: 30, 2: 48, 3: 72, 4: 63, 5: 80, 6: 95, 8: 132, 12: 190, 16: 250, 32: 490, 48: 720},
    "GPU": {1: 10, 4: 10.5, 5: 11.3, 8: 11.5, 9: 14, 16: 15, 48: 20},
    # the F16 target again, measured in an uneven moment
    "uneven": {1: 30.5, 2: 40.9, 3: 43.3, 4: 58, 6: 53, 8: 85, 12: 89, 16: 105, 24: 160, 48: 320},
    # the Q4_0 target again, where two threads had the two cores to themselves: a second token is the dearest
    # 0.6B Q8_0 on two cores with AVX-512: rows cost in groups of four and eight
    "in groups": {
        1: 15.9,
        2: 38,
        3: 45,
        4: 52,
        5: 72,
        6: 84,
        7: 85,
        8: 62,
        9: 87,
        12: 79,
        13: 107,
        16: 104,
        32: 210,
        48: 310,
    },
    # 8B Q4_0 on an H100, each size again and again (2026-11-26)
    "captured": {1: 3.5, 2: 3.8, 4: 4.45, 8: 6.6, 16: 9.7, 48: 20},
    "two dear": {1: 23.6, 2: 55, 3: 68, 4: 68, 6: 111, 8: 89, 12: 125, 16: 161, 24: 240, 48: 480},
}
DRAFT_STEP, DRAFT_MORE, DRAFT_READ = 0.07, 1.15, 0.12  # of a target's token: a guess; two; each of many


@dataclass
class Stream:
    """confidence[t], and right[t]: would a guess at position t be accepted?"""

    confidence: NDArray[np.float64]
    right: NDArray[np.bool_]


def stream(quality: float | Sequence[float] | NDArray[np.float64], seed: int, *, told: bool = True) -> Stream:
    """Makes a stream whose guesses are right with probability `quality`, on average or at each position.

    told: the draft knows how sure it may be of a guess; otherwise it is always equally sure.
    """
    rng = np.random.default_rng([seed, 77])
    mean = np.resize(np.asarray(quality, np.float64), LONG)
    chance = rng.beta(2 * mean + 1e-9, 2 * (1 - mean) + 1e-9) if told else mean
    sure = 0.05 + 0.9 * chance if told else np.full(LONG, 0.8)
    return Stream(sure, rng.random(LONG) < chance)


class Clock:
    """Seconds that pass only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(OneSequence):
    """A context that holds tokens, answers with positions, and takes the time that a table says."""

    def __init__(self, clock: Clock, seconds: Callable[[int, int], float], noise: float, seed: int) -> None:
        self.clock, self.seconds = clock, seconds
        self.tokens = np.empty(0, np.int32)
        self.evaluated = 0
        self._noise, self._rng = noise, np.random.default_rng([seed, 78])

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        return self.tokens

    def missing(self, want: Want) -> int:
        return self._missing(self._tokens(want), want.rows)

    def _missing(self, tokens: NDArray[np.int32], rows: int) -> int:
        keep = min(self.tokens.size, tokens.size - rows)
        looked_at = max(
            0, keep - 2 * LONGEST_DRAFT
        )  # all zeros before: only guesses are not, and held for a round
        differs = np.flatnonzero(self.tokens[looked_at:keep] != tokens[looked_at:keep])
        return tokens.size - (looked_at + int(differs[0]) if differs.size else keep)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        (want,) = wants
        tokens = self._tokens(want)
        n, end = self._missing(tokens, want.rows) + want.filling, tokens.size
        self.tokens = np.append(tokens, np.ones(want.filling, np.int32))
        self.evaluated += n
        factor = float(np.exp(self._noise * self._rng.standard_normal()))
        self.clock.now += self.seconds(n, self.tokens.size - n) * factor
        rows = np.arange(end - want.rows + 1, end + 1, dtype=np.float32)
        return [np.column_stack((rows, rows))]

    def _tokens(self, want: Want) -> NDArray[np.int32]:
        return np.concatenate((want.tokens, np.array(want.tail, np.int32)))


class Captured(Timed):
    """A card's: the first evaluations of a new size take longer, by a part of one of a single token."""

    settling, dearer = 2, (0.25, 1.0)  # of the target's and the draft's, measured

    def __init__(self, clock: Clock, seconds: Callable[[int, int], float], noise: float, seed: int) -> None:
        super().__init__(clock, seconds, noise, seed)
        self._more = self.dearer[seed % 2] * seconds(1, 0)
        self._size = self._left = 0

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.evaluated
        rows = super().score(wants)
        n = self.evaluated - before
        self._left = self.settling if n != self._size else max(0, self._left - 1)
        self._size = n
        self.clock.now += self._more * (self._left > 0)
        return rows


class Positioned(Sampler):
    """Reads the position from a row, and says how sure the draft is there."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(Sampling(temperature=1, top_p=1, min_p=0), 2)
        self.stream = stream

    def __call__(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()
    ) -> Distribution:
        sure = self.stream.confidence[int(row[0])]
        return Distribution(np.array([0, 1]), np.array([sure, 0.0]))


class Zeros(Sampler):
    """The target's: the text is all zeros."""

    def __init__(self) -> None:
        super().__init__(Sampling(temperature=0), 2)

    def __call__(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()
    ) -> Distribution:
        return point_mass(0)


@dataclass(frozen=True)
class Fate:
    """The rule: what is right stays."""

    stream: Stream

    def draw(self, distribution: Distribution, position: int) -> int:
        return int(not self.stream.right[position])

    def verify(self, draft: Draft, p: Target, position: int) -> Verdict:
        tokens = (*draft.tokens, 1)
        return Verdict(tokens.index(1), 0)


@dataclass
class Played:
    """One request: its rounds, the time of each token, and who evaluated what."""

    rounds: list[Round]
    ended: list[float]  # seconds at the end of each round
    draft_evaluated: int
    target: Timed
    draft: Timed

    @property
    def seconds(self) -> float:
        """Decode time: from the first token to the last."""
        return self.ended[-1] - self.ended[0]

    @property
    def tokens(self) -> int:
        return sum(len(r.tokens) for r in self.rounds[1:])


@dataclass
class Bench:
    """A machine with a pair, and what is known of it; requests follow one another on one clock."""

    machine: str
    noise: float = 0.03
    seed: int = 0
    experience: Experience = field(default_factory=Experience)
    timed: type[Timed] = Timed
    draft_step: float = DRAFT_STEP
    settling: int = 0
    machines: Mapping[str, Mapping[int, float]] = field(default_factory=lambda: MACHINES)

    def __post_init__(self) -> None:
        points = {n: ms / 1000 for n, ms in self.machines[self.machine].items()}
        self.one = points[1]
        step = self.one * self.draft_step
        reading = {1: step, 2: step * DRAFT_MORE, 64: DRAFT_READ * 64 * step}
        self.true = Costs(CostTable(points, slope=0.0), CostTable(reading, slope=0.0))
        self.costs = Costs(CostTable(dict(points)), CostTable(dict(reading)))
        self.costs.target.settling = self.costs.draft.settling = self.settling

    def controller(self, max_tokens: int = 256) -> Controller:
        return Controller(lambda streams: self.experience.record, max_tokens=max_tokens)

    def play(
        self,
        stream: Stream,
        pace: Pace | None = None,
        *,
        n_prompt: int = 8,
        n_tokens: int = 256,
        guessers: Sequence[Guesser] = (),
        watch: Callable[[Round], None] = lambda round_: None,
    ) -> Played:
        """Runs one request with a cold draft; pace None: the controller."""
        clock, known = Clock(), self.experience
        self.seed += 1
        target, draft = (
            self.timed(clock, table.seconds, self.noise, self.seed * 2 + i)
            for i, table in enumerate((self.true.target, self.true.draft))
        )
        sampler = Positioned(stream)
        model = DraftModel(
            sampler, n_ctx=LONG, n_vocab=2, odds=known.model, places=known.places,
            temperature=known.temperature,
        )  # fmt: skip
        pace = pace or self.controller(n_tokens)
        loop = generate(
            np.zeros(n_prompt, np.int32),
            drafter=Competition(guessers, model, looks=pace.looks, drafts=pace.drafts), sampler=Zeros(),
            rule=Fate(stream), text=TextRelease(lambda token: b"a"), limits=Limits(n_tokens, LONG),
        )  # fmt: skip
        played = Played([], [], 0, target, draft)
        contexts: Mapping[ModelName, Cache] = {"target": target, "draft": draft}
        prompt = np.zeros(n_prompt, np.int32)
        for round_ in rounds_of(loop, contexts, pace, prompt, costs=self.costs, clock=clock):
            played.rounds.append(round_)
            played.ended.append(clock())
            watch(round_)
        played.draft_evaluated = draft.evaluated
        return played

    def plain(self, n_tokens: int = 256) -> float:
        """Returns the seconds of plain decoding, from the first token to the last."""
        return (n_tokens - 1) * self.one

    def fixed(self, stream: Stream, k: int, *, n_prompt: int = 8, n_tokens: int = 256) -> float:
        """Returns the same of drafts of k tokens, without noise."""
        wrong = np.flatnonzero(~stream.right).tolist()
        target, draft = lru_cache(self.true.target.seconds), lru_cache(self.true.draft.seconds)
        seconds, at, end = 0.0, n_prompt + 1, n_prompt + n_tokens
        lag = n_prompt + 1
        while at < end:
            length = min(k, end - at - 1)
            accepted = min(length, wrong[bisect_left(wrong, at)] - at if wrong else length)
            if length:
                seconds += draft(lag) + (length - 1) * draft(1)
                lag = 2 if accepted == length else 1
            seconds += target(length + 1)
            at += accepted + 1
        return seconds

    def best_fixed(self, streams: Sequence[Stream], lengths: Sequence[int] = range(17)) -> tuple[int, float]:
        """Returns the fixed length that is fastest over all of these, 0 being plain, and its seconds."""
        found = {
            k: sum(self.fixed(s, k) for s in streams) if k else len(streams) * self.plain() for k in lengths
        }
        k = min(found, key=found.__getitem__)
        return k, found[k]
