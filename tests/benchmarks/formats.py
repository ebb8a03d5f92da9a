"""Number formats: what rows cost in each, and plain, chosen and fixed draft lengths in turn.

    python tests/benchmarks/formats.py FOLDER [--size 0.6B] [--formats Q8_0 Q4_K_M] [--draft fair] [-n 96]

The embedded target, grown to the cost of a model of `--size` in F16, is converted to each format by
llama.cpp's quantiser. Rows: milliseconds of one evaluation with an output for each, the median of several
in turn.
Then a pair of which nothing is known yet answers each prompt plain, with the pace's own choice, and with
each fixed length, in turn and in changing order. The first answers count apart from the later, warm ones.
Ratios are to plain decoding of the same prompt: geometric means.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from bars import PROMPT_TOKENS, prompts
from pairs import QUALITIES, draft_file, target_file

from edgespec.commands.prompts import tokenize
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.settings import Sampling

FORMATS = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0")
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
FIXED = (1, 3, 5, 7, 11)
FIRST = 2  # answers that are not warm yet
TURNS = 5


def converted(folder: Path, size: str, name: str) -> Path:
    """Returns the target in a format, made unless that is done."""
    source = target_file(folder, f"{size}-F16")
    path = source.with_name(source.name.replace("-F16", f"-{name}"))
    if not path.exists():
        words = [sys.executable, "-m", "edgespec", "convert", str(source), "--to", name, "-o", str(path)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return path


def rows(pair: Pair) -> dict[int, float]:
    """Returns the milliseconds of evaluations by their rows, behind 64 tokens."""
    target = pair.contexts["target"]
    found: dict[int, list[float]] = {n: [] for n in ROWS}
    before = np.arange(2, 66, dtype=np.int32)
    for _ in range(TURNS):
        for n in ROWS:
            tail = tuple(7919 * i % pair.target.n_vocab for i in range(1, n))
            for _ in range(2):  # the first of a size may build a graph
                seconds = target.seconds - target.tried
                target.score([Want(np.append(before, np.int32(0)), tail, n)])
            found[n].append(target.seconds - target.tried - seconds)
    target.clear(0)
    return {n: 1000 * float(np.median(seconds)) for n, seconds in found.items()}


def speed(pair: Pair, prompt: np.ndarray, request: Request) -> float:
    """Returns tok/s behind the first token."""
    ended, tokens = [], []
    for round_ in pair.generate(prompt, request):
        ended.append(time.perf_counter())
        tokens.append(len(round_.tokens))
    return sum(tokens[1:]) / (ended[-1] - ended[0])


def compared(pair: Pair, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Returns tok/s of each prompt by line."""
    endless = dict.fromkeys(pair.target.end_tokens, -1e9)
    sampling = Sampling(temperature=arguments.temperature, logit_bias=endless)
    request = Request(sampling, arguments.tokens, rng_seed=1)
    lines = {"plain": replace(request, drafter="none"), "chosen": request}
    lengths = arguments.fixed
    lines |= {f"fixed {k}": replace(request, drafter="model", draft_length=k) for k in lengths}
    found: dict[str, list[float]] = {name: [] for name in lines}
    rng = np.random.default_rng(1)
    asked = list(tokenize(pair, prompts(arguments.prompts)).values())
    for i, prompt in enumerate(asked):
        names = list(lines) if i >= FIRST else ["plain", "chosen"]
        for name in rng.permutation(names):
            found[name].append(speed(pair, prompt[-PROMPT_TOKENS:], lines[name]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="0.6B")
    parser.add_argument("--formats", nargs="+", default=FORMATS)
    parser.add_argument("--draft", choices=QUALITIES, default="fair")
    parser.add_argument("--fixed", nargs="*", type=int, default=FIXED, help="draft lengths")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("-n", "--tokens", type=int, default=96)
    parser.add_argument("--prompts", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.formats:
        target = converted(arguments.folder, arguments.size, name)
        draft = draft_file(arguments.folder, f"{arguments.size}-F16", arguments.draft)
        with Pair(target, draft, PairSettings(n_ctx=2048, remember=False)) as pair:
            print(name, "ms by rows:", " ".join(f"{n}:{ms:.1f}" for n, ms in rows(pair).items()))
            found = compared(pair, arguments)
        plain = np.array(found["plain"])
        for line, speeds in found.items():
            warm = np.exp(np.log(np.array(speeds[-(len(plain) - FIRST) :]) / plain[FIRST:]).mean())
            first = np.exp(np.log(np.array(speeds[:FIRST]) / plain[:FIRST]).mean())
            started = f", first {first:.2f}" if line == "chosen" else ""
            print(
                f"{name:7} {line:8} {np.median(speeds):6.1f} tok/s, {warm:.2f} of plain{started}", flush=True
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
