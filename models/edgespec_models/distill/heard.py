"""Keep what a target says, with its hidden states and its likely next tokens at every place.

A head learns from these. A shard holds flat arrays over all tokens of all texts: `ids`; for each text
`length`, `prompt` and `temperature`; for each token `states` (F, float16), what the target's layers made of
it, and the TOP most likely next tokens at temperature 1, best first (`top_ids`, `top_p`). A text's last token
has neither: nothing was asked after it; inside prompts there are states only.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TOP = 32


@dataclass(frozen=True, slots=True)
class Heard:
    """Hold one text of n tokens, of which the first `prompt` were given."""

    ids: NDArray[np.uint16]  # (n,)
    prompt: int
    temperature: float
    states: NDArray[np.float16]  # (n - 1, F)
    top_ids: NDArray[np.uint16]  # (n - prompt, TOP): the rows that chose the tokens said
    top_p: NDArray[np.float16]


def write(path: Path, texts: list[Heard]) -> None:
    """Write texts as flat arrays, whole or not at all."""
    total = sum(len(t.ids) for t in texts)
    states = np.zeros((total, texts[0].states.shape[1]), np.float16)
    top_ids, top_p = np.zeros((total, TOP), np.uint16), np.zeros((total, TOP), np.float16)
    start = 0
    for text in texts:
        end = start + len(text.ids) - 1
        states[start:end] = text.states
        top_ids[end - len(text.top_ids) : end] = text.top_ids
        top_p[end - len(text.top_p) : end] = text.top_p
        start = end + 1
    aside = path.with_suffix(".part.npz")
    np.savez(
        aside,
        ids=np.concatenate([t.ids for t in texts]),
        length=np.asarray([len(t.ids) for t in texts]),
        prompt=np.asarray([t.prompt for t in texts]),
        temperature=np.asarray([t.temperature for t in texts], np.float32),
        states=states,
        top_ids=top_ids,
        top_p=top_p,
    )
    os.replace(aside, path)


def read(path: Path) -> Iterator[Heard]:
    """Yield the texts of a shard."""
    with np.load(path) as shard:
        ids, states, top_ids, top_p = (shard[name] for name in ("ids", "states", "top_ids", "top_p"))
        lengths, prompts, temperatures = shard["length"], shard["prompt"], shard["temperature"]
    ends = np.cumsum(lengths)
    for end, length, prompt, temperature in zip(ends, lengths, prompts, temperatures, strict=True):
        start, last, first = int(end - length), int(end) - 1, int(end - length + prompt) - 1
        yield Heard(
            ids[start:end],
            int(prompt),
            float(temperature),
            states[start:last],
            top_ids[first:last],
            top_p[first:last],
        )


def said(path: Path) -> int:
    """Return how many tokens of a shard the target said itself."""
    with np.load(path) as shard:
        return int(shard["length"].sum() - shard["prompt"].sum())
