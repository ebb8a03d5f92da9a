"""Rows of scores: the likeliest tokens, and a draw.

In torch, whose selections, exponentials and sums take a fifth of numpy's time on rows of a whole vocabulary.
"""

import torch
from torch import Tensor

from edgespec_models.distill.heard import TOP


def best_of(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the TOP most likely tokens of rows (n, V) and their probabilities, best first."""
    best, ids = scores.topk(TOP)
    return ids, (best - scores.logsumexp(-1, keepdim=True)).exp()


def draw(scores: Tensor, best: Tensor, temperatures: Tensor, noise: torch.Generator) -> Tensor:
    """Draw a token for each row (n, V) at its temperature (n); 0 takes the best, which is given (n)."""
    warm = (temperatures > 0).nonzero()[:, 0]
    rows = scores[warm]
    rows = (rows - rows.amax(-1, keepdim=True)).div_(temperatures[warm, None]).exp_().cumsum(-1)
    level = torch.rand(len(warm), 1, generator=noise, device=scores.device) * rows[:, -1:]
    drawn = torch.searchsorted(rows, level, right=True)[:, 0].clamp_max(scores.shape[1] - 1)
    return best.index_copy(0, warm, drawn)
