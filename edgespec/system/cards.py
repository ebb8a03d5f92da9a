"""The graphics cards of this machine, as the system names them; llama.cpp is not asked."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.system.builds import Backend

ASKING_S = 10.0
_VENDORS: dict[str, tuple[str, tuple[Backend, ...]]] = {
    "0x1002": ("AMD", ("ROCm", "Vulkan")),
    "0x8086": ("Intel", ("Vulkan",)),
}
Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Card:
    """One card."""

    name: str
    backends: tuple[Backend, ...]  # of llama.cpp that can use it, the best first
    integrated: bool = False  # its memory is RAM


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
    names = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]) or ""
    return [Card(name.strip(), ("CUDA", "Vulkan")) for name in names.splitlines() if name.strip()]


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
        integrated = vendor == "0x8086" or _is_small(device / "mem_info_vram_total")
        usable: tuple[Backend, ...] = ("Vulkan",) if integrated else backends
        found.append(Card(f"{name} graphics ({device.parent.name})", usable, integrated))
    return found


def _is_small(path: Path) -> bool:
    """Returns whether a card says that it has little memory of its own."""
    try:
        return 0 < int(path.read_text()) <= 1 << 30
    except (OSError, ValueError):
        return False
