"""How long a training is, how its learning rate changes, and one step of it.

Schedules go by tokens and not by the clock: a stopped process or a restart changes nothing but the finishing
time.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Plan:
    """Say how long and how a stage trains; lengths and counts are in tokens."""

    tokens: int
    anneal: int = 0  # over how many last tokens the rate falls
    full: float = 1.0  # share of the rate before it falls
    floor: float = 0.0  # and after it has fallen
    warmup: int = 400_000
    batch: int = 4096  # tokens a step
    lengths: tuple[tuple[int, int], ...] = ((0, 256),)  # (from so many tokens on, window length)
    matrix_rate: float = 4e-3
    vector_rate: float = 3e-3
    decay: float = 0.05
    first_epoch: int = 0
    save_every: int = 1_000_000
    micro: int = 2048  # tokens that go through at once; more do not fit the processor's cache

    def factor(self, done: int) -> float:
        """Return the share of the full rate after `done` tokens."""
        rise = min(1.0, (done + 1) / self.warmup) if self.warmup else 1.0
        fall = min(1.0, max(0.0, (self.tokens - done) / self.anneal)) if self.anneal else 1.0
        return rise * (self.floor + (self.full - self.floor) * fall)

    def length(self, done: int) -> int:
        """Return the window length after `done` tokens."""
        return [length for start, length in self.lengths if done >= start][-1]


def step(model: nn.Module, steppers: list[torch.optim.Optimizer], factor: float) -> None:
    """Apply the gradients at this share of the full rate."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimiser in steppers:
        for group in optimiser.param_groups:
            group["lr"] = group["full_rate"] * factor
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
