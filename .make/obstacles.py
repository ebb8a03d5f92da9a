"""What can prevent setting up, as one sentence each: found beforehand, or read from pip's log."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

GIB = 1 << 30


class Obstacle(Exception):
    """Set-up cannot continue; the message is one sentence for the person who typed make."""


def check_venv_module(find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Refuse a Python that cannot make a virtual environment with pip in it."""
    for module in ("venv", "ensurepip"):
        if find(module) is None:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise Obstacle(
                f"Python {version} ({sys.executable}) lacks its {module} module, which makes .venv: install "
                f"it (Debian, Ubuntu: sudo apt install python{version}-venv) or name another Python, "
                "make PYTHON=..."
            )


def free_space(path: Path) -> int:
    """Count the bytes free in a folder's file system."""
    return shutil.disk_usage(path).free


def check_space(needs: Mapping[Path, float], free: Callable[[Path], int] = free_space) -> None:
    """Refuse when a file system has less room (in GB) than all the folders on it need together."""
    by_device: dict[int, list[Path]] = {}
    for path in needs:
        by_device.setdefault(path.stat().st_dev, []).append(path)
    for paths in by_device.values():
        need, there = sum(needs[path] for path in paths), free(paths[0]) / GIB
        if there < need:
            raise Obstacle(
                f"Setting up needs {need:.1f} GB of disk space in {' and '.join(map(str, paths))} and there "
                f"are {there:.1f} GB: make room, or set TMPDIR to a folder on another disk."
            )


def compiles(command: list[str], suffix: str, source: str) -> bool:
    """Try a compiler on a program of two lines: it may exist and still lack its headers."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, f"program{suffix}")
        program.write_text(source, encoding="utf-8")
        try:
            full = [*command, str(program), "-o", str(program.with_suffix(".out"))]
            return subprocess.run(full, capture_output=True, timeout=60).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False


def check_compilers(env: Mapping[str, str], works: Callable[[list[str], str, str], bool] = compiles) -> None:
    """Refuse if llama.cpp has to be compiled and nothing here can."""
    for language, variable, names, suffix, header in (
        ("C", "CC", ("cc", "gcc", "clang"), ".c", "stdio.h"),
        ("C++", "CXX", ("c++", "g++", "clang++"), ".cpp", "vector"),
    ):
        chosen = env.get(variable)
        commands = [shlex.split(chosen)] if chosen else [[name] for name in names]
        source = f"#include <{header}>\nint main(void) {{ return 0; }}\n"
        if not any(works(command, suffix, source) for command in commands):
            tried = f"{variable}={chosen}" if chosen else ", ".join(names)
            raise Obstacle(
                f"llama.cpp has to be compiled here and no working {language} compiler was found (tried "
                f"{tried}): install one (Debian, Ubuntu: sudo apt install build-essential; Fedora: sudo dnf "
                "install gcc-c++; macOS: xcode-select --install) and run make again."
            )


FRUGAL = "with CMAKE_BUILD_PARALLEL_LEVEL=1 if memory is short"
FAILURES = (
    (
        r"No space left on device",
        "The disk filled up: make room (setting up takes up to 2 GB) and run make again",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The package registry's certificate is not trusted here: set PIP_CERT to the right one and "
        "run make again",
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|ConnectionResetError"
        r"|Connection refused|Network is unreachable|Temporary failure in name resolution",
        "The package registry cannot be reached: check the network, or set PIP_INDEX_URL to a mirror, "
        "and run make again",
    ),
    (
        r"No matching distribution found for (\S+)",
        "The package registry has no {0} for this Python and machine: name another Python, make PYTHON=...",
    ),
    (
        r"Killed signal terminated program|virtual memory exhausted|out of memory",
        f"Memory ran out while llama.cpp was compiled: run make again, {FRUGAL}",
    ),
    (
        r"Failed (?:building wheel|to build)[^\n]*llama[-_]cpp[-_]python|CMake Error",
        "llama.cpp did not compile: the compiler's messages are near the end of the log",
    ),
)


def explain(log: str, status: int = 1) -> str:
    """Turn the log of a failed pip into one sentence, without its full stop."""
    if status < 0:
        return (
            f"Something ended pip with signal {-status}, perhaps for lack of memory: run make again, {FRUGAL}"
        )
    for pattern, sentence in FAILURES:
        found = re.search(pattern, log)
        if found:
            return sentence.format(*found.groups())
    errors = [line[len("ERROR:") :].strip(" .") for line in log.splitlines() if line.startswith("ERROR:")]
    return f"pip could not install the packages ({errors[-1] if errors else 'it gave no reason'})"
