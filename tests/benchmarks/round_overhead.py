"""The time outside llama.cpp in one round: everything Python and numpy do between two evaluations.

    python tests/benchmarks/round_overhead.py [--rounds 60] [--turns 5] [--n-vocab 151936] [-k 4]

A random tiny target and a noisy copy of it as the draft, so that some guesses are accepted and some not, with
the vocabulary of a large model: what is measured does not depend on the cost of the models. The kinds of
sampling are measured in turn, several times over.

Each is measured twice. "after evaluations" is what a user has: the weights went through the caches, so that
code, objects and logits are all cold. "nothing evaluated" repeats the rounds over logits that are ready:
what the same Python costs when it is warm. Only `llama_decode` and the address of its logits count as
llama.cpp; the glue around them, and what this script does between rounds, count as ours.

A second table says where it goes after evaluations: after each evaluation of the draft and after the one
of the target, and how much of it the rows of logits take (their argmax, truncation and exponentials).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
from tiny_gguf import write_llama

from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.llama import evaluation as evaluation_module
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec.system.cores import threads_wanted

evaluation: Any = evaluation_module  # parts of it are replaced by others that note the time

KINDS = {
    "greedy": Sampling(temperature=0),
    "T=0.8 top-p 0.95 min-p 0.05": Sampling(),
    "T=0.8 top-p 0.95": Sampling(min_p=0),
    "T=1, nothing cut": Sampling(temperature=1, top_p=1, min_p=0),
}


def asked(sampling: Sampling, seed: int, k: int) -> Request:
    """Returns the request of a kind."""
    return Request(sampling=sampling, max_tokens=512, rng_seed=seed, drafter="model", draft_length=k)


def overheads(pair: Pair, request: Request, n_rounds: int) -> list[float]:
    """Returns for each round with a full draft the seconds spent outside llama.cpp."""
    prompt = np.arange(256, 320, dtype=np.int32)
    outside: list[float] = []
    while len(outside) < n_rounds:
        busy, then = sum(pair.busy()), time.perf_counter()
        for round_ in pair.generate(prompt, request):
            now_busy, now = sum(pair.busy()), time.perf_counter()
            if round_.drafted == request.draft_length:
                outside.append((now - then) - (now_busy - busy))
            busy, then = now_busy, now
            if len(outside) == n_rounds:
                break
        prompt = prompt + 1
    return outside


@contextmanager
def nothing_evaluated(rows: np.ndarray) -> Iterator[None]:
    """Lets evaluations of a round's size answer with `rows`, at once; prompts are evaluated as ever."""
    decode, address_of, last = evaluation.C.llama_decode, evaluation._address_of, [0]

    def ready(handle: Any, batch: Any) -> int:
        last[0] = batch.n_tokens
        return int(decode(handle, batch)) if last[0] > len(rows) else 0

    def address(handle: Any, i: int) -> int:
        return int(address_of(handle, i)) if last[0] > len(rows) else rows.ctypes.data + i * rows.strides[0]

    evaluation.C.llama_decode, evaluation._address_of = ready, address
    try:
        yield
    finally:
        evaluation.C.llama_decode, evaluation._address_of = decode, address_of


@contextmanager
def gaps_noted(gaps: list[tuple[int, float, float]]) -> Iterator[None]:
    """Notes (tokens evaluated before, seconds to the next evaluation, of which on rows) of each gap."""
    decode, row_of, rows, before = evaluation.C.llama_decode, Sampler.__call__, [0.0], [(0, 0.0)]

    def noted(handle: Any, batch: Any) -> int:
        n, since = before[0]
        if n:
            gaps.append((n, time.perf_counter() - since, rows[0]))
        code = int(decode(handle, batch))
        rows[0], before[0] = 0.0, (batch.n_tokens, time.perf_counter())
        return code

    def timed(self: Sampler, row: Any, history: Any = ()) -> Any:
        since = time.perf_counter()
        found = row_of(self, row, history)
        rows[0] += time.perf_counter() - since
        return found

    evaluation.C.llama_decode, Sampler.__call__ = noted, timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        evaluation.C.llama_decode, Sampler.__call__ = decode, row_of  # type: ignore[method-assign]


def breakdown(pair: Pair, request: Request, n_rounds: int) -> str:
    """Returns a line on where the time outside llama.cpp goes, medians in microseconds."""
    gaps: list[tuple[int, float, float]] = []
    with gaps_noted(gaps):
        overheads(pair, request, n_rounds)
    k = request.draft_length or 0
    said = []
    for name, sizes, times in (("draft", (1, 2), k), ("target", (k + 1,), 1)):
        mine = [(seconds, rows) for n, seconds, rows in gaps if n in sizes]
        all_, rows = (1e6 * statistics.median(column) for column in zip(*mine, strict=True))
        said.append(f"{times} x {all_:.0f} behind the {name}, {rows:.0f} of it rows")
    return "; ".join(said)


def figures(seconds: list[float]) -> str:
    low, middle, high = (1e3 * quarter for quarter in statistics.quantiles(seconds, n=4))
    return f"{middle:7.3f} ({low:.3f} to {high:.3f})"


def machine() -> str:
    """Says what the figures depend on besides the code."""
    busy, load = psutil.cpu_percent(1.0), os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {threads_wanted()} threads evaluate, numpy {np.__version__}; "
        f"other work before: {busy:.0f} % of the cores, load {load:.1f}"
    )


def measure(pair: Pair, arguments: argparse.Namespace) -> dict[str, tuple[list[float], list[float]]]:
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in KINDS}
    rng = np.random.default_rng(0)
    ready = rng.normal(0, 12, (arguments.k + 1, arguments.n_vocab)).astype(np.float32)
    for turn in range(arguments.turns):
        for name, sampling in KINDS.items():
            request = asked(sampling, turn, arguments.k)
            found[name][0].extend(overheads(pair, request, arguments.rounds))
            with nothing_evaluated(ready):
                found[name][1].extend(overheads(pair, request, arguments.rounds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="of each kind, in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--n-vocab", type=int, default=151936)
    parser.add_argument("-k", type=int, default=4)
    arguments = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        target, draft = Path(folder) / "target.gguf", Path(folder) / "draft.gguf"
        write_llama(target, n_vocab=arguments.n_vocab, context_length=4096, logit_scale=12.0)
        write_llama(draft, n_vocab=arguments.n_vocab, context_length=4096, logit_scale=12.0, noise=0.05)
        with Pair(target, draft, PairSettings(n_ctx=4096)) as pair:
            found = measure(pair, arguments)
            where = {
                name: breakdown(pair, asked(kind, 1, arguments.k), arguments.rounds)
                for name, kind in KINDS.items()
            }
    print(f"{'ms a round: median (quartiles)':30} {'after evaluations':>26} {'nothing evaluated':>26}")
    for name, (real, warm) in found.items():
        print(f"{name:30} {figures(real):>26} {figures(warm):>26}")
    print("\nmicroseconds, after evaluations")
    for name, line in where.items():
        print(f"{name:30} {line}")


if __name__ == "__main__":
    main()
