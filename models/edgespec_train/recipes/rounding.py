"""Train with the matrices as a Q4_0 file will have them, so that rounding costs the draft little.

Inside `rounded`, a network computes with rounded weights, and gradients are taken there; after it the exact
weights are back, and the step is theirs (the straight-through estimator, https://arxiv.org/abs/1308.3432).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BLOCK = 32


def round_4_bits(weight: Tensor) -> Tensor:
    """Return a matrix as it comes back from Q4_0: each block has the scale of its greatest weight."""
    blocks = weight.reshape(-1, BLOCK)
    scale = blocks.gather(1, blocks.abs().argmax(1, keepdim=True)) / -8
    inverse = torch.where(scale == 0, 0.0, 1 / scale)
    steps = (blocks * inverse + 8.5).floor().clamp(0, 15) - 8
    return (steps * scale.half().float()).reshape(weight.shape)


@contextmanager
def rounded(model: nn.Module) -> Iterator[None]:
    """Let every matrix be a rounded one for a while."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    exact = [p.data for p in matrices]
    for p in matrices:
        p.data = round_4_bits(p.data)
    try:
        yield
    finally:
        for p, weight in zip(matrices, exact, strict=True):
            p.data = weight
