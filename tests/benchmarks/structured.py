"""Answers under a JSON schema: EdgeSpec against plain decoding under the same schema, in turn.

    python tests/benchmarks/structured.py FOLDER [--size 0.6B-F16] [--quality fair] [--prompts 4]

Pairs are made by `pairs.py`, in FOLDER. Both lines write the same schema on the same prompts, in random
order and with empty caches; a speed is of decoding, first token excluded; the ratio is a geometric mean over
prompts with its 95 % interval. What the masks cost is timed beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pairs import QUALITIES, draft_file, target_file

from edgespec.core.request import Request
from edgespec.core.values import DrafterName
from edgespec.engine.pair import Pair
from edgespec.grammar.grammar import json_schema
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.masks import Masks
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

WORD = {"type": "string", "pattern": "^[a-z_]{3,12}$"}
SCHEMA = {
    "type": "object",
    "properties": {
        "module": WORD,
        "summary": {"type": "string", "minLength": 60, "maxLength": 160},
        "functions": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "name": WORD,
                    "returns": {"enum": ["int", "str", "list", "dict", "bool", "None"]},
                    "arguments": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
                    "deprecated": {"type": "boolean"},
                },
                "required": ["name", "returns", "arguments", "deprecated"],
                "additionalProperties": False,
            },
            "minItems": 3,
            "maxItems": 4,
        },
    },
    "required": ["module", "summary", "functions"],
    "additionalProperties": False,
}
LINES: tuple[DrafterName, ...] = ("none", "auto")


def held_out(n: int) -> list[str]:
    """Returns n of the embedded pair's held-out prompts, spread evenly."""
    lines = Path(tiny.held_out_prompts_path()).read_text(encoding="utf-8").splitlines()
    return [json.loads(lines[i * len(lines) // n])["prompt"] for i in range(n)]


def timed_masks(seconds: list[float]) -> None:
    """Has the masks note what they take."""
    after = Masks.after

    def noted(self: Masks, history: object) -> object:
        began = time.perf_counter()
        try:
            return after(self, history)  # type: ignore[arg-type]
        finally:
            seconds.append(time.perf_counter() - began)

    Masks.after = noted  # type: ignore[method-assign, assignment]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", default="0.6B-F16")
    parser.add_argument("--quality", choices=QUALITIES, default="fair")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("-n", "--max-tokens", type=int, default=400)
    parser.add_argument(
        "--busy", action="store_true", help="count this process's CPU time: others are at work"
    )
    parser.add_argument("--compact", action="store_true", help="JSON without any spaces between its parts")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    chosen = parser.parse_args()
    target, draft = (
        target_file(chosen.folder, chosen.size),
        draft_file(chosen.folder, chosen.size, chosen.quality),
    )
    clock = time.process_time if chosen.busy else time.perf_counter
    rng, masking = np.random.default_rng(1), list[float]()
    with Pair(target, draft, PairSettings(n_ctx=1024, remember=False)) as pair:
        target_costs, one = pair.costs().target, pair.costs().target.seconds(1)
        shape = ", ".join(f"{n}: {target_costs.seconds(n) / one:.2f}" for n in (2, 3, 4, 8, 16))
        print(
            f"a token {one * 1e3:.1f} ms, draft {pair.costs().draft.seconds(1) / one:.3f}, t(n)/t(1) {shape}"
        )
        spaces = {"x-guidance": {"whitespace_flexible": False}} if chosen.compact else {}
        grammar = json_schema({**SCHEMA, **spaces})
        began = time.perf_counter()
        pair.streams.matchers.compile(grammar)
        took, size = time.perf_counter() - began, pair.target.n_vocab
        print(f"vocabulary ({size:,} tokens) and schema compiled in {took:.2f} s")
        timed_masks(masking)
        for temperature in chosen.temperatures:
            logs: list[float] = []
            speeds: dict[str, list[float]] = {line: [] for line in LINES}
            drafted = accepted = 0
            for i, prompt in enumerate(held_out(chosen.prompts)):
                tokens = pair.prompt_tokens(prompt, special=True)[-200:]
                texts = {}
                for line in rng.permutation(LINES).tolist():
                    pair.forget()
                    request = Request(
                        Sampling(temperature), chosen.max_tokens, seed=i, drafter=line, grammar=grammar
                    )
                    at: list[tuple[float, int]] = []
                    pieces = []
                    for round_ in pair.generate(tokens, request):
                        at.append((clock(), len(round_.tokens)))
                        pieces.append(round_.text)
                        drafted += round_.drafted
                        accepted += round_.accepted
                    texts[line] = "".join(pieces)
                    if round_.finish == "stop":
                        json.loads(texts[line])
                    speeds[line].append(sum(n for _, n in at[1:]) / (at[-1][0] - at[0][0]))
                logs.append(float(np.log(speeds["auto"][-1] / speeds["none"][-1])))
                one, two = (speeds[line][-1] for line in LINES)
                print(f"  {i}: {one:.1f} -> {two:.1f} tok/s, same text: {len(set(texts.values())) == 1}")
            mean, spread = float(np.mean(logs)), float(np.std(logs, ddof=1) / len(logs) ** 0.5)
            t = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36}.get(len(logs), 2.2)
            low, high = np.exp(mean - t * spread), np.exp(mean + t * spread)
            plain, ours = (float(np.mean(speeds[line])) for line in LINES)
            ratio = f"{np.exp(mean):.2f} times ({low:.2f} to {high:.2f})"
            rate = f"accepted {accepted / max(drafted, 1):.2f}"
            print(f"temperature {temperature:g}: {plain:.1f} -> {ours:.1f} tok/s, {ratio}, {rate}")
    found = 1e6 * np.array(masking)
    print(
        f"a mask asked for: median {np.median(found):.0f} us, 99 % within {np.percentile(found, 99):.0f} us"
    )


if __name__ == "__main__":
    main()
