"""Samples -> figures. Pure arithmetic; the definitions are those of `stats`, and these:

- TPOT percentiles: every token after the first counts once, with its round's seconds / its round's tokens;
- speed-up of a prompt: the ratio of two decode speeds (first token excluded) on that prompt and seed, the
  median where it was repeated; of all prompts: the geometric mean of these;
- its 95 % interval: Student's t on the logarithms, one value a prompt, from three values on. With a single
  prompt its repeats are the values, and the interval says nothing about other prompts;
- tok/s of a line: the same way, so that the ratio of two is the speed-up: the median over the repeats of a
  prompt, the geometric mean over prompts.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

FEWEST_VALUES = 3  # for an interval
FEWEST_STEPS = 4  # tokens after the first that a decode speed must rest on
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One evaluation of the target. gain: the speed-up that the controller expected of it."""

    seconds: float
    tokens: int
    drafted: int
    accepted: int
    sources: tuple[str, ...]
    gain: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation, measured."""

    unit: int
    mode: str
    line: str
    prompt: str
    kind: str
    seed: int
    n_tokens: int
    prompt_tokens: int
    ttft_s: float | None
    steps: int  # tokens after the first, on which decode_s was spent
    decode_s: float
    wall_s: float
    drafted: int
    accepted: int
    seconds: dict[str, float] | None  # where decode_s went; None if another program does not report it
    rounds: tuple[RoundRecord, ...]
    finish_reason: str | None
    text: str

    @property
    def tok_per_s(self) -> float | None:
        """The decode speed; None if there are too few tokens for one."""
        return self.steps / self.decode_s if self.steps >= FEWEST_STEPS and self.decode_s > 0 else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of speeds, its 95 % interval (None: too few values), and how many values it rests on."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one line; None if there is nothing to divide, or it is not reported."""

    mode: str
    line: str
    n: int
    tok_per_s: float | None
    ttft_s: float | None
    tpot_s: tuple[float, float, float] | None  # p50, p90, p99
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    acceptance_by_position: tuple[float, ...]
    reached_by_position: tuple[int, ...]
    seconds: dict[str, float] | None
    sources: dict[str, int]
    speedup: Ratio | None


def summary(samples: Iterable[Sample], mode: str, line: str, base: str) -> Summary:
    """Returns the figures of one line; its speed-up is over the line `base`."""
    everything = [sample for sample in samples if sample.mode == mode]
    mine = [sample for sample in everything if sample.line == line]
    rounds = [round_ for sample in mine for round_ in sample.rounds]
    judged = [round_ for round_ in rounds if round_.drafted]
    drafted, accepted = sum(s.drafted for s in mine), sum(s.accepted for s in mine)
    reached, stayed = _positions(judged)
    return Summary(
        mode=mode,
        line=line,
        n=len(mine),
        tok_per_s=_typical((sample.prompt, sample.tok_per_s) for sample in mine),
        ttft_s=_median(sample.ttft_s for sample in mine),
        tpot_s=tpot_percentiles(mine),
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_accepted_length=1 + sum(r.accepted for r in judged) / len(judged) if judged else None,
        acceptance_by_position=tuple(s / r for s, r in zip(stayed, reached, strict=True)),
        reached_by_position=tuple(reached),
        seconds=_added(sample.seconds for sample in mine),
        sources=dict(Counter(source for round_ in rounds for source in round_.sources)),
        speedup=None if line == base else speedup(everything, line, base),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _typical(speeds: Iterable[tuple[str, float | None]]) -> float | None:
    typical = combine([(prompt, speed) for prompt, speed in speeds if speed])
    return typical.value if typical else None


def tpot_percentiles(samples: Iterable[Sample]) -> tuple[float, float, float] | None:
    """Returns p50, p90 and p99 of the seconds a token; None if no rounds are known."""
    each = [
        round_.seconds / round_.tokens
        for sample in samples
        for round_ in sample.rounds[1:]  # the first includes the prompt
        for _ in range(round_.tokens)
    ]
    if not each:
        return None
    p50, p90, p99 = np.percentile(each, (50, 90, 99)).tolist()
    return p50, p90, p99


def _positions(judged: Sequence[RoundRecord]) -> tuple[list[int], list[int]]:
    """Counts for each draft position how often it was reached, and how often it was accepted."""
    deepest = max((min(r.drafted, r.accepted + 1) for r in judged), default=0)
    reached = [sum(i < min(r.drafted, r.accepted + 1) for r in judged) for i in range(deepest)]
    stayed = [sum(i < r.accepted for r in judged) for i in range(deepest)]
    return reached, stayed


def _added(shares: Iterable[dict[str, float] | None]) -> dict[str, float] | None:
    known = [share for share in shares if share is not None]
    return {name: sum(share[name] for share in known) for name in known[0]} if known else None


# ---- ratios -----------------------------------------------------------------------------------------------


def speedup(samples: Sequence[Sample], line: str, base: str, kind: str | None = None) -> Ratio | None:
    """Returns the speed of `line` over that of `base`, paired by unit; None if no pair has speeds."""
    mine = [sample for sample in samples if kind is None or sample.kind == kind]
    under = {(s.mode, s.unit): s.tok_per_s for s in mine if s.line == base}
    pairs = []
    for sample in mine:
        speed, plain = sample.tok_per_s, under.get((sample.mode, sample.unit))
        if sample.line == line and speed and plain:
            pairs.append((sample.prompt, speed / plain))
    return combine(pairs)


def combine(pairs: Sequence[tuple[str, float]]) -> Ratio | None:
    """Combines (prompt, ratio) pairs: median within a prompt, geometric mean and t interval over prompts."""
    of_prompt: dict[str, list[float]] = {}
    for prompt, value in pairs:
        of_prompt.setdefault(prompt, []).append(value)
    values = [statistics.median(group) for group in of_prompt.values()]
    if len(of_prompt) == 1:
        values = next(iter(of_prompt.values()))
    if not values:
        return None
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    if len(logs) < FEWEST_VALUES:
        return Ratio(math.exp(middle), None, None, len(logs))
    half = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs))


def student(freedom: int) -> float:
    """Returns Student's t at 97.5 %: a table, then its expansion (right to 0.001 from 16 degrees on)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


@dataclass(frozen=True, slots=True)
class Contest:
    """One line against the best of several. chosen: the winner of each half of the units."""

    mode: str
    line: str
    chosen: tuple[str, str]
    ratio: Ratio


def against_best(
    samples: Sequence[Sample], mode: str, line: str, candidates: Sequence[str]
) -> Contest | None:
    """Compares `line` with the best of `candidates`: chosen on one half of the units, compared on the other,
    and the other way round. A winner compared on the units that chose it would be flattered by luck.

    None with fewer than two units in which all of them have a speed.
    """
    speeds: dict[int, dict[str, float]] = {}
    prompts: dict[int, str] = {}
    for sample in samples:
        if sample.mode == mode and sample.tok_per_s:
            speeds.setdefault(sample.unit, {})[sample.line] = math.log(sample.tok_per_s)
            prompts[sample.unit] = sample.prompt
    full = [unit for unit, of in sorted(speeds.items()) if {line, *candidates} <= of.keys()]
    halves = full[::2], full[1::2]
    if not candidates or not all(halves):
        return None
    pairs, chosen = [], []
    for half, other in (halves, halves[::-1]):
        best = max(candidates, key=lambda name: statistics.fmean(speeds[unit][name] for unit in half))
        chosen.append(best)
        pairs += [(prompts[unit], math.exp(speeds[unit][line] - speeds[unit][best])) for unit in other]
    ratio = combine(pairs)
    assert ratio is not None
    return Contest(mode, line, (chosen[0], chosen[1]), ratio)
