"""The memory this machine has left: the system's, within a container's limit."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_memory(group: Path = CGROUP, mine: Path = Path("/proc/self/cgroup")) -> tuple[int, int]:
    """Returns bytes of memory: (free, total), the container's if its limit is lower.

    Files that the system keeps in memory while nobody needs it count as free: a mapped model is one.
    """
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    for place in _groups(group, mine):
        if limit := _container(place):
            free, total = min(free, limit[0]), min(total, limit[1])
    return free, total


def mapped_files(process: int) -> int:
    """Returns the bytes of files that a process has in memory, where those count as free though it needs them
    all the time: a loaded model's on Linux."""
    try:
        return int(getattr(psutil.Process(process).memory_info(), "shared", 0))
    except psutil.Error:
        return 0


def _groups(root: Path, mine: Path) -> list[Path]:
    """Returns the control groups of this process, from its own up to the root; each may limit it."""
    found = [root]
    try:
        lines = mine.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:  # version 2: its own group, if nobody hides the rest
            top = root
        elif "memory" in controllers.split(","):
            top = root / "memory"
        else:
            continue
        for part in filter(None, path.split("/")):
            top = top / part
            found.append(top)
    return found[::-1]


def _container(group: Path) -> tuple[int, int] | None:
    """Returns (free, total) by the container's limit; None if there is none."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((group / limit).read_text())
            taken = int((group / used).read_text())
            stat = (group / limit).with_name("memory.stat").read_text()
            fields = dict(line.split() for line in stat.splitlines())
            return max(0, most - taken + int(fields.get(cached, 0))), most
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return None
