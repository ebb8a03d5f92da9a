"""The machine: is it used as it can be, what serves on it, and what will `pull` use?"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from edgespec import __version__
from edgespec.client.client import Client, proves
from edgespec.client.state_file import ServerState, states
from edgespec.commands.doctor.findings import Finding, Status
from edgespec.errors import EndpointError, MachineLostError
from edgespec.measure.machine import describe, processor
from edgespec.memory.free import free_memory
from edgespec.system import config
from edgespec.system.builds import MENDING, REBUILD, VERSION
from edgespec.system.cards import Card
from edgespec.system.cores import threads_are_given, threads_wanted
from edgespec.system.machines import ask
from edgespec.system.other_programs import BUSY_CORES
from edgespec.system.self_test import SelfTest
from edgespec_models.fit.fit import gib
from edgespec_models.shelf.found import hub_folder

ROOM = 5 << 30  # bytes of disk that a usual pair takes
LOADING = "docs/install.md#when-it-does-not-work"
BACKEND_NAMES = {"MTL": "Metal", "HIP": "ROCm"}  # llama.cpp's -> ours, where they differ
FEATURES = {  # of processors -> llama.cpp's names; each makes evaluation clearly faster
    "avx": "AVX", "avx2": "AVX2", "fma": "FMA", "f16c": "F16C", "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI", "asimd": "NEON", "asimddp": "DOTPROD", "i8mm": "MATMUL_INT8", "sve": "SVE",
}  # fmt: skip
LESS_GAIN = {"AVX512", "AVX512_VNNI", "SVE"}


def program() -> Finding:
    """Checks versions."""
    facts = describe()
    llama = facts["llama-cpp-python"]
    text = f"EdgeSpec {__version__}, llama-cpp-python {llama}, Python {facts['python']}, {facts['system']}"
    remedy = "" if llama == VERSION else f"EdgeSpec is made for {VERSION}: {REBUILD}"
    return Finding("program", "problem" if remedy else "good", text, remedy, facts)


def build(answer: dict[str, Any], *, cpuinfo: Path = Path("/proc/cpuinfo")) -> Finding:
    """Checks whether llama.cpp loads, and uses the processor's features. answer: by the child."""
    if reason := answer.get("error"):
        return Finding("build", "problem", f"llama-cpp-python cannot be loaded: {reason}", LOADING)
    built, shown = answer["features"], cpuinfo.read_text() if cpuinfo.exists() else ""  # Linux alone has it
    flags = " ".join(re.findall(r"^(?:flags|Features)\s*:(.*)", shown, re.MULTILINE)).split()
    missing = [ours for flag, ours in FEATURES.items() if flag in flags and ours not in built]
    facts = {"processor": processor(), "features": built, "missing": missing}
    text = f"{processor()}; llama.cpp uses {', '.join(built) or 'no special instructions'}"
    if not missing:
        return Finding("build", "good", text, facts=facts)
    status: Status = "note" if LESS_GAIN.issuperset(missing) else "problem"
    text += f"; it was built without {', '.join(missing)}"
    return Finding("build", status, text, f"build it for this processor: {REBUILD}", facts)


def arithmetic(found: SelfTest) -> Finding:
    """Checks whether this build computes right on this processor. found: by the self-test, just now."""
    right = "the embedded pair gives the expected logits, one by one, in a batch and on several threads"
    if found.fault:
        return Finding("arithmetic", "problem", found.advice, MENDING, asdict(found))
    return Finding("arithmetic", "good", right, facts=asdict(found))


def graphics(cards: Sequence[Card], build: dict[str, Any]) -> list[Finding]:
    """Compares the cards of the machine with those that llama.cpp uses."""
    devices = build.get("devices", ())
    used = [device for device in devices if device["kind"] in ("gpu", "igpu")]
    found = []
    for one in used:
        text = f"{one['name']}: {one['description']}, {_free(one['free'], one['total'])}"
        found.append(Finding("graphics", "good", text, facts=one))
    covered, built = _backends(used), _backends(devices)
    found += [_unused(card, built) for card in cards if covered.isdisjoint(card.backends)]
    return found or [Finding("graphics", "note", "no graphics card for llama.cpp: the processor is used")]


def _backends(devices: Sequence[dict[str, Any]]) -> set[str]:
    return {BACKEND_NAMES.get(device["backend"], device["backend"]) for device in devices}


def _unused(card: Card, built: set[str]) -> Finding:
    backend, remedy = card.backends[0], REBUILD
    status: Status = "problem"
    text = f"{card.name} is not used, because this llama.cpp was not built for {backend}"
    if backend in built:
        text = f"{card.name} is present and llama.cpp was built for {backend}, but llama.cpp does not find it"
        remedy = f"update the driver of the card, and restart: {LOADING}"
    elif card.integrated and backend != "Metal":
        text += "; it shares the machine's memory, so that may or may not be faster"
        status = "note"
    return Finding("graphics", status, text, remedy, {"card": card.name, "backend": backend})


def machines(rpc: Sequence[str], build: dict[str, Any]) -> list[Finding]:
    """Checks the machines of --rpc: do they answer, in our version, and with how much free memory?"""
    if rpc and not build.get("rpc"):
        text = "this build of llama.cpp cannot put layers on other machines"
        return [Finding("machines", "problem", text, REBUILD)]
    return list(map(_machine, rpc))


def _machine(address: str) -> Finding:
    try:
        free = ", ".join(_free(device.free, device.total) for device in ask(address))
    except MachineLostError as error:
        remedy = "start it, or leave it out of --rpc: docs/machines.md"
        return Finding("machines", "problem", str(error), remedy)
    return Finding("machines", "good", f"{address}: {free}", facts={"machine": address})


def threads(chosen: int | None, cores: int, *, busy: float = 0.0) -> list[Finding]:
    """Checks how many threads evaluation uses. chosen: by --threads. busy: cores that others keep busy."""
    given = threads_are_given()
    wanted = chosen or (threads_wanted() if given else cores)
    by = "--threads" if chosen else "EDGESPEC_THREADS" if given else "the default"
    facts = {"threads": wanted, "cores": cores, "logical": os.cpu_count() or cores, "busy": round(busy, 2)}
    text = f"{wanted} ({by}); {cores} fast physical cores are available, {facts['logical']} logical ones"
    status: Status = "problem" if wanted > cores else "note" if wanted < cores else "good"
    remedy = f"leave {by} out, or give {cores}: more threads wait for each other, fewer leave cores unused"
    found = [Finding("threads", status, text, remedy if wanted != cores else "", facts)]
    if busy >= BUSY_CORES:
        remedy = "close other programs: llama.cpp is only as fast as its slowest core"
        found.append(Finding("threads", "note", f"other programs keep {busy:.1f} cores busy", remedy))
    return found


def memory() -> Finding:
    """Reports the free memory; whether the pair fits is another check."""
    free, total = free_memory()
    return Finding("memory", "good", _free(free, total), facts={"free": free, "total": total})


def _free(free: int, total: int) -> str:
    return f"{gib(free)} of {gib(total)} free"


def endpoint() -> list[Finding]:
    """Checks the servers of this user that have a file."""
    return list(map(_server, states())) or [Finding("endpoint", "note", "no server runs: `edgespec serve`")]


def _server(state: ServerState) -> Finding:
    where = f"http://{state.host}:{state.port}/v1"
    facts = {"where": where, "pid": state.pid, "model": state.model}
    try:
        if proves(state):
            info = Client.of(state).info()
            text = f"{info.model} answers at {where}, {info.draft or 'no draft'} guesses"
            return Finding("endpoint", "good", text, facts={"draft": info.draft, **facts})
        reason = "it does not"
    except EndpointError as error:
        reason = str(error)
    if not psutil.pid_exists(state.pid):
        text = f"a server at {where} (process {state.pid}) has gone without notice"
        return Finding("endpoint", "note", text, "`edgespec serve` starts a new one", facts)
    text = f"process {state.pid} should answer at {where}: {reason}"
    remedy = f"stop it (kill {state.pid}) and start `edgespec serve` again; its terminal may say why"
    return Finding("endpoint", "problem", text, remedy, facts)


def hub(environment: Mapping[str, str] = os.environ) -> Finding:
    """Shows what `edgespec pull` will use, which itself reports what is wrong with it."""
    cache = hub_folder(environment, Path.home()).expanduser()
    token_file = Path(environment.get("HF_TOKEN_PATH") or cache.parent / "token").expanduser()
    token = "HF_TOKEN" if environment.get("HF_TOKEN") else "a file" if token_file.is_file() else "none"
    address = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    free = shutil.disk_usage(_nearest(cache)).free
    text = f"{address}{' (offline)' if offline else ''}, token: {token}, {free / 1e9:.1f} GB free for {cache}"
    facts = {"endpoint": address, "offline": offline, "cache": str(cache), "token": token, "free": free}
    limited = offline or free < ROOM
    return Finding("hub", "note" if limited else "good", text, "docs/pairs.md" if limited else "", facts)


def folders() -> Finding:
    """Checks whether EdgeSpec's folders can be written."""
    named = {"cache": config.cache_folder(), "state": config.state_folder()}
    text = ", ".join(f"{what} {folder}" for what, folder in named.items())
    for what, folder in named.items():
        if not os.access(_nearest(folder), os.W_OK):
            remedy = f"make it writable, or name another with EDGESPEC_{what.upper()}_DIR"
            return Finding("folders", "problem", f"{text}: the {what} folder cannot be written", remedy)
    return Finding("folders", "good", text)


def _nearest(folder: Path) -> Path:
    """Returns the folder itself, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents, Path.cwd()) if path.exists())
