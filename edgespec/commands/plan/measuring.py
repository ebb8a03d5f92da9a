"""The child that evaluates a model of random weights: questions on stdin, seconds by tokens on stdout."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from edgespec.core.loop import Want
from edgespec.errors import EdgeSpecError
from edgespec.llama import remote
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.pairs.settings import KvType
from edgespec.system.json_child import answer_questions

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
BEFORE = 4  # tokens before those that are timed
N_CTX = 256
LEAST_TURNS, MOST_TURNS = 3, 9
ODD = 1.15  # factor over a larger evaluation's cost that a smaller one may take: kernels differ, but not more


def seconds(asked: dict[str, Any]) -> dict[int, float]:
    """Returns number of tokens -> the usual seconds of evaluating that many with a row each."""
    with Model(
        asked["path"],
        n_gpu_layers=asked["n_gpu_layers"],
        devices=remote.devices(asked["rpc"]),
        tensor_split=asked["tensor_split"],
        rules=asked["rules"],
    ) as model:
        settings = context_settings(model, threads=asked["threads"], kv_type=asked["kv_type"])
        with Context(model, settings) as context:
            evaluate = timed(context)
            evaluate(1)
            return _usual(evaluate, asked["budget"])


def context_settings(model: Model, *, threads: int | None = None, kv_type: KvType = "f16") -> ContextSettings:
    """Returns the settings of a context that models are evaluated in."""
    n_ctx = min(N_CTX, model.n_ctx_train)
    return ContextSettings(n_ctx=n_ctx, n_rows=max(SIZES), threads=threads, kv_type=kv_type)


def timed(context: Context) -> Callable[[int], float]:
    """Returns what evaluates n tokens after a few others, and returns its seconds inside llama.cpp."""
    rng, n_vocab = np.random.default_rng(0), context.model.n_vocab

    def evaluate(n: int) -> float:
        # other tokens each time: each wakes other experts of a mixture
        tokens = rng.integers(0, n_vocab, BEFORE + n).astype(np.int32)
        if not context.model.has_recurrent_state:
            tokens[:BEFORE] = range(BEFORE)
        context.score([Want(tokens[:BEFORE], (), 1)])
        before = context.seconds
        context.score([Want(tokens[:BEFORE], tuple(int(token) for token in tokens[BEFORE:]), n)])
        return context.seconds - before

    return evaluate


def _usual(evaluate: Callable[[int], float], budget: float) -> dict[int, float]:
    """Takes all sizes in turn, within about `budget` seconds, but three times at least; returns medians."""
    found: dict[int, list[float]] = {n: [] for n in SIZES}
    spent, turns = 0.0, 0
    while turns < LEAST_TURNS or spent < budget and turns < MOST_TURNS:
        for n in SIZES:
            found[n].append(evaluate(n))
            spent += found[n][-1]
        turns += 1
    return _undisturbed({n: statistics.median(of) for n, of in found.items()})


def _undisturbed(found: dict[int, float]) -> dict[int, float]:
    """Returns the times without impossible ones: much longer than for more tokens."""
    least, mended = math.inf, {}
    for n in sorted(found, reverse=True):
        mended[n] = min(found[n], ODD * least)
        least = min(least, found[n])
    return {n: mended[n] for n in sorted(mended)}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers one question, or says why not."""
    try:
        return {"seconds": seconds(asked)}
    except EdgeSpecError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    answer_questions(answer)
