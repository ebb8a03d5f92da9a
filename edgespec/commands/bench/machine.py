"""The machine that is measured on: what it is, and what else keeps it busy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil

BUSY_CORES = 0.2  # kept busy by others, this much is worth a warning
_OURS = ("edgespec", "llama-cpp-python", "numpy")


def describe() -> dict[str, str | int | float]:
    """Returns processor, cores, memory, system and versions."""
    found: dict[str, str | int | float] = {
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False) or 0,
        "logical_cores": psutil.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    for package in _OURS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def processor() -> str:
    """Returns the processor's name, or its architecture if the system does not say."""
    try:
        if sys.platform == "linux":
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=5
            ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


class Others:
    """How many cores other programs (and, on a shared host, other machines) keep busy."""

    def __init__(self) -> None:
        self._then, self._busy, self._ours = time.monotonic(), _busy_seconds(), _own_seconds()

    def cores(self) -> float:
        """Returns the mean since the last call. Our children, a peer among them, do not count."""
        now, busy, ours = time.monotonic(), _busy_seconds(), _own_seconds()
        passed, theirs = now - self._then, (busy - self._busy) - (ours - self._ours)
        self._then, self._busy, self._ours = now, busy, ours
        return max(0.0, theirs) / passed if passed > 0 else 0.0


def _busy_seconds() -> float:
    """Returns the seconds that all cores together have worked, stolen time included."""
    spent = psutil.cpu_times()
    return float(
        sum(getattr(spent, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    )


def _own_seconds() -> float:
    """Returns the seconds that this process and all below it, living and dead, have worked."""
    total = 0.0
    own = psutil.Process(os.getpid())
    try:
        everyone = [own, *own.children(recursive=True)]
    except psutil.Error:
        everyone = [own]
    for process in everyone:
        try:
            spent = process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += spent.user + spent.system + spent.children_user + spent.children_system
    return total
