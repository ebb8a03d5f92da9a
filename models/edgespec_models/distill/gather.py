"""Gather what a target says, shard by shard: a shard that is there is not made again."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgespec_models.distill import heard
from edgespec_models.distill.heard import Heard
from edgespec_models.distill.listen import Saying
from edgespec_models.distill.progress import Log

WIDTH = 32  # texts side by side
Sayings = Callable[[int], list[Saying]]  # of a shard, by its number
Speak = Callable[[list[Saying], int], Iterator[Heard]]  # what is asked, and a seed, to texts


def gather(speak: Speak, folder: Path, name: str, sayings: Sayings, goal: int, log: Log) -> list[Path]:
    """Return shards `folder/name-N.npz` in which the target says at least `goal` tokens of its own."""
    shards: list[Path] = []
    done, made, begun = 0, 0, time.monotonic()
    while done < goal:
        path = folder / f"{name}-{len(shards)}.npz"
        if not path.exists():
            heard.write(path, list(speak(sayings(len(shards)), len(shards))))
            made += heard.said(path)
        shards.append(path)
        done += heard.said(path)
        if made:
            rate = made / (time.monotonic() - begun)
            left = max(0.0, (goal - done) / rate / 60)
            shown = f"{rate:5.0f}/s  {left:5.1f} min left"
            log(f"{name}: {done / 1e6:6.3f}M of {goal / 1e6:.2f}M tokens said  {shown}")
    return shards
