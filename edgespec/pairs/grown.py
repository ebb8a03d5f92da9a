"""The embedded pair at the cost of a larger one: the same output, made once, kept in the cache folder."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.system import config
from edgespec_models import tiny
from edgespec_models.kept_file import remove_left

BITS = {"F16": 16.0, "Q8_0": 8.5, "Q4_0": 4.5}  # of a weight
SPARE_DISK = 2**30  # bytes that are left free
SPARE_MEMORY = 2**30  # bytes for caches, and for what else is open
Progress = Callable[[int, int], None]  # bytes done, and in all


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pair may be grown to."""

    spec: str  # such as 0.6B-F16
    size: int  # bytes of both files
    missing: int  # of them, bytes that have to be written first


def folder() -> Path:
    """Returns where grown pairs are kept."""
    return config.cache_folder() / "grown"


def grown_pair(spec: str, on_progress: Progress) -> tuple[Path, Path]:
    """Returns target and draft of that cost, made if they are not there. Raises EdgeSpecError."""
    from edgespec_models.grow import grow  # gguf is slow to import, and only this needs it
    from edgespec_models.grow.source import GrowError

    remove_left(folder())  # a gigabyte, where a demo was killed while it made its pair
    try:
        return grow.grow_pair(
            tiny.target_path(), tiny.draft_path(), folder(), grow.parse_spec(spec), on_progress=on_progress
        )
    except GrowError as error:
        raise SettingError(str(error)) from None
    except OSError as error:
        raise EdgeSpecError(
            f"the grown pair cannot be written: {error}; check the space in {config.cache_folder()}"
        ) from None


def costs_of(specs: Sequence[str]) -> list[Cost]:
    """Returns what these take, by their weights alone."""
    from edgespec_models.grow import grow

    found = []
    for wanted in map(grow.parse_spec, specs):
        n_bytes = [
            round(BITS[wanted.dtype] / 8 * shape.parameters) for shape in (wanted.target, wanted.draft)
        ]
        made = [any(folder().glob(f"*{source}-{wanted.name}-*.gguf")) for source in ("target", "draft")]
        missing = sum(n for n, there in zip(n_bytes, made, strict=True) if not there)
        found.append(Cost(wanted.name, sum(n_bytes), missing))
    return found


def first_that_fits(costs: Sequence[Cost], *, disk: int, memory: int) -> Cost | None:
    """Returns the first that leaves some of the free bytes of disk and memory; None if none does."""
    for cost in costs:
        room = not cost.missing or cost.missing + SPARE_DISK <= disk
        if room and cost.size + SPARE_MEMORY <= memory:
            return cost
    return None


def _place() -> Path:
    """Returns the folder for grown pairs, or what exists of the way there."""
    place = folder()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def unwritable() -> Path | None:
    """Returns what keeps grown pairs from being written, a folder or a file in its place; else None."""
    place = _place()
    return None if place.is_dir() and os.access(place, os.W_OK | os.X_OK) else place


def free_disk() -> int:
    """Returns the bytes that can be written where grown pairs are kept; 0 if that is unknown."""
    try:
        return 0 if unwritable() else shutil.disk_usage(_place()).free
    except OSError:
        return 0


def affordable(specs: Sequence[str], *, memory: int) -> Cost | None:
    """Returns the first of these costs that there is room for now; None if there is for none."""
    return first_that_fits(costs_of(specs), disk=free_disk(), memory=memory)
