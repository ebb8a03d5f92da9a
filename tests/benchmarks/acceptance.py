"""How much of a sampled draft can be accepted: exact verification of drawn guesses against comparing samples.

    python tests/benchmarks/acceptance.py [TARGET DRAFT] [--temperatures 0.7 1] [--prompts 12] [-n 96]

llama-server draws a token of its own at each position and keeps the draft's likeliest token if the two are
equal: it accepts with the probability p(argmax q). EdgeSpec draws its guesses and verifies them exactly
(Leviathan et al., 2211.17192): it accepts with 1 - TV(p, q). Both are computed along the target's own text,
drawn at each temperature: a chain of guesses x_1..x_j counts with the product of min(1, q(x_i) / p(x_i)),
or of [x_i = argmax q], whose means over texts are the probabilities that all j of them are accepted.

From these, and from the costs of evaluations here, follows the most that any length of either can gain over
plain decoding, all other work being free. The embedded pair unless files are named; nothing is cut from the
distributions but end tokens.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from bars import PROMPT_TOKENS, prompts
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.pace.worth import gains
from edgespec.engine.pair import Pair
from edgespec.measure.prompts import tokenize
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, draw
from edgespec.sampling.settings import Sampling
from edgespec_models import tiny

Floats = NDArray[np.float64]
LONGEST = 16  # guesses in a row that are looked at
FACTORS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)  # draft temperatures, times the target's


@dataclass
class Texts:
    """The target's own texts at one temperature: for each, logits of both models at every place."""

    target: list[NDArray[np.float32]]
    draft: list[NDArray[np.float32]]
    tokens: list[NDArray[np.int64]]


def write(pair: Pair, asking: list[NDArray[np.int32]], temperature: float, n_tokens: int, seed: int) -> Texts:
    """Lets the target write, and both models look at every place."""
    rng, texts = np.random.default_rng(seed), Texts([], [], [])
    shared = min(model.n_vocab for model in (pair.target, pair.draft) if model)
    sampler = Sampler(Sampling(temperature=temperature, top_p=1, min_p=0), shared)
    for prompt in asking:
        rows: tuple[list[NDArray[np.float32]], ...] = ([], [])
        ids = prompt.tolist()
        for _ in range(n_tokens):
            want = Want(np.array(ids, np.int32))
            for kept, context in zip(rows, pair.contexts.values(), strict=True):
                row = context.score([want])[0][0, :shared].copy()
                row[list(pair.target.end_tokens)] = -np.inf
                kept.append(row)
            ids.append(draw(sampler(rows[0][-1]), float(rng.random())))
        texts.target.append(np.array(rows[0]))
        texts.draft.append(np.array(rows[1]))
        texts.tokens.append(np.array(ids[-n_tokens:]))
    return texts


def probabilities(logits: NDArray[np.float32], temperature: float) -> Floats:
    """Returns softmax(logits / temperature), (places, n_vocab) float64."""
    shifted = (logits.astype(np.float64) - logits.max(axis=1, keepdims=True)) / temperature
    weights = np.exp(shifted)
    found: Floats = weights / weights.sum(axis=1, keepdims=True)
    return found


def reach(kept: list[Floats]) -> Floats:
    """Returns how likely 1, 2, ... guesses in a row are accepted: (LONGEST,). kept: each place's chance."""
    sums, places = np.zeros(LONGEST), np.zeros(LONGEST)
    for text in kept:
        for j in range(min(LONGEST, text.size)):
            runs = np.lib.stride_tricks.sliding_window_view(text, j + 1).prod(axis=1)
            sums[j] += runs.sum()
            places[j] += runs.size
    found: Floats = sums / places
    return found


def report(pair: Pair, texts: Texts, temperature: float) -> None:
    """Prints both ways for one temperature."""
    p = [probabilities(logits, temperature) for logits in texts.target]
    everywhere = np.concatenate(p)
    overlap = {}
    for factor in FACTORS:
        q = np.concatenate([probabilities(logits, factor * temperature) for logits in texts.draft])
        overlap[factor] = float(np.minimum(everywhere, q).sum(axis=1).mean())
    best = max(overlap, key=overlap.__getitem__)
    likeliest = np.concatenate([logits.argmax(axis=1) for logits in texts.draft])
    compared = float(everywhere[np.arange(likeliest.size), likeliest].mean())
    print(f"\nT={temperature:g}, {likeliest.size} places: comparing samples {compared:.3f}, drawn guesses "
          f"{overlap[best]:.3f} (1 - TV, draft at {best:g} times the temperature; "
          f"{overlap[1.0]:.3f} at the same)")  # fmt: skip
    ratio, same = [], []
    for at, p_text in enumerate(p):
        tokens, places = texts.tokens[at], np.arange(len(texts.tokens[at]))
        q_text = probabilities(texts.draft[at], best * temperature)
        ratio.append(np.minimum(1.0, q_text[places, tokens] / p_text[places, tokens]))
        same.append((texts.draft[at].argmax(axis=1) == tokens).astype(np.float64))
    costs = pair.costs()
    prices, step = costs.target.prices(LONGEST + 1), costs.draft.seconds(1)
    best_of = []
    for name, kept in (("comparing samples", same), ("drawn guesses", ratio)):
        accepted = reach(kept)
        gain = gains(tuple(accepted.tolist()), prices, step)
        best_of.append(float(gain.max()))
        chain = ", ".join(f"{1 + accepted[:k].sum():.2f}" for k in (1, 2, 3, 4, 8, 16))
        print(f"  {name:18} tokens a round at k = 1, 2, 3, 4, 8, 16: {chain}; at these costs at most "
              f"{gain.max():.2f} times plain, k={int(gain.argmax()) + 1}")  # fmt: skip
    print(f"  the second over the first, each at its best length: {best_of[1] / best_of[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="TARGET DRAFT")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.7, 1.0])
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("-n", type=int, default=96, help="tokens of each text")
    chosen = parser.parse_args()
    target, draft = chosen.files or (tiny.target_path(), tiny.draft_path())
    with Pair(target, draft, PairSettings(n_ctx=2048, remember=False)) as pair:
        costs = pair.costs()
        one = costs.target.seconds(1)
        shape = ", ".join(f"{n}: {costs.target.seconds(n) / one:.2f}" for n in (2, 3, 4, 8, 16))
        print(f"t(1) {one * 1e3:.1f} ms, draft {costs.draft.seconds(1) / one:.3f}, t(n)/t(1) {shape}")
        own = tokenize(pair, prompts(chosen.prompts), raw=True).values()
        for temperature in chosen.temperatures:
            asking = [ids[-PROMPT_TOKENS:] for ids in own]
            report(pair, write(pair, asking, temperature, chosen.n, seed=1), temperature)


if __name__ == "__main__":
    main()
