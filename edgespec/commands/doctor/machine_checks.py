"""Processor, graphics cards, the build of llama.cpp, threads, memory: is the machine used as it can be?"""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import MachineLostError
from edgespec.measure.machine import processor
from edgespec.memory.free import free_memory
from edgespec.system.builds import MENDING, REBUILD, VERSION, Backend
from edgespec.system.cards import Card
from edgespec.system.cores import performance_cores
from edgespec.system.machines import ask
from edgespec.system.other_programs import BUSY_CORES
from edgespec.system.self_test import SelfTest

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


def program() -> list[Finding]:
    """Checks versions."""
    try:
        installed = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        installed = "none"
    text = (
        f"EdgeSpec {__version__}, llama-cpp-python {installed}, Python {platform.python_version()}, "
        f"{platform.platform(terse=True)}"
    )
    facts = {"edgespec": __version__, "llama_cpp_python": installed, "python": platform.python_version()}
    if installed != VERSION:
        return [problem("program", text, f"EdgeSpec is made for {VERSION}: {REBUILD}", **facts)]
    return [good("program", text, **facts)]


def build(answer: dict[str, Any], *, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Finding]:
    """Checks whether llama.cpp loads, and uses the processor's features. answer: by the child."""
    if reason := answer.get("broken") or answer.get("error"):
        text = f"llama-cpp-python cannot be loaded: {reason}"
        return [problem("build", text, "docs/install.md#when-it-does-not-work")]
    built = set(answer["features"])
    text = f"{processor()}; llama.cpp uses {', '.join(answer['features']) or 'no special instructions'}"
    missing = [ours for flag, ours in _FEATURES.items() if flag in _cpu_flags(cpuinfo) and ours not in built]
    facts = {"processor": processor(), "features": answer["features"], "missing": missing}
    if missing:
        text += f"; it was built without {', '.join(missing)}"
        kind = note if set(missing) <= {"AVX512", "AVX512_VNNI", "SVE"} else problem
        return [kind("build", text, f"build it for this processor: {REBUILD}", **facts)]
    return [good("build", text, **facts)]


def arithmetic(found: SelfTest) -> list[Finding]:
    """Checks whether this build computes right on this processor. found: by the self-test, just now."""
    facts = asdict(found)
    if not found.fault:
        text = "the embedded pair gives the expected logits, one by one, in a batch and on several threads"
        return [good("arithmetic", text, **facts)]
    text = f"this build of llama.cpp does not compute correctly on this processor: {found.fault}"
    if found.sound:
        text += "; models are loaded without its repacked weights, which is slower but correct"
    return [problem("arithmetic", text, f"build it again: {MENDING}", **facts)]


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


def graphics(cards: Sequence[Card], build: dict[str, Any]) -> list[Finding]:
    """Compares the cards of the machine with those that llama.cpp uses."""
    used = [device for device in build.get("devices", ()) if device["kind"] in ("gpu", "igpu")]
    found = []
    for device in used:
        memory = f"{device['free'] / 2**30:.1f} of {device['total'] / 2**30:.1f} GiB free"
        found.append(good("graphics", f"{device['name']}: {device['description']}, {memory}", **device))
    covered = {BACKEND_NAMES.get(device["backend"]) for device in used}
    found += [_unused(card, build) for card in cards if not covered & set(card.backends)]
    return found or [note("graphics", "no graphics card that llama.cpp could use, so the processor is used")]


def _unused(card: Card, build: dict[str, Any]) -> Finding:
    backend = card.backends[0]
    built = {BACKEND_NAMES.get(device["backend"]) for device in build.get("devices", ())}
    if backend in built:
        text = f"{card.name} is present and llama.cpp was built for {backend}, but llama.cpp does not find it"
        return problem("graphics", text, "update the driver of the card, and restart", card=card.name)
    text = f"{card.name} is not used, because this llama.cpp was not built for it"
    driver = f" (the driver runs CUDA up to {card.cuda[0]}.{card.cuda[1]})" if card.cuda else ""
    if card.integrated and backend != "Metal":
        remedy = f"it shares the machine's memory: a build for {backend} may or may not be faster: {REBUILD}"
        return note("graphics", text, remedy, card=card.name, backend=backend)
    remedy = f"install a build for {backend}{driver}: {REBUILD}"
    return problem("graphics", text, remedy, card=card.name, backend=backend, cuda=card.cuda)


def others(rpc: Sequence[str], build: dict[str, Any]) -> list[Finding]:
    """Checks the machines of --rpc: do they answer, in our version, and with how much free memory?"""
    if rpc and not build.get("rpc"):
        text = "this build of llama.cpp cannot put layers on other machines"
        return [problem("machines", text, f"build it with RPC: {REBUILD}", rpc=False)]
    found = []
    for machine in rpc:
        try:
            devices = ask(machine)
        except MachineLostError as error:
            remedy = "start it, or leave it out of --rpc"
            found.append(problem("machines", str(error), remedy, machine=machine))
            continue
        memory = [f"{device.free / 2**30:.1f} of {device.total / 2**30:.1f} GiB free" for device in devices]
        free = [device.free for device in devices]
        found.append(good("machines", f"{machine}: {', '.join(memory)}", machine=machine, free=free))
    return found


def threads(chosen: int | None = None, *, busy: float = 0.0) -> list[Finding]:
    """Checks how many threads evaluation uses. chosen: by --threads. busy: cores that others keep busy."""
    cores, variable = performance_cores(), os.environ.get("EDGESPEC_THREADS", "")
    wanted = chosen or (int(variable) if variable.isdecimal() else cores)
    by = "--threads" if chosen else "EDGESPEC_THREADS" if variable else "the default"
    logical = os.cpu_count() or cores
    facts = {"threads": wanted, "cores": cores, "logical": logical, "busy": round(busy, 2)}
    text = f"{wanted} ({by}); {cores} fast physical cores are available, {logical} logical ones in all"
    found = [good("threads", text, **facts)]
    if wanted > cores:
        remedy = f"leave {by} out, or give {cores}: threads that share a core wait for each other"
        found = [problem("threads", text, remedy, **facts)]
    elif wanted < cores:
        found = [note("threads", text, f"leave {by} out to use all {cores}", **facts)]
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
