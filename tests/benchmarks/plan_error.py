"""How far plans are from pairs in use: what `edgespec plan` says of files, and what they then do, in turn.

    python tests/benchmarks/plan_error.py [TARGET DRAFT ...] [--prompts 6] [-n 64]

Without files, the embedded pair. A draft `-` is none. The plan gets the acceptance that was measured: that
of the embedded pair on held-out prompts cannot be known of others. Prints planned over measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from bars import prompt_ids, prompts

from edgespec.commands.plan.bandwidth import SIZES, seconds_a_byte
from edgespec.commands.plan.pair_plan import Seconds, plan_pair
from edgespec.engine.pair import Pair
from edgespec.measure.figures import Sample, summary
from edgespec.measure.in_turn import measure
from edgespec.measure.lines import OURS, PLAIN, Line, units_for
from edgespec.measure.takers import Asked, PairTaker
from edgespec.pairs.check import headers_of
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

GUESSES = 4  # a round, where acceptance is measured
MODEL = f"{OURS} n={GUESSES}"


def compare(target: Path, draft: Path | None, chosen: argparse.Namespace) -> list[float]:
    """Prints a row; returns planned over measured of plain decoding and, with a draft, of speculation."""
    heads = headers_of(target), headers_of(draft) if draft else None
    with Pair(target, draft, PairSettings(n_ctx=2048, remember=False)) as pair:
        table, asking = pair.costs().target, prompts(chosen.prompts)
        asked = Asked(Sampling(temperature=0.0), chosen.max_tokens, seed=1, drafter="model")
        ours = PairTaker(pair, asked, prompt_ids(pair, asking, None), lambda: False)
        lines = [Line("greedy", PLAIN, plain=True)]
        if draft:
            lines += [Line("greedy", OURS), Line("greedy", MODEL, draft_length=GUESSES)]
        units = units_for(asking, lines, repeats=1, rng=np.random.default_rng(1))
        ours(lines[0], units[0])  # warm
        samples: list[Sample] = []
        rates: dict[str, list[Seconds]] = {}
        for unit in units:  # in turn, since other programs come and go
            samples += measure([unit], ours, budget_s=600).samples
            plan_pair(*heads, PairSettings(), bandwidth=partial(measured, rates))
    plain, own, fixed = (summary(samples, "greedy", name, PLAIN) for name in (PLAIN, OURS, MODEL))
    accepted = alike(fixed.acceptance_rate or 0.0)
    plan = plan_pair(
        *heads, PairSettings(), acceptances=(accepted,), bandwidth=lambda dtype, _: usual(rates[dtype])
    )
    pairs = [(plan.plain_tok_per_s, plain.tok_per_s)]
    pairs += [(plan.speeds[0].tok_per_s, own.tok_per_s)] if plan.speeds else []
    rows = "".join(
        f"{plan.target[n] / plan.target[1] * table.seconds(1) / table.seconds(n):6.2f}" for n in SIZES
    )
    shown = "".join(f"{planned:9.1f} {real or 0:8.1f}" for planned, real in pairs)
    print(f"{target.stem:32} {accepted:5.2f}{shown}   t(n)/t(1):{rows}", flush=True)
    return [planned / real for planned, real in pairs if real]


def measured(rates: dict[str, list[Seconds]], dtype: str, settings: PairSettings) -> Seconds:
    """Measures a bandwidth once more."""
    rates.setdefault(dtype, []).append(seconds_a_byte(dtype, settings))
    return rates[dtype][-1]


def usual(found: Sequence[Seconds]) -> Seconds:
    """Returns the medians."""
    return {n: statistics.median(one[n] for one in found) for n in SIZES}


def alike(rate: float) -> float:
    """Returns the chance of one guess, where of four guesses a round this share is accepted."""
    chances = np.linspace(0.0, 0.999, 1000)
    shares = sum(chances**k for k in range(1, GUESSES + 1)) / GUESSES
    return float(np.interp(rate, shares, chances))


def main() -> None:
    """Compares the pairs named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", default=[str(tiny.target_path()), str(tiny.draft_path())])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    chosen = parser.parse_args()
    ratios = []
    for target, draft in zip(chosen.files[::2], chosen.files[1::2], strict=True):
        ratios += compare(Path(target), None if draft == "-" else Path(draft), chosen)
    mean = statistics.fmean(abs(math.log(ratio)) for ratio in ratios)
    print("planned over measured:", " ".join(f"{ratio:.2f}" for ratio in ratios), f"; mean error {mean:.0%}")


if __name__ == "__main__":
    main()
