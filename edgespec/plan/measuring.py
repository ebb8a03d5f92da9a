"""The child that evaluates a slice: what is asked on stdin, seconds by number of tokens on stdout, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from edgespec import costs
from edgespec.context import Context, ContextSettings
from edgespec.decode import Want
from edgespec.errors import EdgeSpecError
from edgespec.llama import Model

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
BEFORE = 4  # tokens in front of those that are timed
N_CTX = 256


def seconds(asked: dict[str, Any]) -> dict[int, float]:
    """Returns number of tokens -> least seconds of an evaluation of so many with a row each."""
    with Model(asked["path"], n_gpu_layers=asked["n_gpu_layers"]) as model:
        settings = ContextSettings(
            n_ctx=min(N_CTX, model.n_ctx_train), n_rows=max(SIZES), threads=asked["threads"],
            kv_type=asked["kv_type"],
        )  # fmt: skip
        rng = np.random.default_rng(0)
        with Context(model, settings) as context:

            def evaluate(n: int) -> None:
                # other tokens each time: a mixture of experts wakes others for each of them
                tokens = rng.integers(0, model.n_vocab, BEFORE + n).astype(np.int32)
                if not model.has_recurrent_state:
                    tokens[:BEFORE] = range(BEFORE)
                context.score([Want(tokens[:BEFORE], (), 1)])
                timed.clear()
                before = context.seconds
                context.score([Want(tokens[:BEFORE], tuple(int(t) for t in tokens[BEFORE:]), n)])
                timed.append(context.seconds - before)

            timed: list[float] = []
            evaluate(1)
            return _least(evaluate, timed, asked["budget"])


def _least(evaluate: Any, timed: list[float], budget: float) -> dict[int, float]:
    """Takes all sizes in turn, again and again, within about `budget` seconds; at least once each."""
    found: dict[int, float] = {}
    spent, turns = 0.0, 0
    while turns < 2 or spent < budget and turns < 20:
        for n in SIZES:
            evaluate(n)
            found[n] = min(timed[0], found.get(n, timed[0]))
            spent += timed[0]
            if turns and spent > 3 * budget:
                return found
        turns += 1
    for n in costs.disturbed(found):
        evaluate(n)
        found[n] = min(timed[0], found[n])
    return found


def main() -> None:
    """Answers one question."""
    said: dict[str, Any]
    try:
        said = {"seconds": seconds(json.load(sys.stdin))}
    except EdgeSpecError as error:
        said = {"error": str(error)}
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
