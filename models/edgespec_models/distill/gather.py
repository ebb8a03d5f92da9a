"""Gather a target's texts, shard by shard: an existing shard is not made again."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgespec_models.distill import heard
from edgespec_models.distill.heard import Heard, Saying
from edgespec_models.distill.progress import Log, minutes

WIDTH = 96  # texts side by side
CLOSE_S = 30.0
SHARD_BYTES = 64 << 20
Sayings = Callable[[int], list[Saying]]  # of a shard, by its number
Speak = Callable[[list[Saying], int], Iterator[Heard]]  # prompts, and a seed, to texts


def gather(speak: Speak, folder: Path, name: str, sayings: Sayings, goal: int, log: Log) -> list[Path]:
    """Return shards `folder/name-N.npz` in which the target wrote at least `goal` tokens."""
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
            log(f"{name}: {done / 1e6:6.3f}M of {goal / 1e6:.2f}M tokens gathered  {shown}")
    return shards


def keep(
    texts: Iterator[Heard],
    folder: Path,
    name: str,
    *,
    most_bytes: float = math.inf,
    log: Log,
    until: float = math.inf,
) -> list[Path]:
    """Write texts into new shards `folder/name-N.npz` and return all there are.

    One is closed after CLOSE_S seconds or SHARD_BYTES, so that little is lost if the program is killed; it
    stops when all shards together have `most_bytes`. Raises OSError if the disk is full.
    """
    shards = there(folder, name)
    room = most_bytes - sum(path.stat().st_size for path in shards)
    if room <= 0:
        return shards
    waiting: list[Heard] = []
    size, said_now, begun = 0, 0, time.monotonic()
    closed = begun

    def close() -> None:
        nonlocal size, closed, room
        if waiting:
            shards.append(folder / f"{name}-{len(shards)}.npz")
            heard.write(shards[-1], waiting)
            room -= shards[-1].stat().st_size
            rate = said_now / (time.monotonic() - begun)
            log(f"gathered {said_now:,} tokens from the target, {rate:,.0f} a second, {minutes(until)}")
        waiting.clear()
        size, closed = 0, time.monotonic()

    for text in texts:
        waiting.append(text)
        size += text.states.nbytes + text.top_ids.nbytes + text.top_p.nbytes
        said_now += len(text.ids) - text.prompt
        if time.monotonic() - closed > CLOSE_S or size > min(SHARD_BYTES, room):
            close()
        if size > room:
            break
    close()
    return shards


def there(folder: Path, name: str) -> list[Path]:
    """Return the existing shards of a name, in order, without a gap."""
    found: list[Path] = []
    while (path := folder / f"{name}-{len(found)}.npz").exists():
        found.append(path)
    return found
