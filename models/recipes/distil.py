"""Tune a draft to what the target itself says.

The loss at a generated token is the forward KL divergence from the target's distribution p to the draft's
q, over the target's TOP most likely tokens and one more class for all the rest. It is least where q = p,
which is where both acceptance rules are best (accepted at temperature 1: 1 - TV(p, q)).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipes import checkpoint
from recipes.model import Llama
from recipes.progress import Log, Meter, Stop
from recipes.said import TOP
from recipes.train import Plan, optimisers, step


@dataclass(frozen=True, slots=True)
class Lesson:
    """Hold texts of similar length: inputs (B, T), and the target's answers at each place (B, T, TOP)."""

    ids: Tensor
    top_ids: Tensor
    top_p: Tensor  # all zero where the target was not asked

    def on(self, device: torch.device) -> "Lesson":
        """Return the lesson in the memory of a device."""
        return Lesson(self.ids.to(device), self.top_ids.to(device), self.top_p.to(device))


def read_texts(paths: list[Path]) -> list[tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.float16]]]:
    """Return (ids, top_ids, top_p) of every text of the shards."""
    texts = []
    for path in paths:
        with np.load(path) as shard:
            ids, top_ids, top_p = shard["ids"], shard["top_ids"], shard["top_p"]
            ends = np.cumsum(shard["length"])
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            if end - start >= 4:
                texts.append((ids[start:end], top_ids[start:end], top_p[start:end]))
    return texts


def lessons(paths: list[Path], seed: int, size: int) -> Iterator[Lesson]:
    """Yield every text once, in batches of about `size` tokens of similar length."""
    texts = read_texts(paths)
    rng = random.Random(f"lessons {seed}")
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) * rng.uniform(0.9, 1.1))
    groups: list[list[int]] = [[]]
    for i in order:
        longest = max((len(texts[j][0]) for j in [*groups[-1], i]), default=0)
        if groups[-1] and longest * (len(groups[-1]) + 1) > size:
            groups.append([])
        groups[-1].append(i)
    rng.shuffle(groups)
    for group in groups:
        longest = max(len(texts[i][0]) for i in group)
        ids = np.zeros((len(group), longest), np.int64)
        top_ids = np.zeros((len(group), longest, TOP), np.int64)
        top_p = np.zeros((len(group), longest, TOP), np.float32)
        for row, i in enumerate(group):
            length = len(texts[i][0])
            ids[row, :length], top_ids[row, :length], top_p[row, :length] = texts[i]
        yield Lesson(torch.from_numpy(ids), torch.from_numpy(top_ids), torch.from_numpy(top_p))


def divergence(model: Llama, lesson: Lesson) -> Tensor:
    """Return the mean KL(p || q) in nats over the places where the target spoke."""
    lesson = lesson.on(model.embed.weight.device)
    asked = lesson.top_p.sum(-1) > 0
    with torch.autocast(lesson.ids.device.type, torch.bfloat16):
        hidden = model.hidden(lesson.ids)[asked]  # (n, D)
        logits = torch.nn.functional.linear(hidden, model.embed.weight)  # (n, V)
    log_q = logits.float().log_softmax(-1).gather(-1, lesson.top_ids[asked])  # (n, TOP)
    p = lesson.top_p[asked]
    rest_p = (1 - p.sum(-1)).clamp_min(0)
    rest_q = (1 - log_q.exp().sum(-1)).clamp_min(1e-6)
    entropy = torch.special.xlogy(p, p).sum(-1) + torch.special.xlogy(rest_p, rest_p)
    return (entropy - (p * log_q).sum(-1) - rest_p * rest_q.log()).mean()


def distil(model: Llama, shards: list[Path], work: Path, name: str, plan: Plan, log: Log = print) -> bool:
    """Train on the shards until `plan.tokens`; `work/name.pt` has the state. False if asked to stop."""
    path = work / f"{name}.pt"
    steppers = optimisers(model, plan)
    done, passes = checkpoint.resume(path, model, steppers)
    stop = Stop()
    meter = Meter(name, plan.tokens, log, every=100)
    while done < plan.tokens and not stop.wanted:
        for lesson in lessons(shards, passes, plan.batch):
            loss = divergence(model, lesson)
            loss.backward()  # type: ignore[no-untyped-call]
            step(model, steppers, plan.factor(done))
            done += lesson.ids.numel()
            meter.add(lesson.ids.numel(), loss.item(), done)
            if done >= plan.tokens or stop.wanted:
                break
        passes += 1
        checkpoint.save(path, model, steppers, done, passes)
        meter.rest()
    return done >= plan.tokens
