"""What memory this machine has left: the system's, and what a container's limit leaves of it."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_memory(group: Path = CGROUP) -> tuple[int, int]:
    """Returns bytes of memory: (free, total), the container's where its limit is lower.

    Files that the system keeps in memory while nobody needs it count as free: a mapped model is one.
    """
    memory = psutil.virtual_memory()
    limit = _container(group)
    if limit is None:
        return memory.available, memory.total
    free, total = limit
    return min(free, memory.available), min(total, memory.total)


def _container(group: Path) -> tuple[int, int] | None:
    """Returns (free, total) by the container's limit; None where there is none."""
    for limit, used, stat, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat",
         "total_inactive_file"),
    ):  # fmt: skip
        try:
            most = int((group / limit).read_text())
            taken = int((group / used).read_text())
            fields = dict(line.split() for line in (group / stat).read_text().splitlines())
            return max(0, most - taken + int(fields.get(cached, 0))), most
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
