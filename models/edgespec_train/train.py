"""Train a draft: its guesses are compared with the target's rows.

A head guesses several tokens in turn after every position, a small network one.

Optimisers: Muon over the matrices, AdamW over norms and embeddings. The schedule goes by tokens, and the
state is saved with its place in the text, so a run resumes where it was stopped.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgespec_models.kept_file import replacing
from edgespec_train import device
from edgespec_train.batch import TOGETHER, Batch, batch_of, one_pass
from edgespec_train.divergence import Rows, agreement, divergence, divergence_of
from edgespec_train.head import HeadNetwork, Keys
from edgespec_train.medusa import HEADS, MedusaNetwork
from edgespec_train.network import Llama
from edgespec_train.progress import Log, Meter, Stop, StopRequest
from edgespec_train.recorded import RecordedText

STEPS = 3
FEWER_UNTIL = 0.5  # of the plan, one step less is unrolled: most is learned from the first two
TV_FROM = 0.7  # of the plan, half of the loss is the distance that decides acceptance
FURTHER = 0.25  # of the rows guess on after the first step
LATER = 0.7  # weight of a later guess relative to the one before it
SHARP = 0.15  # of greedy text's rows is moved to the first choice
SAVE_S = 120.0
Student = HeadNetwork | MedusaNetwork | Llama  # what is trained: a head, or a small draft


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


@dataclass(slots=True)
class TrainingState:
    """Hold how far a training is."""

    done: int = 0  # tokens
    passes: int = 0
    batch: int = 0  # of this pass


def device_of(head: Student) -> torch.device:
    """Return where a student's weights are."""
    return next(head.parameters()).device


def optimisers(head: Student, plan: Plan) -> list[torch.optim.Optimizer]:
    """Return Muon over the blocks' matrices and AdamW over the other trained weights."""
    apart = ("output", "embed")  # rows of tokens
    matrices = [p for name, p in head.named_parameters() if p.ndim == 2 and not name.startswith(apart)]
    chosen = {id(p) for p in matrices}
    vectors = [p for p in head.parameters() if id(p) not in chosen and p.requires_grad]
    muon = torch.optim.Muon(
        matrices, lr=plan.matrix_rate, weight_decay=plan.decay, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    groups: list[dict[str, Any]] = [{"params": vectors, "lr": plan.vector_rate}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
    for optimiser in (muon, adam):
        for group in optimiser.param_groups:
            group["full_rate"] = group["lr"]
    return [muon, adam]


def output_of(head: Student) -> Tensor:
    """Return the rows (V, D) that scores come from: a head's are its target's, and are frozen."""
    return head.embed.weight if isinstance(head, Llama) else head.output.weight


def guesses(
    head: Student, some: Batch, steps: int = STEPS, seed: int | None = None
) -> Iterator[tuple[Tensor, Rows]]:
    """Yield for each step the normed states (n, D) at the chosen positions, and the target's rows there.

    With a seed, only a random share FURTHER of the rows continues after the first step: that costs less.
    """
    if isinstance(head, Llama):
        yield head.hidden(some.ids)[some.asked], _rows(some, slice(None))
        return
    if isinstance(head, MedusaNetwork):
        for i, g in enumerate(head.guesses(some.states), 1):
            part = slice(i, None)
            yield g[:, :-i][some.asked[:, part]], _rows(some, part)
        return
    ahead = head.ahead
    rows = some.ids.shape[1] - ahead - steps + 1
    states = some.states if ahead else torch.nn.functional.pad(some.states, (0, 0, 1, 0))
    keys: Keys = []
    g = head.begin(states[:, :rows])
    at = torch.arange(rows, device=g.device)
    for i in range(steps):
        if i == 1 and seed is not None:
            drawn = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
            at = drawn[: max(1, int(FURTHER * rows))].sort().values.to(g.device)
            g = g[:, at]
        part = at + ahead + i
        g = head.step(some.ids[:, part], g, i, at, keys)
        yield head.norm(g[some.asked[:, part]]), _rows(some, part)


def _rows(some: Batch, part: slice | Tensor) -> Rows:
    """Return the target's rows to learn from, of some positions."""
    asked = some.asked[:, part]
    sharp = SHARP * some.greedy[:, None].expand_as(asked)[asked].float()
    return Rows(some.top_ids[:, part][asked], some.top_p[:, part][asked], sharp)


def loss_of(
    head: Student, some: Batch, steps: int = STEPS, tv: float = 0.0, seed: int | None = None
) -> Tensor:
    """Return the mean loss of a guess, later ones counting less."""
    some = some.on(device_of(head))
    with torch.autocast(some.ids.device.type, torch.bfloat16):
        weight, learns = output_of(head), isinstance(head, Llama)
        losses = [
            divergence(torch.nn.functional.linear(h, weight), rows, tv)
            if learns
            else divergence_of(h, weight, rows, tv)
            for h, rows in guesses(head, some, steps, seed)
        ]
    weights = [LATER**i for i in range(len(losses))]
    return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum() / sum(weights)


@torch.inference_mode()
def held_out_figures(
    head: Student, texts: list[RecordedText], numbers: NDArray[np.int64] | None
) -> list[tuple[float, float, float]]:
    """Return by step: agreeing first choices on greedy and sampled text; probability shared on the latter."""
    steps = 1 if isinstance(head, Llama) else HEADS if isinstance(head, MedusaNetwork) else STEPS
    found: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in range(steps)]
    for i in range(0, len(texts), 8):
        some = batch_of(texts[i : i + 8], numbers).on(device_of(head))
        with torch.autocast(some.ids.device.type, torch.bfloat16):
            for into, (h, rows) in zip(found, guesses(head, some), strict=True):
                logits = torch.nn.functional.linear(h, output_of(head))
                into.append((*agreement(logits, rows), rows.sharp > 0))
    means = []
    for parts in found:
        same, shared, greedy = (torch.cat(p) for p in zip(*parts, strict=True))
        means.append((float(same[greedy].mean()), float(same[~greedy].mean()), float(shared[~greedy].mean())))
    return means


def save(path: Path, head: Student, steppers: list[torch.optim.Optimizer], at: TrainingState) -> None:
    """Write the state whole or not at all."""
    place = {"done": at.done, "passes": at.passes, "batch": at.batch}
    content = {"head": head.state_dict(), "optimisers": [s.state_dict() for s in steppers], **place}
    with replacing(path) as aside, aside.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # torch's report of a full disk
            if "write" not in str(error).lower():
                raise
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error


def resume(path: Path, head: Student, steppers: list[torch.optim.Optimizer]) -> TrainingState:
    """Load a saved state into the head and its optimisers; without one, start."""
    if not path.exists():
        return TrainingState()
    content = torch.load(path, weights_only=True, map_location="cpu")
    head.load_state_dict(content["head"])
    for stepper, state in zip(steppers, content["optimisers"], strict=True):
        stepper.load_state_dict(state)
    return TrainingState(content["done"], content["passes"], content["batch"])


def train(
    head: Student,
    shards: list[Path],
    held_out: list[RecordedText],
    numbers: NDArray[np.int64] | None,
    path: Path,
    plan: Plan,
    log: Log,
    *,
    stop: StopRequest | None = None,
    save_s: float = SAVE_S,
    threads: int = 1,
    together: int = TOGETHER,
    inside: Callable[[float], AbstractContextManager[None]] = lambda share: nullcontext(),
) -> bool:
    """Train until `plan.tokens` (True), or until `stop`, by default a signal, asks for an end (False).

    The state goes to `path`. From the share TV_FROM of the plan on, half of the loss is the distance that
    decides acceptance. `inside` gives what losses are computed in, by the share of the plan that is done.
    """
    steppers = optimisers(head, plan)
    at = resume(path, head, steppers)
    every = max(1, min(50, plan.tokens // plan.batch // 20))
    stop, meter = stop or Stop(), Meter(path.stem, plan.tokens, log, every)
    saved, ended = time.monotonic(), at.done >= plan.tokens
    size = plan.micro if device_of(head).type == "cpu" else plan.batch

    def keep() -> None:
        save(path, head, steppers, at)
        shown = "  ".join(f"{g:.3f}/{w:.3f}/{s:.3f}" for g, w, s in held_out_figures(head, held_out, numbers))
        log(f"{path.stem}: saved at {at.done:,} tokens; held-out greedy/warm first choice/shared: {shown}")

    while not ended:
        for i, texts in enumerate(one_pass(shards, at.passes, size, together)):
            if i < at.batch:
                continue
            some = batch_of(texts, numbers)
            share = at.done / plan.tokens
            steps = STEPS - 1 if share < FEWER_UNTIL else STEPS
            with inside(share):
                loss = loss_of(head, some, steps, 0.5 if share >= TV_FROM else 0.0, at.done)
                (loss * (some.ids.numel() / plan.batch)).backward()  # type: ignore[no-untyped-call]
            before = at.done // plan.batch
            at.done, at.batch = at.done + some.ids.numel(), i + 1
            meter.add(some.ids.numel(), loss.item(), at.done)
            if at.done // plan.batch == before:
                continue  # a state is never saved with half a step's gradients
            step(head, steppers, plan.factor(at.done))
            if ended := at.done >= plan.tokens or stop.wanted:
                break
            if time.monotonic() - saved > save_s:
                keep()
                if threads > 1:
                    device.use_threads(threads)
                saved = time.monotonic()
                meter.rest()
        else:
            at.passes, at.batch = at.passes + 1, 0
    keep()
    return at.done >= plan.tokens
