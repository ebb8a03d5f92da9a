"""Measure a pair of GGUF files through llama.cpp: held-out loss, and the acceptance of drafts of four.

Rates are as everywhere in EdgeSpec: acceptance rate = accepted / drafted; rate at position i = accepted at
i / times i was reached. At temperature 0.8 the rule is token verification (Leviathan, Chen) over the whole
vocabulary; the counted rate comes with the exact expectation 1 - TV(p, q) at each position reached.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec_models.distill.native import Native

K = 4
Probabilities = NDArray[np.float64]
Tokens = NDArray[np.uint16]


@dataclass(slots=True)
class Count:
    """Count the results of drafted tokens, by position."""

    drafted: int = 0
    rounds: int = 0
    emitted: int = 0
    reached: list[int] = field(default_factory=lambda: [0] * K)
    accepted: list[int] = field(default_factory=lambda: [0] * K)
    expected: list[float] = field(default_factory=lambda: [0.0] * K)

    def add(self, other: "Count") -> None:
        self.drafted += other.drafted
        self.rounds += other.rounds
        self.emitted += other.emitted
        for i in range(K):
            self.reached[i] += other.reached[i]
            self.accepted[i] += other.accepted[i]
            self.expected[i] += other.expected[i]

    def report(self) -> dict[str, Any]:
        """Return the rates; `expected` is the mean of 1 - TV over the positions reached."""
        reached = [max(1, n) for n in self.reached]
        return {
            "acceptance_rate": round(sum(self.accepted) / max(1, self.drafted), 3),
            "by_position": [round(a / n, 3) for a, n in zip(self.accepted, reached, strict=True)],
            "expected_by_position": [round(e / n, 3) for e, n in zip(self.expected, reached, strict=True)],
            "mean_accepted_length": round(self.emitted / max(1, self.rounds), 2),
            "drafted": self.drafted,
        }


def softmax(logits: NDArray[np.float32], temperature: float) -> Probabilities:
    """Return probabilities (.., V); temperature 0 is a point mass on the most likely token."""
    if temperature == 0:
        return np.asarray(logits.argmax(-1)[..., None] == np.arange(logits.shape[-1]), np.float64)
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def verify(
    p: Probabilities, q: Probabilities, guesses: list[int], rng: np.random.Generator, count: Count
) -> list[int]:
    """Accept a prefix of the guesses and add one token. p is (k+1, V), q is (k, V)."""
    said: list[int] = []
    for i, guess in enumerate(guesses):
        count.reached[i] += 1
        count.expected[i] += float(np.minimum(p[i], q[i]).sum())
        if rng.random() * q[i, guess] >= p[i, guess]:
            rest = np.maximum(p[i] - q[i], 0)
            return [*said, int(rng.choice(len(rest), p=rest / rest.sum()))]
        count.accepted[i] += 1
        said.append(guess)
    return [*said, int(rng.choice(p.shape[1], p=p[-1]))]


def guess(
    draft: Native, ids: list[int], held: int, temperature: float, rng: np.random.Generator
) -> tuple[list[int], Probabilities]:
    """Draft K tokens after ids, of which the cache holds `held`; return them and their rows (K, V)."""
    draft.forget(held)
    row = draft.logits(ids[held:], held)[-1]
    guesses: list[int] = []
    rows = []
    for i in range(K):
        rows.append(softmax(row, temperature))
        guesses.append(int(rng.choice(len(row), p=rows[-1])))
        if i < K - 1:
            row = draft.logits([guesses[-1]], len(ids) + i)[-1]
    return guesses, np.stack(rows)


def speculate(
    target: Native,
    draft: Native,
    prompt: list[int],
    tokens: int,
    temperature: float,
    seed: int,
    ends: set[int],
) -> tuple[list[int], Count]:
    """Continue a prompt with drafts of K; return the new tokens and the counts."""
    rng = np.random.default_rng(seed)
    count = Count()
    ids = list(prompt)
    target.forget(0)
    target.logits(ids[:-1]) if len(ids) > 1 else None
    held_draft = 0
    while len(ids) - len(prompt) < tokens:
        guesses, q = guess(draft, ids, held_draft, temperature, rng)
        target.forget(len(ids) - 1)
        p = softmax(target.logits([ids[-1], *guesses], len(ids) - 1), temperature)
        said = verify(p, q, guesses, rng, count)
        held_draft = len(ids) + min(len(said) - 1, K - 1)
        count.drafted += K
        count.rounds += 1
        for token in said:
            count.emitted += 1
            ids.append(token)
            if token in ends:
                return ids[len(prompt) :], count
    return ids[len(prompt) :], count


def acceptance(
    target: Native,
    draft: Native,
    prompts: list[dict[str, Any]],
    temperature: float,
    tokens: int,
    ends: set[int],
) -> dict[str, Any]:
    """Return rates by kind of prompt and over all."""
    counts: dict[str, Count] = {}
    for seed, prompt in enumerate(prompts):
        ids = target.tokenise(prompt["prompt"])
        _, count = speculate(target, draft, ids, tokens, temperature, seed, ends)
        for kind in (prompt["kind"], "all"):
            counts.setdefault(kind, Count()).add(count)
    return {kind: count.report() for kind, count in counts.items()}


def loss(native: Native, tokens: Tokens, windows: int = 24, length: int = 512) -> float:
    """Return the mean cross-entropy (nats a token) over the first windows of a stream."""
    total, places = 0.0, 0
    for start in range(0, min(windows * length, len(tokens) - length - 1), length):
        ids = tokens[start : start + length + 1].astype(np.int64)
        native.forget(0)
        rows = native.logits(ids[:-1].tolist()).astype(np.float64)
        top = rows.max(1)
        norm = top + np.log(np.exp(rows - top[:, None]).sum(1))
        total += float((norm - rows[np.arange(length), ids[1:]]).sum())
        places += length
    return total / max(1, places)


def measure(
    target: Path, drafts: dict[str, Path], prompts: list[dict[str, Any]], held_out: dict[str, Tokens],
    ends: set[int],    tokens: int = 128, threads: int = 2,
) -> dict[str, Any]:  # fmt: skip
    """Measure everything the model card quotes."""
    kinds = [k for k in ("code", "docs", "body", "fim") if k in held_out]
    result: dict[str, Any] = {"loss": {}, "greedy": {}, "sampled": {}}
    with Native(target, threads=threads) as p:
        result["loss"]["target"] = {k: round(loss(p, held_out[k]), 3) for k in kinds}
        for name, path in drafts.items():
            with Native(path, threads=threads) as q:
                result["loss"][name] = {k: round(loss(q, held_out[k]), 3) for k in kinds}
                result["greedy"][name] = acceptance(p, q, prompts, 0.0, tokens, ends)
                result["sampled"][name] = acceptance(p, q, prompts, 0.8, tokens, ends)
    return result


def tables(found: dict[str, Any]) -> str:
    """Write the figures as the Markdown tables of the model card."""
    kinds = list(found["loss"]["target"])
    lines = ["| held-out loss, nats a token | " + " | ".join(kinds) + " |", "| --- |" + " --- |" * len(kinds)]
    for name, losses in found["loss"].items():
        lines.append(f"| {name} | " + " | ".join(f"{losses[k]:.2f}" for k in kinds) + " |")
    for mode, title in (("greedy", "greedy"), ("sampled", "temperature 0.8")):
        lines += [
            "",
            f"| {title}, k = {K} | kind | accepted / drafted | by position | tokens a round | drafted |",
        ]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for name, rates in found[mode].items():
            for kind in sorted(rates):
                r = rates[kind]
                places = ", ".join(f"{x:.2f}" for x in r["by_position"])
                row = (
                    name,
                    kind,
                    f"{r['acceptance_rate']:.2f}",
                    places,
                    r["mean_accepted_length"],
                    r["drafted"],
                )
                lines.append("| " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines) + "\n"
