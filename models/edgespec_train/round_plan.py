"""Plans one round of a training, by how fast this machine trains."""

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec_train.batch import batch_of, one_pass
from edgespec_train.network import Llama
from edgespec_train.train import STEPS, Plan, Student, device_of, loss_of

PROBE_S = 3.0
MEMORY = 1 << 30  # bytes of scores that are held at once on a processor
FEWEST_STEPS = 120  # of a training: its batches are small enough for that


def planned(tokens: int, micro: int, first: bool) -> Plan:
    batch = max(256, min(4096, tokens // FEWEST_STEPS // 64 * 64))
    return Plan(
        tokens=tokens,
        anneal=int(tokens * 0.8),
        warmup=int(tokens * 0.02),
        batch=batch,
        micro=min(micro, batch),
        matrix_rate=1e-2,
        vector_rate=5e-3,
        full=1.0 if first else 0.4,
    )


def micro_of(student: Student) -> int:
    """Return how many tokens may go through at once: their scores take most of the memory."""
    rows = student.shape.vocab
    return int(
        max(256, min(2048, MEMORY // (rows * 4 * 4 * (STEPS if not isinstance(student, Llama) else 1))))
    )


def rate_of(student: Student, shards: list[Path], numbers: NDArray[np.int64] | None, micro: int) -> float:
    """Return how many tokens a second can be trained on, without training on any."""
    done, begun = 0, 0.0
    for n, texts in enumerate(one_pass(shards[:1], 0, micro)):
        if n == 1:  # the first one warms up
            done, begun = 0, time.monotonic()
        some = batch_of(texts, numbers)
        loss_of(student, some, STEPS, seed=1).backward()  # type: ignore[no-untyped-call]
        done += some.ids.numel()
        if n >= 2 and time.monotonic() - begun > PROBE_S:
            break
    student.zero_grad(set_to_none=True)
    if device_of(student).type == "cuda":
        torch.cuda.synchronize()
    return done / max(time.monotonic() - begun, 1e-3) if begun else float(micro)


def text_tokens(path: Path) -> int:
    """Return how many tokens the texts of a shard have."""
    with np.load(path) as shard:
        return int(shard["length"].sum())
