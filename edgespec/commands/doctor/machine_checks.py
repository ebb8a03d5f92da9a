"""Processor, graphics cards, the build of llama.cpp, threads, memory: is the machine used as it can be?"""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import MachineLostError
from edgespec.measure.machine import describe, processor
from edgespec.memory.free import free_memory
from edgespec.system.builds import MENDING, REBUILD, VERSION
from edgespec.system.cards import Card
from edgespec.system.cores import performance_cores, threads_are_given, threads_wanted
from edgespec.system.machines import ask
from edgespec.system.other_programs import BUSY_CORES
from edgespec.system.self_test import SelfTest
from edgespec_models.fit.fit import gib

LOADING = "docs/install.md#when-it-does-not-work"
BACKEND_NAMES = {"MTL": "Metal", "HIP": "ROCm"}  # llama.cpp's -> ours, where they differ
FEATURES = {  # of processors -> llama.cpp's names; each makes evaluation clearly faster
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
LESS_GAIN = {"AVX512", "AVX512_VNNI", "SVE"}
LITTLE_MEMORY = 2 << 30


def program() -> list[Finding]:
    """Checks versions."""
    facts = describe()
    llama = f"llama-cpp-python {facts['llama-cpp-python']}"
    text = f"EdgeSpec {__version__}, {llama}, Python {facts['python']}, {facts['system']}"
    if facts["llama-cpp-python"] == VERSION:
        return [good("program", text, **facts)]
    return [problem("program", text, f"EdgeSpec is made for {VERSION}: {REBUILD}", **facts)]


def build(answer: dict[str, Any], *, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Finding]:
    """Checks whether llama.cpp loads, and uses the processor's features. answer: by the child."""
    if reason := answer.get("error"):
        return [problem("build", f"llama-cpp-python cannot be loaded: {reason}", LOADING)]
    built = answer["features"]
    text = f"{processor()}; llama.cpp uses {', '.join(built) or 'no special instructions'}"
    flags = _cpu_flags(cpuinfo)
    missing = [ours for flag, ours in FEATURES.items() if flag in flags and ours not in built]
    facts = {"processor": processor(), "features": built, "missing": missing}
    if not missing:
        return [good("build", text, **facts)]
    text += f"; it was built without {', '.join(missing)}"
    kind = note if LESS_GAIN.issuperset(missing) else problem
    return [kind("build", text, f"build it for this processor: {REBUILD}", **facts)]


def _cpu_flags(cpuinfo: Path) -> set[str]:
    """Returns the processor's features (Linux only: elsewhere nothing is known to be missing)."""
    try:
        lines = re.findall(r"^(?:flags|Features)\s*:(.*)", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return set()
    return set(" ".join(lines).split())


def arithmetic(found: SelfTest) -> list[Finding]:
    """Checks whether this build computes right on this processor. found: by the self-test, just now."""
    if found.fault:
        return [problem("arithmetic", found.advice, MENDING, **asdict(found))]
    text = "the embedded pair gives the expected logits, one by one, in a batch and on several threads"
    return [good("arithmetic", text, **asdict(found))]


def graphics(cards: Sequence[Card], build: dict[str, Any]) -> list[Finding]:
    """Compares the cards of the machine with those that llama.cpp uses."""
    devices = build.get("devices", ())
    used = [device for device in devices if device["kind"] in ("gpu", "igpu")]
    found = []
    for device in used:
        text = f"{device['name']}: {device['description']}, {_free(device['free'], device['total'])}"
        found.append(good("graphics", text, **device))
    covered = _backends(used)
    found += [_unused(card, _backends(devices)) for card in cards if covered.isdisjoint(card.backends)]
    return found or [note("graphics", "no graphics card that llama.cpp could use, so the processor is used")]


def _backends(devices: Sequence[dict[str, Any]]) -> set[str]:
    return {BACKEND_NAMES.get(device["backend"], device["backend"]) for device in devices}


def _unused(card: Card, built: set[str]) -> Finding:
    backend = card.backends[0]
    kind, remedy = problem, REBUILD
    text = f"{card.name} is not used, because this llama.cpp was not built for {backend}"
    if backend in built:
        text = f"{card.name} is present and llama.cpp was built for {backend}, but llama.cpp does not find it"
        remedy = f"update the driver of the card, and restart: {LOADING}"
    elif card.integrated and backend != "Metal":
        text += "; it shares the machine's memory, so that may or may not be faster"
        kind = note
    return kind("graphics", text, remedy, card=card.name, backend=backend)


def others(rpc: Sequence[str], build: dict[str, Any]) -> list[Finding]:
    """Checks the machines of --rpc: do they answer, in our version, and with how much free memory?"""
    if rpc and not build.get("rpc"):
        return [problem("machines", "this build of llama.cpp cannot put layers on other machines", REBUILD)]
    found = []
    for machine in rpc:
        try:
            devices = ask(machine)
        except MachineLostError as error:
            remedy = "start it, or leave it out of --rpc: docs/machines.md"
            found.append(problem("machines", str(error), remedy, machine=machine))
            continue
        memory = ", ".join(_free(device.free, device.total) for device in devices)
        free = [device.free for device in devices]
        found.append(good("machines", f"{machine}: {memory}", machine=machine, free=free))
    return found


def threads(chosen: int | None = None, *, busy: float = 0.0) -> list[Finding]:
    """Checks how many threads evaluation uses. chosen: by --threads. busy: cores that others keep busy."""
    cores, given = performance_cores(), threads_are_given()
    wanted = chosen or (threads_wanted() if given else cores)
    by = "--threads" if chosen else "EDGESPEC_THREADS" if given else "the default"
    facts = {"threads": wanted, "cores": cores, "logical": os.cpu_count() or cores, "busy": round(busy, 2)}
    text = f"{wanted} ({by}); {cores} fast physical cores are available, {facts['logical']} logical ones"
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
    if free >= LITTLE_MEMORY:
        return [good("memory", _free(free, total), free=free, total=total)]
    remedy = "close other programs: hardly any model fits"
    return [note("memory", _free(free, total), remedy, free=free, total=total)]


def _free(free: int, total: int) -> str:
    return f"{gib(free)} of {gib(total)} free"
