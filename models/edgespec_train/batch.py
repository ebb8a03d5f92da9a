"""Turn recorded texts into batches: every text once a pass, with others of similar length."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec_train import recorded
from edgespec_train.recorded import TOP, RecordedText

TOGETHER = 12  # shards in memory at once


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold texts of similar length, padded at the right: B texts of N tokens."""

    ids: Tensor  # (B, N)
    states: Tensor  # of the target after each token (B, N, F)
    top_ids: Tensor  # likeliest next tokens after each, by the head's numbers, -1: it has none (B, N, TOP)
    top_p: Tensor  # (B, N, TOP)
    asked: Tensor  # whether there is a row to train on after this token (B, N)
    greedy: Tensor  # whether the text was written at temperature 0 (B)

    def on(self, device: torch.device) -> "Batch":
        """Return the batch in the memory of a device."""
        parts = (self.ids, self.states, self.top_ids, self.top_p, self.asked, self.greedy)
        return Batch(*(part.to(device) for part in parts))


def batch_of(texts: list[RecordedText], numbers: NDArray[np.int64] | None) -> Batch:
    """Pad texts; `numbers` are the head's own for the target's tokens, -1 if it has none."""
    longest = max(len(t.ids) for t in texts)
    room = (len(texts), longest)
    ids, asked = np.zeros(room, np.int64), np.zeros(room, np.bool_)
    states = np.zeros((*room, texts[0].states.shape[1]), np.float32)
    top_ids, top_p = np.zeros((*room, TOP), np.int64), np.zeros((*room, TOP), np.float32)
    for i, text in enumerate(texts):
        n = len(text.ids)
        ids[i, :n], states[i, : n - 1] = text.ids, text.states
        rows = slice(text.prompt - 1, n - 1)
        top_ids[i, rows], top_p[i, rows], asked[i, rows] = text.top_ids, text.top_p, True
    if numbers is not None:
        top_ids = numbers[top_ids]
    greedy = np.asarray([t.temperature == 0 for t in texts])
    return Batch(*map(torch.from_numpy, (ids, states, top_ids, top_p, asked, greedy)))


def batches(texts: list[RecordedText], size: int, rng: random.Random) -> Iterator[list[RecordedText]]:
    """Yield texts in batches of about `size` tokens, shuffled."""
    order = sorted(texts, key=lambda t: len(t.ids) * rng.uniform(0.9, 1.1))
    groups: list[list[RecordedText]] = [[]]
    for text in order:
        longest = max((len(t.ids) for t in [*groups[-1], text]), default=0)
        if groups[-1] and longest * (len(groups[-1]) + 1) > size:
            groups.append([])
        groups[-1].append(text)
    rng.shuffle(groups)
    yield from groups


def one_pass(
    shards: list[Path], number: int, size: int, together: int = TOGETHER
) -> Iterator[list[RecordedText]]:
    """Yield all texts of the shards once, in an order fixed by the number of the pass."""
    rng = random.Random(f"pass {number}")
    order = rng.sample(shards, len(shards))
    for i in range(0, len(order), together):
        texts = [text for path in order[i : i + together] for text in recorded.read(path)]
        yield from batches(texts, size, rng)
