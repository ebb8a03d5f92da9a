"""Sizes, speeds and times as people read them, and whether a disk has room."""

import math
import shutil
from pathlib import Path

SPARE = 64 << 20  # bytes that are left free


def size_text(n_bytes: float) -> str:
    """Returns a size in decimal units, as on the hub and in shops: "4.92 GB", "531 MB"."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            n = n_bytes / size
            return f"{n:.2f} {unit}" if n < 10 else f"{n:.1f} {unit}" if n < 100 else f"{n:.0f} {unit}"
    return f"{n_bytes:.0f} bytes"


def seconds_text(seconds: float) -> str:
    """Returns a time that is left: "42 s", "3 min", "1 h 20 min"."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def free_bytes(folder: Path) -> int:
    """Returns how many bytes are free where a folder is, or would be."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def no_room(folder: Path, needed: int, doing: str = "written") -> str | None:
    """Says in a clause that a folder has no room for so many bytes more; None if it has."""
    free = free_bytes(folder)
    if not needed or needed + SPARE <= free:
        return None
    return (
        f"{size_text(needed)} are to be {doing} to {folder}, where {size_text(free)} are free and "
        f"{size_text(SPARE)} stay so"
    )
