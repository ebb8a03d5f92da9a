"""Is a new draft worth having? Its acceptance on held-out prompts, and its speed against the current one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgeSpecError

if TYPE_CHECKING:
    from edgespec.core.request import Request
    from edgespec.core.stats import Statistics
    from edgespec.core.values import DrafterName
    from edgespec.engine.pair import Pair
    from edgespec.measure.figures import Ratio

TEMPERATURES = (0.0, 0.7, 1.0)
LENGTH = 4  # guesses of a round, when acceptance is counted
TOKENS = 64  # of an answer
FEWEST = 3  # prompts that a verdict rests on
PATIENCE = 2.0  # times the intended time, after which an answer is cut short
Prompts = Sequence[Sequence[int]]


def endless(pair: Pair, drafter: DrafterName) -> Request:
    """Returns a greedy request whose answers all have one length."""
    import edgespec

    bias = {token: -math.inf for token in pair.target.end_tokens}
    sampling = edgespec.Sampling(temperature=0.0, logit_bias=bias)
    return edgespec.Request(max_tokens=TOKENS, sampling=sampling, drafter=drafter)


def answer(pair: Pair, prompt: Sequence[int], request: Request, until: float) -> Statistics:
    """Returns the figures of an answer, which ends at a moment of the monotonic clock at the latest."""
    from edgespec.core.stats import Tally
    from edgespec.errors import EngineError

    tally = Tally(pair.busy)
    for round_ in pair.generate(prompt, request, cancelled=lambda: time.monotonic() > until):
        tally.note(round_)
    if tally.notice:
        raise EngineError(tally.notice)
    return tally.statistics(len(prompt))


def in_turn(
    lines: Sequence[tuple[Pair, Request]], prompts: Prompts, seconds: float, on_stage: Callable[[str], None]
) -> list[tuple[Statistics, ...]]:
    """Returns the figures of each line for each prompt that all of them answered, but for the first.

    What is measured and learned on the first is not timed. It ends when the time is over, but not before
    FEWEST prompts; after PATIENCE times the time in any case, with fewer.
    """
    begun = time.monotonic()
    last = begun + PATIENCE * seconds
    found: list[tuple[Statistics, ...]] = []
    for n, prompt in enumerate(prompts):
        on_stage(f"speed: prompt {n + 1} of {len(prompts)}{time_left(begun, seconds, n, len(prompts))} ...")
        turn = [(n + i) % len(lines) for i in range(len(lines))]
        figures = {i: answer(lines[i][0], prompt, lines[i][1], last) for i in turn}
        if time.monotonic() > last:
            break
        if n and all(one.tok_per_s for one in figures.values()):
            found.append(tuple(figures[i] for i in range(len(lines))))
        if len(found) >= FEWEST and time.monotonic() > begun + seconds:
            break
    return found


def time_left(begun: float, seconds: float, done: int, of: int) -> str:
    """Returns how much time is left, in words; "" if nothing is done yet."""
    spent = time.monotonic() - begun
    if not done:
        return ""
    whole = min(max(seconds, spent / done * (FEWEST + 1)), spent / done * of)
    left = max(0.0, whole - spent)
    return f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured of a draft, all on prompts that it was not trained on."""

    accepted: dict[float, float]  # by temperature: of the tokens drafted, four a round
    first: dict[float, float]  # of the first token of each draft
    prompts: int
    speed: float  # tok/s, geometric mean
    over_plain: Ratio
    over_today: Ratio  # over what the target has today: its draft, or guesses from text alone

    @property
    def faster(self) -> bool:
        """Whether it was shown to be, and is no slower than plain decoding, which may beat today's draft."""
        return bool(self.over_today.low and self.over_today.low > 1 and self.over_plain.value >= 1)


def hold_trial(
    target: Path,
    draft: Path,
    today: Path | None,
    prompts: Prompts,
    threads: int | None,
    *,
    seconds: float,
    on_stage: Callable[[str], None],
) -> Trial:
    """Has the new draft answer held-out prompts, then it, the current draft and plain decoding in turn."""
    import edgespec

    settings = edgespec.PairSettings(remember=False, threads=threads)
    on_stage("loading both drafts ...")
    with edgespec.load(target, draft, settings) as new:
        accepted, first, n = _acceptance(new, prompts, seconds / 2, on_stage)
        with edgespec.load(target, today, settings) as old:
            speed, over_plain, over_today = _speeds(new, old, prompts, seconds / 2, on_stage)
    return Trial(accepted, first, n, speed, over_plain, over_today)


def _acceptance(
    pair: Pair, prompts: Prompts, seconds: float, on_stage: Callable[[str], None]
) -> tuple[dict[float, float], dict[float, float], int]:
    import edgespec

    begun = time.monotonic()
    drafted, accepted = dict.fromkeys(TEMPERATURES, 0), dict.fromkeys(TEMPERATURES, 0)
    rounds, hits = dict.fromkeys(TEMPERATURES, 0.0), dict.fromkeys(TEMPERATURES, 0.0)
    done = 0
    for prompt in prompts:
        left = time_left(begun, seconds, done, len(prompts))
        on_stage(f"acceptance: prompt {done + 1} of {len(prompts)}{left}; then as long for speed ...")
        for t in TEMPERATURES:
            request = edgespec.Request(
                max_tokens=TOKENS,
                sampling=edgespec.Sampling(temperature=t),
                drafter="model",
                draft_length=LENGTH,
                rng_seed=len(prompt),
            )
            found = answer(pair, prompt, request, begun + PATIENCE * seconds)
            drafted[t] += found.drafted
            accepted[t] += found.accepted
            if found.acceptance_by_position:
                n = found.drafted / LENGTH
                rounds[t] += n
                hits[t] += n * found.acceptance_by_position[0]
        done += 1
        if done >= FEWEST and time.monotonic() > begun + seconds:
            break
    rate = {t: accepted[t] / max(1, drafted[t]) for t in TEMPERATURES}
    return rate, {t: hits[t] / max(1.0, rounds[t]) for t in TEMPERATURES}, done


def _speeds(
    new: Pair, old: Pair, prompts: Prompts, seconds: float, on_stage: Callable[[str], None]
) -> tuple[float, Ratio, Ratio]:
    from edgespec.measure.figures import combine

    for pair in (new, old):
        pair.costs()
    lines = [(new, endless(new, "auto")), (old, endless(old, "auto")), (old, endless(old, "none"))]
    found = [
        [one.tok_per_s or 0.0 for one in figures] for figures in in_turn(lines, prompts, seconds, on_stage)
    ]
    if len(found) < FEWEST:
        raise EdgeSpecError(
            f"a trial needs {FEWEST + 1} held-out prompts, of which the first is not timed; here "
            f"{len(found)} of {len(prompts)} were timed: give distill more --minutes, or a calmer machine"
        )
    over_plain, over_today = (
        combine([(str(n), speeds[0] / speeds[i]) for n, speeds in enumerate(found)]) for i in (2, 1)
    )
    assert over_plain and over_today
    return math.exp(sum(math.log(speeds[0]) for speeds in found) / len(found)), over_plain, over_today


def report(trial: Trial) -> list[str]:
    """Returns the results, in lines for people."""
    lines = [f"held-out acceptance, {LENGTH} guesses a round, {trial.prompts} prompts:"]
    for t in TEMPERATURES:
        lines.append(
            f"  temperature {t:.1f}: {trial.accepted[t]:.2f}, of the first guess {trial.first[t]:.2f}"
        )
    lines.append(f"measured {trial.speed:.1f} tok/s, greedy")
    for name, ratio in (("plain decoding", trial.over_plain), ("the present setup", trial.over_today)):
        interval = f" (95 %: {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low and ratio.high else ""
        lines.append(f"  {ratio.value:.2f} times {name}{interval}")
    return lines
