"""The time outside llama.cpp in one round: everything Python and numpy do between two evaluations.

    python tests/benchmarks/round_overhead.py [--rounds 300] [--n-vocab 151936] [-k 4]

A random tiny target and a noisy copy of it as the draft, so that some guesses pass and some do not, with
the vocabulary of a large model: what is measured does not depend on the cost of the models.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from tiny_gguf import write_llama

from edgespec.engine import Pair, PairSettings, Request
from edgespec.sampling import Sampling


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
        prompt = prompt + 1
    return outside[:n_rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--n-vocab", type=int, default=151936)
    parser.add_argument("-k", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target, draft = Path(folder) / "target.gguf", Path(folder) / "draft.gguf"
        write_llama(target, n_vocab=arguments.n_vocab, context_length=4096, logit_scale=12.0)
        write_llama(draft, n_vocab=arguments.n_vocab, context_length=4096, logit_scale=12.0, noise=0.05)
        with Pair(target, draft, PairSettings(n_ctx=4096)) as pair:
            for name, sampling in (
                ("greedy", Sampling(temperature=0)),
                ("T=0.8 top-p 0.95 min-p 0.05", Sampling()),
                ("T=0.8 top-p 0.95", Sampling(min_p=0)),
                ("T=1, nothing cut", Sampling(temperature=1, top_p=1, min_p=0)),
            ):
                request = Request(
                    sampling=sampling, max_tokens=1024, rng_seed=1, drafter="model", draft_length=arguments.k
                )
                seconds = overheads(pair, request, arguments.rounds)
                quarter = statistics.quantiles(seconds, n=4)
                print(
                    f"{name:30} median {quarter[1] * 1e3:6.3f} ms a round  "
                    f"(quartiles {quarter[0] * 1e3:.3f} to {quarter[2] * 1e3:.3f}, {len(seconds)} rounds)"
                )


if __name__ == "__main__":
    main()
