"""How far a head's guess is from the target's distribution, over the target's likeliest tokens.

The forward KL divergence over the target's TOP tokens and one class for the rest; least at q = p, where
both acceptance rules are best. A head with a vocabulary of its own cannot guess some tokens: their share of p
is left out, and the position counts less.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 256  # rows whose scores are held at once


@dataclass(frozen=True, slots=True)
class Rows:
    """Hold the target's likeliest tokens at n positions, and their probabilities."""

    ids: Tensor  # (n, TOP); -1: the head has no such token
    p: Tensor  # (n, TOP), at temperature 1
    sharp: Tensor  # share of p that is moved to the first choice, for greedy text (n)


def of_choices(log_q: Tensor, rows: Rows, tv: float = 0.0) -> Tensor:
    """Return the loss of each position in nats, from the head's own odds of the target's tokens (n, TOP)."""
    known = rows.ids >= 0
    share = rows.p * known
    kept = 1 - (rows.p * ~known).sum(-1)  # what the head can guess at all
    p = share / kept.clamp_min(1e-3)[:, None]
    rest = (1 - p.sum(-1)).clamp_min(0)
    p, rest = p * (1 - rows.sharp[:, None]), rest * (1 - rows.sharp)
    p = torch.cat((p[:, :1] + rows.sharp[:, None] * known[:, :1], p[:, 1:]), 1)
    q = log_q.exp() * known
    rest_q = (1 - q.sum(-1)).clamp_min(1e-6)
    entropy = torch.special.xlogy(p, p).sum(-1) + torch.special.xlogy(rest, rest)
    loss = entropy - (p * log_q).sum(-1) - rest * rest_q.log()
    if tv:
        distance = 1 - torch.minimum(p, q).sum(-1) - torch.minimum(rest, rest_q)
        loss = (1 - tv) * loss + tv * distance
    return loss * kept


class Divergence(torch.autograd.Function):
    """Compute loss and gradient together, some rows at a time, so that scores stay in a processor's cache.

    Where a loss depends on a softmax through the log odds of a few tokens alone, with the gradient a there,
    the gradient of the scores is a - sum(a) q.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, rows: Rows, tv: float, chunk: int) -> Tensor:
        """Return the mean loss of rows h (n, D) against frozen output rows (V, D)."""
        weight = weight.to(h.dtype)
        total, gradient = torch.zeros((), device=h.device), torch.empty_like(h)
        for i in range(0, len(h), chunk):
            part = slice(i, i + chunk)
            ids = rows.ids[part].clamp_min(0)
            scores = (h[part] @ weight.T).float()
            scores -= scores.amax(-1, keepdim=True)
            top = scores.gather(-1, ids)
            odds = scores.exp_()
            norm = odds.sum(-1, keepdim=True)
            with torch.enable_grad():
                log_q = (top - norm.log()).requires_grad_()
                loss = of_choices(log_q, Rows(rows.ids[part], rows.p[part], rows.sharp[part]), tv).sum()
                (a,) = torch.autograd.grad(loss, log_q)
            odds *= -a.sum(-1, keepdim=True) / norm
            odds.scatter_add_(1, ids, a)
            gradient[part] = odds.to(h.dtype) @ weight
            total += loss.detach()
        ctx.save_for_backward(gradient / max(1, len(h)))
        return total / max(1, len(h))

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Pass the gradient on to h."""
        return ctx.saved_tensors[0] * outer[0], None, None, None, None


def divergence_of(h: Tensor, weight: Tensor, rows: Rows, tv: float = 0.0, *, chunk: int = CHUNK) -> Tensor:
    """Return `divergence` of the scores of frozen output rows (V, D) at positions h (n, D)."""
    loss: Tensor = Divergence.apply(h, weight, rows, tv, chunk)  # type: ignore[no-untyped-call]
    return loss


def divergence(logits: Tensor, rows: Rows, tv: float = 0.0) -> Tensor:
    """Return the mean loss over positions (n, V), in nats; `tv` of it is the total variation instead."""
    log_q = logits.float().log_softmax(-1).gather(-1, rows.ids.clamp_min(0))
    return of_choices(log_q, rows, tv).sum() / len(logits)


@torch.inference_mode()
def agreement(logits: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return for each position whether the first choices agree, and how much p and q share at least."""
    log_q = logits.float().log_softmax(-1).gather(-1, rows.ids.clamp_min(0))
    shared = torch.minimum(rows.p, log_q.exp()) * (rows.ids >= 0)
    return (logits.argmax(-1) == rows.ids[:, 0]).float(), shared.sum(-1)
