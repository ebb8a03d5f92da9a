"""llama-cpp-python's own speculation (prompt lookup) against EdgeSpec without a draft model, in turn.

    python tests/benchmarks/prompt_lookup.py TARGET.gguf [--prompts 6] [-n 96]

Greedy, the same held-out prompts (or --spec-bench FILE), empty caches; speeds are of decoding, first token
excluded. Its high-level class evaluates with flash attention off by default and keeps all logits, which
is part of what is measured.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import llama_cpp
from bars import prompts
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.system.cores import threads_wanted

N_CTX = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    chosen = parser.parse_args()
    threads = threads_wanted()
    with Pair(chosen.target, None, PairSettings(n_ctx=N_CTX, remember=False)) as pair:
        never = {token: -float("inf") for token in pair.target.end_tokens}

        def ours(tokens: list[int], drafter: str) -> float:
            pair.forget()
            sampling = Sampling(temperature=0, logit_bias=never)
            times = []
            request = Request(sampling=sampling, max_tokens=chosen.max_tokens, drafter=drafter)  # type: ignore[arg-type]
            for round_ in pair.generate(tokens, request):
                times += [time.perf_counter()] * len(round_.tokens)
            return (len(times) - 1) / (times[-1] - times[0])

        def theirs(model: llama_cpp.Llama, tokens: list[int]) -> float:
            model.reset()  # type: ignore[no-untyped-call]
            bias = llama_cpp.LogitsProcessorList([_banning(list(never))])
            times = []
            for _ in model.generate(tokens, temp=0.0, logits_processor=bias):
                times.append(time.perf_counter())
                if len(times) == chosen.max_tokens:
                    break
            return (len(times) - 1) / (times[-1] - times[0])

        made = {
            name: llama_cpp.Llama(
                str(chosen.target), n_ctx=N_CTX, n_threads=threads, n_threads_batch=threads, verbose=False,
                draft_model=LlamaPromptLookupDecoding(num_pred_tokens=k) if k else None, logits_all=bool(k),
            )
            for name, k in (("llama-cpp-python plain", 0), ("its lookup, 10", 10), ("its lookup, 2", 2))
        }  # fmt: skip
        lines = {
            "edgespec plain": lambda t: ours(t, "none"),
            "edgespec, no draft model": lambda t: ours(t, "auto"),
        }
        lines |= {name: partial(theirs, model) for name, model in made.items()}
        speeds: dict[str, list[float]] = {name: [] for name in lines}
        rng = random.Random(1)
        for prompt in prompts(chosen.prompts):
            tokens = pair.prompt_tokens(prompt.text, special=True)[-400:].tolist()
            for name in rng.sample(list(lines), len(lines)):
                speeds[name].append(lines[name](tokens))
        for name, found in speeds.items():
            ratios = [a / b for a, b in zip(found, speeds["edgespec plain"], strict=True)]
            print(
                f"{name:26} {statistics.median(found):7.1f} tok/s   {statistics.geometric_mean(ratios):.2f}"
            )


def _banning(ids: list[int]):  # type: ignore[no-untyped-def]
    def ban(_: object, scores):  # type: ignore[no-untyped-def]
        scores[ids] = -float("inf")
        return scores

    return ban


if __name__ == "__main__":
    main()
