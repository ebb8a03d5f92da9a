"""Tests whether this build of llama.cpp computes right on this processor, against logits that ship.

A compiler that breaks one kernel crashes the process at the first evaluation, or gives wrong numbers
silently. So a child process evaluates both models of the embedded pair on the processor, single tokens and a
batch, with one thread and with two, and compares with `tiny.reference_logits`. It runs once for each build
and machine; the result is kept in the cache folder. If the build fails as it is and passes without
llama.cpp's repacked weights (`use_extra_bufts`: AMX, KleidiAI, interleaved rows), `Model` loads every
model without them.
"""

import hashlib
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from edgespec.system.builds import MENDING, library_folder
from edgespec.system.config import cache_folder
from edgespec_models import tiny
from edgespec_models.checked_value import kept_value
from edgespec_models.kept_file import write_whole

LONGEST_S = 60.0  # the child takes half a second; a machine that swaps takes longer
CRASHES = tuple(  # a child that is killed, or runs out of memory, says nothing about the build
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT")
    if hasattr(signal, name)
)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The result of the self-test."""

    fault: str = ""  # what went wrong with the build as it is; "" if nothing did
    extra_buffers: bool = True  # models may be loaded with repacked weights
    sound: bool = True  # logits are right, loaded as `extra_buffers` says

    @property
    def advice(self) -> str:
        """What is wrong, what follows from it, and the command that fixes it; "" if nothing is wrong."""
        if not self.fault:
            return ""
        follows = (
            "models are loaded without its repacked weights, which is slower but correct"
            if self.sound
            else "no model can be trusted with it"
        )
        return (
            f"this build of llama.cpp does not compute correctly on this processor ({self.fault}), so "
            f"{follows}; build it again, as {MENDING} says"
        )


_found: dict[Path, SelfTest] = {}  # by file: what this process knows already


def self_test(
    known: dict[Path, SelfTest] = _found, *, test: Callable[[], SelfTest | None] | None = None
) -> SelfTest:
    """Returns how this build of llama.cpp does on this machine; tests it (by `run`) if that is unknown."""
    path = kept_in()
    if path not in known:
        known[path] = kept_value(SelfTest, path) or _tested(path, test or run)
    return known[path]


def _tested(path: Path, test: Callable[[], SelfTest | None]) -> SelfTest:
    found = test()
    if found is None:
        return SelfTest()
    with suppress(OSError):
        write_whole(path, json.dumps(asdict(found)), sync=False)
    return found


def run() -> SelfTest | None:
    """Tests the build now, whatever was found before; None if that was impossible."""
    fault = _fault(extra_buffers=True)
    if not fault:
        return None if fault is None else SelfTest()
    healed = not _fault(extra_buffers=False)  # unknown counts as healed: as it is, it is known to be wrong
    return SelfTest(fault, extra_buffers=not healed, sound=healed)


def _fault(*, extra_buffers: bool) -> str | None:
    """Runs the child; returns what is wrong, in a clause: "" for nothing, None if unknown."""
    command = [sys.executable, "-P", "-m", "edgespec.llama.self_test_child", str(int(extra_buffers))]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
            # threads that spin while they wait take a busy machine's cores from each other, for many seconds
            env={**os.environ, "EDGESPEC_LOG": "", "OMP_WAIT_POLICY": "PASSIVE"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode == 0:
        return done.stdout.strip()
    if -done.returncode in CRASHES:
        return f"{signal.Signals(-done.returncode).name} while it evaluates the embedded pair"
    if os.name == "nt" and done.returncode & 0xC0000000 == 0xC0000000:
        return f"exception {done.returncode:#x} while it evaluates the embedded pair"
    return None


def kept_in() -> Path:
    """Returns the file of the result: another one for another build, processor, or reference."""
    spec = importlib.util.find_spec("llama_cpp")
    package, libraries = Path(spec.origin).parent if spec and spec.origin else Path(), library_folder()
    found = {file for name in ("*ggml*", "*llama*") for file in [*package.rglob(name), *libraries.glob(name)]}
    parts: list[object] = [platform.machine(), _processor()]
    for file in [*sorted(found), tiny.reference_path()]:
        with suppress(OSError):
            state = file.stat()
            parts.append((str(file), state.st_size, state.st_mtime_ns))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return cache_folder() / "self-test" / f"{digest}.json"


def _processor() -> str:
    """Returns what distinguishes this processor from others."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(telling)}))


def main() -> int:
    """Tests the build now and prints the result: exit code 0 right, 3 needs healing, 4 nothing heals it."""
    found = _tested(kept_in(), run)
    if found.fault:
        print(found.fault)
    return 0 if not found.fault else 3 if found.sound else 4


if __name__ == "__main__":
    sys.exit(main())
