"""The child that evaluates a slice: what is asked on stdin, seconds by number of tokens on stdout."""

from __future__ import annotations

import json
import math
import statistics
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
LEAST_TURNS, MOST_TURNS = 3, 9


def seconds(asked: dict[str, Any]) -> dict[int, float]:
    """Returns number of tokens -> the usual seconds of an evaluation of so many with a row each."""
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
            return _usual(evaluate, timed, asked["budget"])


def _usual(evaluate: Any, timed: list[float], budget: float) -> dict[int, float]:
    """Takes all sizes in turn, within about `budget` seconds but at least three times each; returns medians.

    The median, because it is what a user has, and because the least of many is less than the least of few: a
    small slice, of which there are more, would look cheaper than it is.
    """
    found: dict[int, list[float]] = {n: [] for n in SIZES}
    spent, turns = 0.0, 0
    while turns < LEAST_TURNS or spent < budget and turns < MOST_TURNS:
        for n in SIZES:
            evaluate(n)
            found[n].append(timed[0])
            spent += timed[0]
        turns += 1
    return _undisturbed({n: statistics.median(of) for n, of in found.items()})


def _undisturbed(found: dict[int, float]) -> dict[int, float]:
    """Returns the times without those that no machine takes: much longer than for more tokens."""
    least, mended = math.inf, {}
    for n in sorted(found, reverse=True):
        mended[n] = min(found[n], costs.ODD * least)
        least = min(least, found[n])
    return {n: mended[n] for n in sorted(mended)}


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
