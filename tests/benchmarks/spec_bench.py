"""Spec-Bench by kind of question, on a real model: EdgeSpec against plain decoding and llama-server, in turn.

    python tests/benchmarks/spec_bench.py TARGET.gguf --questions question.jsonl --results FILE.jsonl
        [--kinds chat qa ...] [--head HEAD.gguf] [--peer PATH/llama-server] [--seconds 100]
    python tests/benchmarks/spec_bench.py --results FILE.jsonl --report

A run takes the odd questions (even ones train heads), kinds in turn, at all temperatures, all ways of
decoding in random order with empty caches, until its time is up, and appends whole units to the results; a
existing unit is not taken again. Costs are measured anew in each run, for which the machine must be
quiet. Speeds are of decoding, first token excluded; answers end where the model ends. EdgeSpec starts each
run knowing only the model's costs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from peer_command import NAME, PeerSettings
from peer_taker import PeerTaker

from edgespec.engine.pair import Pair
from edgespec.measure.figures import Ratio, combine
from edgespec.measure.lines import Line, Mode, Unit
from edgespec.measure.machine import processor
from edgespec.measure.prompts import Prompt, read_prompts, tokenize
from edgespec.measure.takers import Asked, PairTaker
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.system.cores import threads_wanted
from edgespec.system.other_programs import Others

KINDS = ("chat", "math_reasoning", "qa", "rag", "summarization", "translation")  # chat: MT-bench's eight
PLAIN, FREE, HEAD = "plain", "edgespec, n-grams", "edgespec, head"
NGRAMS = ("ngram-simple",)  # of llama-server's own; the others guess as rarely on 64 tokens
N_CTX = 2048
LONGEST_PROMPT = 1_500  # tokens
SIZES = (2, 3, 4, 5, 6, 8, 12)
Way = tuple[PairTaker | PeerTaker, bool]  # who takes it, and whether nothing guesses


def odd_questions(path: Path, kinds: Sequence[str]) -> list[Prompt]:
    """Returns the questions that may be reported: the first of each kind, the second of each, ..."""
    found: dict[str, dict[str, list[Prompt]]] = {kind: {} for kind in kinds}
    for prompt in read_prompts(path):
        kind = prompt.kind if prompt.kind in KINDS else "chat"
        if kind in found and int(prompt.name) % 2:
            found[kind].setdefault(prompt.kind, []).append(replace(prompt, kind=kind))
    rows = [
        [
            of[i]
            for i in range(max(map(len, categories.values())))
            for of in categories.values()
            if i < len(of)
        ]
        for categories in found.values()
    ]
    return [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]


def ways(
    stack: ExitStack, chosen: argparse.Namespace, asked: Asked, prompts: list[Prompt]
) -> tuple[dict[str, Way], list[Prompt], dict[str, Any]]:
    """Opens what is compared; returns the ways, the prompts that fit, and what an evaluation costs."""
    settings = PairSettings(n_ctx=N_CTX, remember=False)
    bare = stack.enter_context(Pair(chosen.target, None, settings))
    tokens = tokenize(bare, prompts)
    fitting = [prompt for prompt in prompts if len(tokens[prompt.name]) <= LONGEST_PROMPT]
    free = PairTaker(bare, asked, tokens, lambda: False)
    table = bare.costs().target
    costs = {"t1_ms": table.seconds(1) * 1e3, **{str(n): table.seconds(n) / table.seconds(1) for n in SIZES}}
    found: dict[str, Way] = {PLAIN: (free, True), FREE: (free, False)}
    if chosen.head:
        pair = stack.enter_context(Pair(chosen.target, chosen.head, settings))
        found[HEAD] = PairTaker(pair, asked, tokens, lambda: False), False
        costs["head"] = pair.costs().draft.seconds(1) / table.seconds(1)
    if chosen.peer:
        plain = PeerSettings(chosen.peer, chosen.target, threads=threads_wanted(), n_ctx=N_CTX)
        peers = {f"{NAME} plain": plain}
        peers |= {f"{NAME} {ngram}": replace(plain, ngram=ngram) for ngram in NGRAMS}
        if chosen.head:
            peers[f"{NAME} head"] = replace(plain, draft=chosen.head, head="eagle3")
        for name, peer in peers.items():
            line = Line("sampled", name, plain=peer is plain)
            taker = stack.enter_context(PeerTaker(peer, [line], asked, tokens, lambda: False))
            taker.warm_up([line])
            found[name] = taker, peer is plain
    return found, fitting, costs


def piece(chosen: argparse.Namespace) -> None:
    """Takes questions until the time is up."""
    began = time.monotonic()
    taken = {
        (entry["file"], entry["kind"], entry["temperature"], entry["question"])
        for entry in entries(chosen.results)
    }
    name, rng, longest = chosen.target.name, np.random.default_rng(1), 0.0
    with ExitStack() as stack:
        asked = {
            t: Asked(Sampling(temperature=t, top_p=1.0, min_p=0.0), chosen.max_tokens, seed=1)
            for t in chosen.temperatures
        }
        prompts = odd_questions(chosen.questions, chosen.kinds)
        found, fitting, costs = ways(stack, chosen, next(iter(asked.values())), prompts)
        print(f"{name}: ready after {time.monotonic() - began:.0f} s; {costs}", flush=True)
        for number, prompt in enumerate(fitting):
            for temperature, how in asked.items():
                key = (name, prompt.kind, temperature, prompt.name)
                if key in taken:
                    continue
                at, others = time.monotonic(), Others()
                if at - began + longest > chosen.seconds:
                    return
                samples = unit(found, how, prompt, number, rng)
                longest = max(longest, time.monotonic() - at)
                entry = dict(zip(("file", "kind", "temperature", "question"), key, strict=True))
                entry |= {"costs": costs, "others": others.cores(), "samples": samples}
                entry |= {"processor": processor(), "threads": threads_wanted(), "at": time.time()}
                with chosen.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")


def unit(
    found: dict[str, Way], asked: Asked, prompt: Prompt, number: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Takes one question at one temperature by all ways."""
    mode: Mode = "greedy" if asked.sampling.temperature == 0 else "sampled"
    samples = []
    for i in rng.permutation(len(found)):
        name = list(found)[i]
        taker, plain = found[name]
        taker.asked = asked
        line = Line(mode, name, plain=plain)
        sample = taker(line, Unit(number, prompt, mode, 0, (line,)))
        assert sample is not None  # nothing cancels it
        fields = asdict(sample)
        samples.append({k: v for k, v in fields.items() if k not in ("rounds", "text", "unit")})
    return samples


def entries(path: Path) -> list[dict[str, Any]]:
    """Returns what has been taken so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def speed(sample: dict[str, Any]) -> float | None:
    """Returns tok/s of decoding; None for an answer of fewer than five tokens."""
    return sample["steps"] / sample["decode_s"] if sample["steps"] >= 4 and sample["decode_s"] else None


def ratio(units: Iterable[dict[str, Any]], over: str, base: str) -> Ratio | None:
    """Returns how many times as fast one way was as another, over questions."""
    values = []
    for entry in units:
        speeds = {sample["line"]: speed(sample) for sample in entry["samples"]}
        if (a := speeds.get(over)) and (b := speeds.get(base)):
            values.append((entry["question"], a / b))
    return combine(values)


def told(found: Ratio | None) -> str:
    """Writes a ratio with its interval."""
    if found is None:
        return "-"
    return f"{found.value:.2f}" + (f" ({found.low:.2f} to {found.high:.2f})" if found.low else "")


def accepted(units: list[dict[str, Any]], way: str) -> str:
    """Returns the acceptance rate of a way, and on how many drafted tokens it rests."""
    mine = [s for entry in units for s in entry["samples"] if s["line"] == way]
    drafted = sum(s["drafted"] for s in mine)
    return f"{sum(s['accepted'] for s in mine) / drafted:.2f} of {drafted}" if drafted else "-"


def report(path: Path) -> None:
    """Prints Markdown tables of all that has been taken."""
    everything = entries(path)
    for file in dict.fromkeys(entry["file"] for entry in everything):
        of_file = [entry for entry in everything if entry["file"] == file]
        names = list(dict.fromkeys(s["line"] for entry in of_file for s in entry["samples"]))
        costs = of_file[-1]["costs"]
        print(f"\n{file}: " + ", ".join(f"{name} {value:.2f}" for name, value in costs.items()))
        for temperature in sorted({entry["temperature"] for entry in of_file}):
            some = [entry for entry in of_file if entry["temperature"] == temperature]
            print(f"\nT={temperature:g}\n\n| kind | questions | " + " | ".join(sorted(names)) + " |")
            print("|---|---|" + "---|" * len(names))
            for kind in (*KINDS, "all"):
                units = [entry for entry in some if kind in (entry["kind"], "all")]
                if not units:
                    continue
                cells = []
                for name in sorted(names):
                    speeds = [
                        (e["question"], v)
                        for e in units
                        for s in e["samples"]
                        if s["line"] == name and (v := speed(s))
                    ]
                    typical = combine(speeds)
                    shown = f"{typical.value:.1f}" if typical else "-"
                    if name != PLAIN:
                        shown += f"; {told(ratio(units, name, PLAIN))}; {accepted(units, name)}"
                    cells.append(shown)
                print(f"| {kind} | {len(units)} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7, 1.0])
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--report", action="store_true")
    chosen = parser.parse_args()
    if chosen.report:
        report(chosen.results)
    elif chosen.target and chosen.questions:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["EDGESPEC_CACHE_DIR"] = folder  # else costs of a busy moment would be found there
            piece(chosen)
    else:
        sys.exit("spec_bench.py: name TARGET.gguf and --questions, or --report")


if __name__ == "__main__":
    main()
