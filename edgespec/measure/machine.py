"""The machine that is measured on: what it is, and what else keeps it busy."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import psutil

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
