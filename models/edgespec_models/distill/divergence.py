"""How far a head's guess is from what the target would say, by the target's likeliest tokens.

The forward KL divergence over the target's TOP tokens and one class for the rest; least where q = p, where
both acceptance rules are best. A head with a vocabulary of its own cannot guess some tokens: their share of p
is left out, and the place counts less.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold the target's likeliest tokens at n places, and how likely they are."""

    ids: Tensor  # (n, TOP); -1: the head has no such token
    p: Tensor  # (n, TOP), at temperature 1
    sharp: Tensor  # share of p that is moved to the first choice, for greedy text (n)


def divergence(logits: Tensor, rows: Rows, tv: float = 0.0) -> Tensor:
    """Return the mean loss over places (n, V), in nats; `tv` of it is the total variation instead."""
    known = rows.ids >= 0
    share = rows.p * known
    kept = 1 - (rows.p * ~known).sum(-1)  # what the head could say at all
    p = share / kept.clamp_min(1e-3)[:, None]
    rest = (1 - p.sum(-1)).clamp_min(0)
    p, rest = p * (1 - rows.sharp[:, None]), rest * (1 - rows.sharp)
    p = torch.cat((p[:, :1] + rows.sharp[:, None] * known[:, :1], p[:, 1:]), 1)
    log_q = logits.float().log_softmax(-1).gather(-1, rows.ids.clamp_min(0))
    q = log_q.exp() * known
    rest_q = (1 - q.sum(-1)).clamp_min(1e-6)
    entropy = torch.special.xlogy(p, p).sum(-1) + torch.special.xlogy(rest, rest)
    loss = entropy - (p * log_q).sum(-1) - rest * rest_q.log()
    if tv:
        distance = 1 - torch.minimum(p, q).sum(-1) - torch.minimum(rest, rest_q)
        loss = (1 - tv) * loss + tv * distance
    return (loss * kept).sum() / len(loss)


@torch.inference_mode()
def agreement(logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return for each place whether the first choices agree, and how much p and q share at least."""
    log_q = logits.float().log_softmax(-1).gather(-1, rows.ids.clamp_min(0))
    shared = torch.minimum(rows.p, log_q.exp()) * (rows.ids >= 0)
    return (logits.argmax(-1) == rows.ids[:, 0]).float(), shared.sum(-1)
