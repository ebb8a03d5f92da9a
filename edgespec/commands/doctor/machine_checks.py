"""Processor, graphics cards, the build of llama.cpp, threads, memory: is the machine used as it can be?"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.commands.bench.machine import processor
from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import MachineLostError
from edgespec.memory.free import free_memory
from edgespec.system.builds import VERSION, Backend, Here, command, mending, whole_build
from edgespec.system.cores import performance_cores
from edgespec.system.machines import ask
from edgespec.system.other_programs import BUSY_CORES
from edgespec.system.self_test import SelfTest

ASKING_S = 10.0
_VENDORS: dict[str, tuple[str, tuple[Backend, ...]]] = {
    "0x1002": ("AMD", ("ROCm", "Vulkan")),
    "0x8086": ("Intel", ("Vulkan",)),
}
Run = Callable[[Sequence[str]], str | None]
BACKEND_NAMES: dict[str, Backend] = {
    "CUDA": "CUDA",
    "Vulkan": "Vulkan",
    "MTL": "Metal",
    "Metal": "Metal",
    "ROCm": "ROCm",
    "HIP": "ROCm",
}
# processor features -> llama.cpp's names; each makes evaluation clearly faster
_FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "asimd": "NEON",
    "asimddp": "DOTPROD",
    "i8mm": "MATMUL_INT8",
    "sve": "SVE",
}
LITTLE_MEMORY = 2 << 30


@dataclass(frozen=True, slots=True)
class Card:
    """One card."""

    name: str
    backends: tuple[Backend, ...]  # of llama.cpp that can use it, the best first
    integrated: bool = False  # its memory is RAM
    memory: int = 0  # bytes; 0 if the system does not say
    cuda: tuple[int, int] | None = None  # the newest CUDA that its driver can run


def run(command: Sequence[str]) -> str | None:
    """Returns what a program prints; None if it is missing or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=ASKING_S, check=True, text=True, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def cards(*, system: str = sys.platform, run: Run = run, drm: Path = Path("/sys/class/drm")) -> list[Card]:
    """Returns the cards of this machine, as far as the system reports them."""
    if system == "darwin":
        name = (run(["sysctl", "-n", "machdep.cpu.brand_string"]) or "").strip()
        return [Card(f"{name} (graphics)", ("Metal",), integrated=True)] if name.startswith("Apple") else []
    return _nvidia(run) + (_listed_by_linux(drm) if system == "linux" else [])


def _nvidia(run: Run) -> list[Card]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    lines = [line for line in (run(query) or "").splitlines() if "," in line]
    if not lines:
        return []
    version = re.search(r"CUDA Version: *(\d+)\.(\d+)", run(["nvidia-smi"]) or "")
    cuda = (int(version[1]), int(version[2])) if version else None
    found = []
    for line in lines:
        name, _, size = line.rpartition(",")
        mib = int(size) if size.strip().isdigit() else 0
        found.append(Card(name.strip(), ("CUDA", "Vulkan"), memory=mib << 20, cuda=cuda))
    return found


def _listed_by_linux(drm: Path) -> list[Card]:
    found = []
    for device in sorted(drm.glob("card[0-9]*/device")):
        try:
            vendor = (device / "vendor").read_text().strip()
        except OSError:
            continue
        if vendor not in _VENDORS or "-" in device.parent.name:  # card0-HDMI-A-1 is a screen
            continue
        name, backends = _VENDORS[vendor]
        memory = _number(device / "mem_info_vram_total")
        integrated = vendor == "0x8086" or 0 < memory <= 1 << 30
        usable: tuple[Backend, ...] = ("Vulkan",) if integrated else backends
        found.append(Card(f"{name} graphics ({device.parent.name})", usable, integrated, memory))
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def program(at: Here) -> list[Finding]:
    """Checks versions."""
    try:
        installed = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        installed = "none"
    text = (
        f"EdgeSpec {__version__}, llama-cpp-python {installed}, Python {platform.python_version()}, "
        f"{platform.platform(terse=True)}, installed with {at.installer}"
    )
    facts = {"edgespec": __version__, "llama_cpp_python": installed, "python": platform.python_version()}
    if installed != VERSION:
        remedy = f"install the version that EdgeSpec is made for: {command('CPU', at)}"
        return [problem("program", text, remedy, **facts)]
    return [good("program", text, **facts)]


def build(said: dict[str, Any], at: Here, *, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Finding]:
    """Checks whether llama.cpp loads, and uses the processor's features. said: by the child."""
    if reason := said.get("broken") or said.get("error"):
        text = f"llama-cpp-python cannot be loaded: {reason}"
        return [problem("build", text, f"reinstall it: {command('CPU', at)}")]
    built = set(said["features"])
    text = f"{processor()}; llama.cpp uses {', '.join(said['features']) or 'no special instructions'}"
    missing = [ours for flag, ours in _FEATURES.items() if flag in _cpu_flags(cpuinfo) and ours not in built]
    facts = {"processor": processor(), "features": said["features"], "missing": missing}
    if missing:
        text += f"; it was built without {', '.join(missing)}"
        remedy = f"build it for this processor: {command('CPU', at, compiled=True)}"
        if set(missing) <= {"AVX512", "AVX512_VNNI", "SVE"}:
            return [note("build", text, remedy, **facts)]
        return [problem("build", text, remedy, **facts)]
    return [good("build", text, **facts)]


def arithmetic(found: SelfTest, at: Here) -> list[Finding]:
    """Checks whether this build computes right on this processor. found: by the self-test, just now."""
    facts = asdict(found)
    if not found.fault:
        text = "the embedded pair gives the expected logits, one by one, in a batch and on several threads"
        return [good("arithmetic", text, **facts)]
    text = f"this build of llama.cpp does not compute correctly on this processor: {found.fault}"
    if found.sound:
        text += "; models are loaded without its repacked weights, which is slower but correct"
    return [problem("arithmetic", text, f"build it again: {mending(at)}", **facts)]


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the processor's features (Linux only: elsewhere nothing is known to be missing)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.partition(":")[0].strip() in ("flags", "Features")
        for flag in line.partition(":")[2].split()
    }


def graphics(cards: Sequence[Card], said: dict[str, Any], at: Here) -> list[Finding]:
    """Compares the cards of the machine with those that llama.cpp uses."""
    used = [device for device in said.get("devices", ()) if device["kind"] in ("gpu", "igpu")]
    found = [
        good(
            "graphics",
            f"{device['name']}: {device['description']}, {device['free'] / 2**30:.1f} of "
            f"{device['total'] / 2**30:.1f} GiB free",
            **device,
        )
        for device in used
    ]
    covered = {BACKEND_NAMES.get(device["backend"]) for device in used}
    for card in cards:
        if not covered & set(card.backends):
            found.append(_unused(card, said, at))
    return found or [note("graphics", "no graphics card that llama.cpp could use, so the processor is used")]


def _unused(card: Card, said: dict[str, Any], at: Here) -> Finding:
    backend = card.backends[0]
    wanted = command(backend, Here(at.python, at.system, at.installer, at.executable, card.cuda))
    built = {BACKEND_NAMES.get(device["backend"]) for device in said.get("devices", ())}
    if backend in built:
        text = f"{card.name} is present and llama.cpp was built for {backend}, but llama.cpp does not find it"
        return problem("graphics", text, "update the driver of the card, and restart", card=card.name)
    text = f"{card.name} is not used, because this llama.cpp was not built for it"
    facts = {"card": card.name, "backend": backend, "command": wanted}
    if card.integrated and backend != "Metal":
        remedy = f"it shares the machine's memory, so it may or may not be faster; to try: {wanted}"
        return note("graphics", text, remedy, **facts)
    return problem("graphics", text, f"install a build for {backend}: {wanted}", **facts)


def others(rpc: Sequence[str], said: dict[str, Any], at: Here) -> list[Finding]:
    """Checks the machines of --rpc: do they answer, in our version, and with how much free memory?"""
    if rpc and not said.get("rpc"):
        text = "this build of llama.cpp cannot put layers on other machines"
        return [problem("machines", text, f"build it with RPC: {whole_build(at)}", rpc=False)]
    found = []
    for machine in rpc:
        try:
            devices = ask(machine)
        except MachineLostError as error:
            found.append(
                problem("machines", str(error), "start it, or leave it out of --rpc", machine=machine)
            )
            continue
        memory = [f"{device.free / 2**30:.1f} of {device.total / 2**30:.1f} GiB free" for device in devices]
        free = [device.free for device in devices]
        found.append(good("machines", f"{machine}: {', '.join(memory)}", machine=machine, free=free))
    return found


def threads(chosen: int | None = None, *, busy: float = 0.0) -> list[Finding]:
    """Checks how many threads evaluation uses. chosen: by --threads. busy: cores that others keep busy."""
    cores, said = performance_cores(), os.environ.get("EDGESPEC_THREADS", "")
    wanted = chosen or (int(said) if said.isdecimal() else cores)
    by = "--threads" if chosen else "EDGESPEC_THREADS" if said else "the default"
    logical = os.cpu_count() or cores
    facts = {"threads": wanted, "cores": cores, "logical": logical, "busy": round(busy, 2)}
    text = f"{wanted} ({by}); {cores} fast physical cores are available, {logical} logical ones in all"
    found: list[Finding]
    if wanted > cores:
        remedy = f"leave {by} out, or give {cores}: threads that share a core wait for each other"
        found = [problem("threads", text, remedy, **facts)]
    elif wanted < cores:
        found = [note("threads", text, f"leave {by} out to use all {cores}", **facts)]
    else:
        found = [good("threads", text, **facts)]
    if busy >= BUSY_CORES:
        remedy = "close other programs: llama.cpp is only as fast as its slowest core"
        found.append(note("threads", f"other programs keep {busy:.1f} cores busy", remedy, busy=busy))
    return found


def memory() -> list[Finding]:
    """Checks the free memory."""
    free, total = free_memory()
    text = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    facts = {"free": free, "total": total}
    if free < LITTLE_MEMORY:
        return [note("memory", text, "close other programs: hardly any model fits", **facts)]
    return [good("memory", text, **facts)]
