"""Short texts of the embedded pair, priced by the cost tables of real targets: is plain decoding ever faster?

    python tests/benchmarks/short_texts.py [--temperature 0] [-n 64] [--prompts 16] [--machines NAME ...]

Texts, guesses and decisions are real; evaluations move a clock by a table, with 3 % of noise, so
that nothing depends on the machine's other load. "first": each text is the first of a pair of which only
costs are known; "after": one text after another. A text that runs past its end repeats itself, and gains;
so losses are listed separately, in token times of all texts: by rounds in which no guess was accepted, and by
the draft's evaluations. Python's time is not included.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from edgespec.core.loop import Rows, Scorer, Want
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.request import Request
from edgespec.core.values import ModelName
from edgespec.engine.alone import alone
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

NOISE = 0.03
PROMPT_TOKENS = 400
# Milliseconds of n tokens, measured on two cores; of one token: a guess, and 64 tokens read by the draft
MACHINES: Mapping[str, tuple[Mapping[int, float], float, float]] = {
    "Q4_0, AVX2": ({1: 25.3, 2: 60.7, 3: 88, 4: 87, 5: 112, 8: 133, 16: 242, 48: 665}, 0.066, 1.37),
    "Q4_0, AVX-512": ({1: 23.6, 2: 55, 3: 68, 4: 68, 6: 111, 8: 89, 12: 125, 16: 161, 48: 480}, 0.07, 0.5),
    "Q4_1, 135M": ({1: 6.4, 2: 13.2, 3: 16.1, 4: 18.6, 5: 23.2, 8: 28.8, 16: 48, 48: 140}, 0.1, 1.0),
    "F16": ({1: 36, 2: 50, 3: 54, 4: 58, 6: 70, 8: 86, 12: 110, 16: 130, 48: 360}, 0.06, 0.54),
}


class Clock:
    """Seconds that pass only where somebody says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Priced:
    """A context whose evaluations move a clock by what a table says."""

    def __init__(self, context: Scorer, table: CostTable, clock: Clock, rng: np.random.Generator) -> None:
        self._context, self._table, self._clock, self._rng = context, table, clock, rng
        self.seconds = 0.0

    @property
    def evaluated(self) -> int:
        return self._context.evaluated

    def missing(self, want: Want) -> int:
        return self._context.missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.evaluated
        rows = self._context.score(wants)
        seconds = self._table.seconds(self.evaluated - before)
        seconds *= math.exp(NOISE * self._rng.standard_normal())
        self.seconds += seconds
        self._clock.now += seconds
        return rows


@dataclass(frozen=True, slots=True)
class Text:
    """One text: times as fast as plain decoding, and token times lost by misses and spent on drafting."""

    speed: float
    missed: float
    drafting: float


def tables(machine: str) -> Costs:
    """Returns what evaluations cost there."""
    points, step, reading = MACHINES[machine]
    one = points[1] / 1000
    draft = {1: step * one, 2: 1.15 * step * one, 64: reading * one}
    return Costs(
        CostTable({n: ms / 1000 for n, ms in points.items()}, slope=0.0), CostTable(draft, slope=0.0)
    )


def text_of(pair: Pair, prompt: str, request: Request, machine: str, seed: int) -> Text:
    """Writes one text with the costs that the pair knows."""
    pair.forget()
    true, clock, rng = tables(machine), Clock(), np.random.default_rng(seed)
    scorers: dict[ModelName, Priced] = {
        "target": Priced(pair.contexts["target"], true.target, clock, rng),
        "draft": Priced(pair.contexts["draft"], true.draft, clock, rng),
    }
    tokens = pair.prompt_tokens(prompt)[-PROMPT_TOKENS:]
    one, generated, missed, last, began, drafted = true.target.points[1], 0, 0.0, 0.0, 0.0, 0.0
    for round_ in alone(pair, tokens, request, costs=pair.costs(), scorers=scorers, clock=clock):
        if not began:
            began, drafted = clock(), scorers["draft"].seconds
        else:
            generated += len(round_.tokens)
            missed += (clock() - last) / one - 1 if round_.drafted and not round_.accepted else 0.0
        last = clock()
    return Text(generated * one / (clock() - began), missed, (scorers["draft"].seconds - drafted) / one)


def told(texts: Sequence[Text]) -> str:
    """Writes what came of texts."""
    speeds = [text.speed for text in texts]
    mean = math.exp(fmean(map(math.log, speeds)))
    return (
        f"{mean:.3f} of plain, least {min(speeds):.3f}, {sum(speed < 0.97 for speed in speeds)} of "
        f"{len(texts)} below 0.97; lost by misses {sum(text.missed for text in texts):.1f}, "
        f"by drafting {sum(text.drafting for text in texts):.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    chosen = parser.parse_args()
    lines = tiny.held_out_prompts_path().read_text(encoding="utf-8").splitlines()
    n = chosen.prompts
    prompts = [json.loads(lines[(2 * i + 1) * len(lines) // (2 * n)])["prompt"] for i in range(n)]
    with Pair(tiny.target_path(), tiny.draft_path(), PairSettings(remember=False, n_ctx=2048)) as pair:
        pair.costs()  # once: it measures this machine, which is then put aside
        never = {token: -float("inf") for token in pair.target.end_tokens}
        sampling = Sampling(temperature=chosen.temperature, top_p=1.0, min_p=0.0, logit_bias=never)
        for machine in chosen.machines:
            for line in ("first", "after"):
                texts = []
                pair.known.costs = tables(machine)
                pair.known.kinds.clear()
                for i, prompt in enumerate(prompts):
                    if line == "first":
                        pair.known.costs = tables(machine)
                        pair.known.kinds.clear()
                    request = Request(sampling, chosen.max_tokens, rng_seed=i)
                    texts.append(text_of(pair, prompt, request, machine, i))
                print(f"{machine:14} {line}: {told(texts)}", flush=True)


if __name__ == "__main__":
    main()
