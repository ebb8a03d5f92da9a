"""Record a target's texts, shard by shard: an existing shard is not made again."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgespec_train import recorded
from edgespec_train.progress import Log, minutes
from edgespec_train.recorded import PromptToRecord, RecordedText

WIDTH = 96  # texts side by side
CLOSE_S = 30.0
SHARD_BYTES = 64 << 20
PromptsOf = Callable[[int], list[PromptToRecord]]  # of a shard, by its number
Record = Callable[[list[PromptToRecord], int], Iterator[RecordedText]]  # prompts, and a seed, to texts


def record_goal(
    record: Record, folder: Path, name: str, prompts: PromptsOf, goal: int, log: Log
) -> list[Path]:
    """Return shards `folder/name-N.npz` in which the target wrote at least `goal` tokens."""
    found: list[Path] = []
    done, made, begun = 0, 0, time.monotonic()
    while done < goal:
        path = folder / f"{name}-{len(found)}.npz"
        if not path.exists():
            recorded.write(path, list(record(prompts(len(found)), len(found))))
            made += recorded.written(path)
        found.append(path)
        done += recorded.written(path)
        if made:
            rate = made / (time.monotonic() - begun)
            left = max(0.0, (goal - done) / rate / 60)
            shown = f"{rate:5.0f}/s  {left:5.1f} min left"
            log(f"{name}: {done / 1e6:6.3f}M of {goal / 1e6:.2f}M tokens recorded  {shown}")
    return found


def record_stream(
    texts: Iterator[RecordedText],
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
    found = shards_in(folder, name)
    room = most_bytes - sum(path.stat().st_size for path in found)
    if room <= 0:
        return found
    waiting: list[RecordedText] = []
    size, written, begun = 0, 0, time.monotonic()
    closed = begun

    def close() -> None:
        nonlocal size, closed, room
        if waiting:
            found.append(folder / f"{name}-{len(found)}.npz")
            recorded.write(found[-1], waiting)
            room -= found[-1].stat().st_size
            rate = written / (time.monotonic() - begun)
            log(f"recorded {written:,} tokens from the target, {rate:,.0f} a second, {minutes(until)}")
        waiting.clear()
        size, closed = 0, time.monotonic()

    for text in texts:
        waiting.append(text)
        size += text.states.nbytes + text.top_ids.nbytes + text.top_p.nbytes
        written += len(text.ids) - text.prompt
        if time.monotonic() - closed > CLOSE_S or size > min(SHARD_BYTES, room):
            close()
        if size > room:
            break
    close()
    return found


def shards_in(folder: Path, name: str) -> list[Path]:
    """Return the existing shards of a name, in order, without a gap."""
    found: list[Path] = []
    while (path := folder / f"{name}-{len(found)}.npz").exists():
        found.append(path)
    return found
