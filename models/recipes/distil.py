"""Tune a draft to the target's own output.

The loss at a place is the forward KL divergence from the target's distribution p to the draft's q, over the
target's TOP most likely tokens and one more class for all the rest. It is least at q = p, where
both acceptance rules are best (accepted at temperature 1: 1 - TV(p, q)). Training moves a share of p to the
target's first choice, for greedy text.
"""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec_models.distill.network import Llama
from edgespec_models.distill.plan import Plan, step
from edgespec_models.distill.progress import Log, Meter, Stop
from recipes import checkpoint
from recipes.rounding import rounded
from recipes.said import TOP
from recipes.train import optimisers

SHARP = 0.3  # the goal is for greedy text, so the first choice counts for more than its probability
ROUND_FROM = 0.7  # of the plan, weights are rounded as in the file
PROMPT_WEIGHT = 0.25  # of a position inside a prompt
Said = tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.float16], int]


@dataclass(frozen=True, slots=True)
class TargetLesson:
    """Hold texts of similar length: inputs (B, T), and the target's answers at each position (B, T, TOP)."""

    ids: Tensor
    top_ids: Tensor
    top_p: Tensor
    weight: Tensor  # weight of each position (B, T)

    def on(self, device: torch.device) -> "TargetLesson":
        """Return the lesson in the memory of a device."""
        return TargetLesson(*(part.to(device) for part in (self.ids, self.top_ids, self.top_p, self.weight)))


def read_texts(paths: list[Path]) -> list[Said]:
    """Return (ids, top_ids, top_p, tokens of the prompt) of every text of the shards."""
    texts = []
    for path in paths:
        with np.load(path) as shard:
            ids, top_ids, top_p = shard["ids"], shard["top_ids"], shard["top_p"]
            ends, prompts = np.cumsum(shard["length"]), shard["prompt"]
        for start, end, prompt in zip([0, *ends[:-1]], ends, prompts, strict=True):
            if end - start >= 4:
                texts.append((ids[start:end], top_ids[start:end], top_p[start:end], int(prompt)))
    return texts


def lessons(paths: list[Path], seed: int, size: int) -> Iterator[TargetLesson]:
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
        weight = np.zeros((len(group), longest), np.float32)
        for row, i in enumerate(group):
            length, prompt = len(texts[i][0]), texts[i][3]
            ids[row, :length], top_ids[row, :length], top_p[row, :length] = texts[i][:3]
            weight[row, : prompt - 1], weight[row, prompt - 1 : length - 1] = PROMPT_WEIGHT, 1
        yield TargetLesson(*map(torch.from_numpy, (ids, top_ids, top_p, weight)))


def divergence(model: Llama, lesson: TargetLesson, sharp: float = 0.0) -> Tensor:
    """Return the mean KL(p || q) in nats; `sharp` of p is moved to the target's first choice."""
    lesson = lesson.on(model.embed.weight.device)
    asked = lesson.weight > 0
    with torch.autocast(lesson.ids.device.type, torch.bfloat16):
        hidden = model.hidden(lesson.ids)[asked]  # (n, D)
        logits = torch.nn.functional.linear(hidden, model.embed.weight)  # (n, V)
    log_q = logits.float().log_softmax(-1).gather(-1, lesson.top_ids[asked])  # (n, TOP)
    p = (1 - sharp) * lesson.top_p[asked]
    p[:, 0] += sharp
    rest_p = (1 - p.sum(-1)).clamp_min(0)
    rest_q = (1 - log_q.exp().sum(-1)).clamp_min(1e-6)
    entropy = torch.special.xlogy(p, p).sum(-1) + torch.special.xlogy(rest_p, rest_p)
    loss = entropy - (p * log_q).sum(-1) - rest_p * rest_q.log()
    weight = lesson.weight[asked]
    return (loss * weight).sum() / weight.sum()


def distil(model: Llama, shards: list[Path], work: Path, name: str, plan: Plan, log: Log = print) -> bool:
    """Train on the shards until `plan.tokens`; `work/name.pt` has the state. False if asked to stop."""
    path = work / f"{name}.pt"
    steppers = optimisers(model, plan)
    done, passes = checkpoint.resume(path, model, steppers)
    stop = Stop()
    meter = Meter(name, plan.tokens, log, every=100)
    while done < plan.tokens and not stop.wanted:
        for lesson in lessons(shards, passes, plan.batch):
            with rounded(model) if done >= ROUND_FROM * plan.tokens else nullcontext():
                loss = divergence(model, lesson, SHARP)
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
