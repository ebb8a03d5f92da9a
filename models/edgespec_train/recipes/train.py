"""Train a network on the corpus by next-token prediction.

Optimisers, schedule and state are those of `edgespec_train.train`, which trains on a target's text.
A stopped process (SIGSTOP) or a restart changes nothing but the finishing time. SIGTERM saves and ends.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from edgespec_train.network import Llama, count_parameters
from edgespec_train.progress import Log, Meter, Stop
from edgespec_train.recipes import data
from edgespec_train.train import Plan, optimisers, resume, save, step


def loss_of(model: Llama, batch: Tensor) -> Tensor:
    """Return the mean cross-entropy (nats a token) of windows (B, T + 1)."""
    batch = batch.to(model.embed.weight.device)
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def accumulate(model: Llama, window: Tensor, micro: int) -> float:
    """Add the gradients of a batch (B, T + 1) in small parts; return its mean loss."""
    parts = torch.split(window, max(1, micro // (window.shape[1] - 1)))
    total = 0.0
    for part in parts:
        loss = loss_of(model, part) * (len(part) / len(window))
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total


@torch.inference_mode()
def held_out_loss(model: Llama, tokens: data.Tokens, limit: int = 24, length: int = 512) -> float:
    """Return the mean loss over the first windows of held-out tokens."""
    rows = [tokens[i : i + length + 1] for i in range(0, len(tokens) - length - 1, length)][:limit]
    batch = torch.from_numpy(np.stack(rows).astype(np.int64))
    return float(np.mean([float(loss_of(model, part)) for part in torch.split(batch, 8)]))


def batches(
    work: Path, tokenizer: Tokenizer, plan: Plan, done: int
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield windows from where `done` tokens have been seen; a new epoch, or length, takes new text."""
    seen = 0
    number = plan.first_epoch
    while True:
        tokens = data.epoch_tokens(work, tokenizer, number)
        length = plan.length(seen)
        rows = max(1, plan.batch // length)
        for window in data.windows(tokens, length, rows, number):
            if seen >= done:
                yield window
            seen += rows * length
            if plan.length(seen) != length:
                break
        number += 1


def train(model: Llama, work: Path, name: str, tokenizer: Tokenizer, plan: Plan, log: Log) -> bool:
    """Train until the plan is fulfilled (True) or a signal asks to stop (False); state: `work/name.pt`."""
    path = work / f"{name}.pt"
    micro = plan.micro if model.embed.weight.device.type == "cpu" else plan.batch
    steppers = optimisers(model, plan)
    at = resume(path, model, steppers)
    if at.done >= plan.tokens:
        return True
    stop = Stop()
    evaluation = data.held_out_tokens(work, tokenizer)
    log(f"{name}: {count_parameters(model) / 1e6:.2f}M parameters, {at.done / 1e6:.2f}M tokens done")

    def keep() -> None:
        save(path, model, steppers, at)
        losses = {kind: held_out_loss(model, evaluation[kind]) for kind in ("code", "docs", "body", "fim")}
        report = "  ".join(f"{kind} {loss:.3f}" for kind, loss in losses.items())
        log(f"{name}: saved at {at.done / 1e6:.2f}M; held-out {report}")

    meter = Meter(name, plan.tokens, log, every=20)
    saved_at = at.done
    for window in batches(work, tokenizer, plan, at.done):
        if at.done >= plan.tokens or stop.wanted:
            break
        loss = accumulate(model, torch.from_numpy(window), micro)
        step(model, steppers, plan.factor(at.done))
        size = window.shape[0] * (window.shape[1] - 1)
        at.done += size
        meter.add(size, loss, at.done)
        if at.done - saved_at >= plan.save_every:
            keep()
            saved_at = at.done
            meter.rest()
    keep()
    return at.done >= plan.tokens
