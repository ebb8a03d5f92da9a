"""A pair with speculation and without, in turn, for some seconds, in a child: what `doctor` judges by."""

import time
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from edgespec.engine.pair import Pair
from edgespec.errors import EdgeSpecError
from edgespec.measure import figures, in_turn
from edgespec.measure.lines import OURS, PLAIN, lines_for, units_for
from edgespec.measure.prompts import built_in, fitting
from edgespec.measure.takers import Asked, PairTaker
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import sampling_for
from edgespec.system.json_child import answer_questions

SEVERAL = 6  # prompts
LEAST_TOKENS = 16  # of an answer


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns what was measured, or why the pair cannot be run."""
    try:
        return measured(asked)
    except EdgeSpecError as error:
        return {"error": str(error)}


def measured(asked: dict[str, Any]) -> dict[str, Any]:
    """Runs a pair with speculation and without, in turn; returns speeds, costs and acceptance."""
    settings = TypeAdapter(PairSettings).validate_python(asked["settings"])  # JSON has no tuples
    began = time.perf_counter()
    with Pair(asked["target"], asked["draft"], settings) as pair:
        costs = pair.costs()
        loaded = time.perf_counter() - began
        sampling = sampling_for(pair.target.metadata)
        mode = "sampled" if sampling.temperature > 0 else "greedy"
        n_tokens = _tokens(asked, costs.target.seconds(1))
        prompts = [prompt for prompt in built_in() if pair.n_ctx > 2 * asked["tokens"]]
        prompts, tokens = fitting(pair, prompts, asked["tokens"])
        lines = lines_for((mode,), sweep=False)  # type: ignore[arg-type]
        units = units_for(prompts, lines, repeats=1, rng=np.random.default_rng(1))
        taker = PairTaker(pair, Asked(sampling, n_tokens, 1), tokens, lambda: False)
        if units:
            taker.warm_up(units[0])
        taken = in_turn.measure(units, taker, budget_s=asked["seconds"])
        found = {name: figures.summary(taken.samples, mode, name, PLAIN) for name in (PLAIN, OURS)}
        ours = found[OURS]
        return {
            "load_s": loaded,
            "n_ctx": pair.n_ctx,
            "mode": mode,
            "plain_tok_per_s": found[PLAIN].tok_per_s,
            "tok_per_s": ours.tok_per_s,
            "speedup": asdict(ours.speedup) if ours.speedup else None,
            "drafted": ours.drafted,
            "accepted": ours.accepted,
            "acceptance_rate": ours.acceptance_rate,
            "sources": ours.sources,
            "prompts": taken.finished,
            "others": sum(taken.others) / len(taken.others) if taken.others else 0.0,
            "target_s": {str(n): costs.target.seconds(n) for n in (1, 2, 4, 8, 16)},
            "draft_s": costs.draft.seconds(1) if "draft" in pair.contexts else None,
            "recurrent": any(m.has_recurrent_state for m in (pair.target, pair.draft) if m),
        }


def _tokens(asked: dict[str, Any], token_s: float) -> int:
    """Returns how long answers should be: short on a slow machine, since several say more than one."""
    most, within = int(asked["tokens"]), int(asked["seconds"] / (2 * SEVERAL * token_s))
    return max(min(LEAST_TOKENS, most), min(most, within))


if __name__ == "__main__":
    answer_questions(answer)
