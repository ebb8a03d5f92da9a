"""How many threads evaluation should use: one per physical performance core this process may run on.

More threads than that make llama.cpp slower, not faster: its threads wait for each other at every
operation, so the slowest core, or a shared one, sets the speed.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

from edgespec.errors import SettingError

CGROUP = Path("/sys/fs/cgroup")
MOST_THREADS = 512  # GGML_MAX_N_THREADS


def threads_are_given() -> bool:
    """Returns whether EDGESPEC_THREADS sets the number of threads."""
    return bool(os.environ.get("EDGESPEC_THREADS"))


def threads_wanted() -> int:
    """Returns how many threads to use without a flag: EDGESPEC_THREADS, else the performance cores.

    Raises SettingError for nonsense in the environment.
    """
    variable = os.environ.get("EDGESPEC_THREADS")
    if not variable:
        return min(MOST_THREADS, performance_cores())
    if not variable.isdecimal() or not 1 <= int(variable) <= MOST_THREADS:
        raise SettingError(
            f"EDGESPEC_THREADS is {variable!r}: it must be a whole number from 1 to {MOST_THREADS}"
        )
    return int(variable)


def performance_cores(group: Path = CGROUP) -> int:
    """Returns the number of physical performance cores allowed by affinity and cgroup quota, at least 1."""
    if sys.platform == "linux":
        cores = linux_cores(os.sched_getaffinity(0))
        quota = cgroup_quota(group)
        return max(1, min(cores, math.floor(quota)) if quota else cores)
    import psutil  # takes a hundredth of a second, and few commands count cores

    fast = _mac_performance_cores() if sys.platform == "darwin" else 0
    return first_known(fast, psutil.cpu_count(logical=False), os.cpu_count())


def first_known(*counts: int | None) -> int:
    """Returns the first count that the system knows, at least 1."""
    return next(filter(None, counts), 1)


def linux_cores(allowed: set[int], system: Path = Path("/sys/devices")) -> int:
    """Counts physical cores among `allowed`, without efficiency cores if the kernel names them."""
    fast = cpu_list(system / "cpu_core/cpus") or _highest_capacity(allowed, system)
    chosen = (allowed & fast) or allowed
    siblings = {
        frozenset(cpu_list(system / f"system/cpu/cpu{cpu}/topology/thread_siblings_list") or {cpu})
        for cpu in chosen
    }
    return len(siblings)


def _highest_capacity(allowed: set[int], system: Path) -> set[int]:
    """Returns the cpus of the highest capacity (ARM big.LITTLE); empty if the kernel does not say."""
    capacity: dict[int, int] = {}
    for cpu in allowed:
        try:
            capacity[cpu] = int((system / f"system/cpu/cpu{cpu}/cpu_capacity").read_text())
        except (OSError, ValueError):
            return set()
    best = max(capacity.values(), default=0)
    return {cpu for cpu, value in capacity.items() if value == best}


def cpu_list(path: Path) -> set[int]:
    """Reads a kernel cpu list such as "0-3,8"; empty if there is none."""
    try:
        parts = [part for part in path.read_text().strip().split(",") if part]
        bounds = [part.partition("-") for part in parts]
        return {cpu for low, _, high in bounds for cpu in range(int(low), int(high or low) + 1)}
    except (OSError, ValueError):
        return set()


def cgroup_quota(group: Path) -> float | None:
    """Returns the cpu quota of a container in cores; None if there is no limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((group / "cpu/cpu.cfs_quota_us").read_text())
        return quota_us / int((group / "cpu/cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def _mac_performance_cores() -> int:
    try:
        command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
