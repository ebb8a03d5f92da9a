"""Count how many of a head's guesses its target accepts, through llama.cpp, by kind of prompt and position.

As in `recipes/measure.py` for a draft: k guesses a round, token verification over the whole vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgespec_models.distill.hidden import Hidden, States
from recipes.heads.guesser import HeadGuesser
from recipes.measure import Count, K, Probabilities, softmax, verify


@dataclass(frozen=True, slots=True)
class TokenisedPrompt:
    kind: str
    ids: list[int]


def guess(
    head: HeadGuesser, at: int, row: Any, temperature: float, rng: np.random.Generator
) -> tuple[list[int], Probabilities]:
    """Draw K tokens in turn for the positions from `at` on; return them and their distributions (K, V)."""
    guesses: list[int] = []
    found = []
    for i in range(K):
        found.append(softmax(row, temperature))
        guesses.append(int(rng.choice(len(found[-1]), p=found[-1])))
        if i < K - 1:
            row = head.read([guesses[-1]], head.own_state(), at + i)[-1]
    head.forget(at)  # drafted rows go: the true ones come with the target's states
    return guesses, np.stack(found)


def speculate(
    target: Hidden,
    head: HeadGuesser,
    prompt: list[int],
    tokens: int,
    temperature: float,
    seed: int,
    ends: set[int],
) -> tuple[list[int], Count]:
    """Continue a prompt with a head's guesses; return the new tokens and the counts."""
    rng, count, ids = np.random.default_rng(seed), Count(), list(prompt)
    target.forget()
    head.forget(0)
    target.logits(ids[:-1])
    states: States = head.encoded(target.states(len(ids) - 1))
    if head.first == 0:
        states = np.concatenate((np.zeros((1, target.width), np.float32), states))
    fed = head.first  # the first token without a row
    while len(ids) - len(prompt) < tokens:
        row = head.read(ids[fed:], states, fed)[-1]
        guesses, q = guess(head, len(ids), row, temperature, rng)
        target.forget(len(ids) - 1)
        p = softmax(target.logits([ids[-1], *guesses], len(ids) - 1), temperature)
        left = target.states(K + 1)
        said = verify(p, q, guesses, rng, count)
        fed = len(ids)
        states = head.encoded(left[: len(said)])
        count.drafted += K
        count.rounds += 1
        for token in said:
            count.emitted += 1
            ids.append(token)
            if token in ends:
                return ids[len(prompt) :], count
    return ids[len(prompt) :], count


def plain(target: Hidden, prompt: list[int], tokens: int, ends: set[int]) -> list[int]:
    """Continue a prompt without a head, greedily."""
    target.forget()
    ids = list(prompt)
    row = target.logits(ids)[-1]
    while len(ids) - len(prompt) < tokens:
        ids.append(int(row.argmax()))
        if ids[-1] in ends:
            break
        row = target.logits([ids[-1]], len(ids) - 1)[-1]
    return ids[len(prompt) :]


def rates(
    target: Hidden,
    head: HeadGuesser,
    prompts: Iterable[TokenisedPrompt],
    temperature: float,
    tokens: int,
    ends: set[int],
) -> dict[str, Any]:
    """Return rates by kind of prompt and over all."""
    counts: dict[str, Count] = {}
    for seed, prompt in enumerate(prompts):
        _, count = speculate(target, head, prompt.ids, tokens, temperature, seed, ends)
        for kind in (prompt.kind, "all"):
            counts.setdefault(kind, Count()).add(count)
    return {kind: count.report() for kind, count in counts.items()}
