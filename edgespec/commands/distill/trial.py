"""Is a new draft worth having? Its acceptance on held-out prompts, and its speed beside what there was."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgeSpecError, PlanError

if TYPE_CHECKING:
    from edgespec.commands.bench.figures import Ratio
    from edgespec.core.request import DrafterName
    from edgespec.core.stats import Statistics
    from edgespec.engine.pair import Pair

TEMPERATURES = (0.0, 0.7, 1.0)
LENGTH = 4  # guesses of a round, where acceptance is counted
TOKENS = 64  # of an answer
FEWEST = 3  # prompts that a verdict rests on
Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found out about a draft, all on prompts that it did not learn from."""

    accepted: dict[float, float]  # by temperature: of the tokens drafted, four a round
    first: dict[float, float]  # of the first token of each draft
    prompts: int
    planned: float | None  # tok/s that `edgespec plan` expects of the greedy acceptance; None: it cannot say
    speed: float  # tok/s, geometric mean
    over_plain: Ratio
    over_today: Ratio  # over what the target has today: its draft, or text alone that guesses

    @property
    def faster(self) -> bool:
        """Whether it was shown to be."""
        return bool(self.over_today.low and self.over_today.low > 1)


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
    """Has the new draft answer held-out prompts, then it, what there is today and plain decoding in turn."""
    import edgespec

    settings = edgespec.PairSettings(remember=False, threads=threads)
    until = time.monotonic() + seconds
    with edgespec.load(target, draft, settings) as new:
        accepted, first, n = _acceptance(new, prompts, time.monotonic() + seconds / 2, on_stage)
        with edgespec.load(target, today, settings) as old:
            speed, over_plain, over_today = _speeds(new, old, prompts, until, on_stage)
    on_stage("asking what plan expects ...")
    planned = _planned(target, draft, settings, accepted[0.0])
    return Trial(accepted, first, n, planned, speed, over_plain, over_today)


def _said(pair: Pair, prompt: Sequence[int], temperature: float, drafter: DrafterName) -> Statistics:
    """Returns the figures of an answer; with temperature NaN, of a greedy one without an end."""
    import edgespec
    from edgespec.core.stats import Tally

    endless = math.isnan(temperature)
    bias = {token: -math.inf for token in pair.target.end_tokens} if endless else {}
    sampling = edgespec.Sampling(temperature=0.0 if endless else temperature, logit_bias=bias)
    length = None if endless else LENGTH
    request = edgespec.Request(
        max_tokens=TOKENS, sampling=sampling, drafter=drafter, draft_length=length, rng_seed=len(prompt)
    )
    tally = Tally(pair.busy)
    for round_ in pair.generate(prompt, request):
        tally.note(round_)
    return tally.statistics(len(prompt))


def _acceptance(
    pair: Pair, prompts: Prompts, until: float, on_stage: Callable[[str], None]
) -> tuple[dict[float, float], dict[float, float], int]:
    drafter: DrafterName = "eagle" if pair.head else "model"
    drafted, accepted = dict.fromkeys(TEMPERATURES, 0), dict.fromkeys(TEMPERATURES, 0)
    rounds, hits = dict.fromkeys(TEMPERATURES, 0.0), dict.fromkeys(TEMPERATURES, 0.0)
    done = 0
    for prompt in prompts:
        for t in TEMPERATURES:
            on_stage(f"acceptance: prompt {done + 1} of {len(prompts)} ...")
            found = _said(pair, prompt, t, drafter)
            drafted[t] += found.drafted
            accepted[t] += found.accepted
            if found.acceptance_by_position:
                n = found.drafted / LENGTH
                rounds[t] += n
                hits[t] += n * found.acceptance_by_position[0]
        done += 1
        if done >= FEWEST and time.monotonic() > until:
            break
    rate = {t: accepted[t] / max(1, drafted[t]) for t in TEMPERATURES}
    return rate, {t: hits[t] / max(1.0, rounds[t]) for t in TEMPERATURES}, done


def _speeds(
    new: Pair, old: Pair, prompts: Prompts, until: float, on_stage: Callable[[str], None]
) -> tuple[float, Ratio, Ratio]:
    from edgespec.commands.bench.figures import combine

    for pair in (new, old):
        pair.costs()
    lines: list[tuple[Pair, DrafterName]] = [(new, "auto"), (old, "auto"), (old, "none")]
    found: list[tuple[float, float, float]] = []
    for n, prompt in enumerate(prompts):
        on_stage(f"speed: prompt {n + 1} of {len(prompts)} ...")
        turn = [(n + i) % 3 for i in range(3)]
        speeds = {i: _said(lines[i][0], prompt, math.nan, lines[i][1]).tok_per_s for i in turn}
        if n == 0:  # what is measured and learned on the first is not timed
            continue
        if all(speeds.values()):
            found.append((speeds[0] or 0, speeds[1] or 0, speeds[2] or 0))
        if len(found) >= FEWEST and time.monotonic() > until:
            break
    ratios = [combine([(str(n), values[0] / values[i]) for n, values in enumerate(found)]) for i in (2, 1)]
    if not found or ratios[0] is None or ratios[1] is None:
        raise EdgeSpecError("too few prompts were held out for a trial: run distill for longer")
    speed = math.exp(sum(math.log(values[0]) for values in found) / len(found))
    return speed, ratios[0], ratios[1]


def _planned(target: Path, draft: Path, settings: object, acceptance: float) -> float | None:
    from edgespec.commands.plan.pair_plan import plan_pair
    from edgespec.pairs.check import headers_of
    from edgespec.pairs.settings import PairSettings

    assert isinstance(settings, PairSettings)
    try:
        plan = plan_pair(headers_of(target), headers_of(draft), settings, acceptances=(acceptance,))
    except PlanError:
        return None
    return plan.speeds[0].tok_per_s if plan.speeds else None


def told(trial: Trial) -> list[str]:
    """Returns what was found, in lines for people."""
    lines = [f"held-out acceptance, {LENGTH} guesses a round, {trial.prompts} prompts:"]
    for t in TEMPERATURES:
        lines.append(
            f"  temperature {t:.1f}: {trial.accepted[t]:.2f}, of the first guess {trial.first[t]:.2f}"
        )
    if trial.planned:
        lines.append(f"plan expects {trial.planned:.1f} tok/s of the greedy one")
    lines.append(f"measured {trial.speed:.1f} tok/s, greedy")
    for name, ratio in (("plain decoding", trial.over_plain), ("what there is today", trial.over_today)):
        interval = f" (95 %: {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low and ratio.high else ""
        lines.append(f"  {ratio.value:.2f} times {name}{interval}")
    return lines
