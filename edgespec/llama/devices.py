"""The devices that this build of llama.cpp can use: processors and graphics cards, and their memory."""

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import llama_cpp as C

from edgespec.llama.ggml import Kind, kind_of, libraries, local_devices
from edgespec.llama.model import PROCESSOR
from edgespec_models.fit.need import Device


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """One device. free, total: bytes of its memory, 0 if it does not say."""

    name: str  # as in llama.cpp's log: "CPU", "CUDA0", "Vulkan0", "MTL0"
    description: str
    backend: str  # "CPU", "CUDA", "Vulkan", "MTL", "ROCm", ...
    kind: Kind
    free: int
    total: int


def devices() -> list[GgmlDevice]:
    """Returns the devices that llama.cpp was built for and finds here, including the processor."""
    base = libraries()[1]
    found = []
    for device in local_devices():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            GgmlDevice(
                name=base.ggml_backend_dev_name(device).decode("utf-8", "replace"),
                description=base.ggml_backend_dev_description(device).decode("utf-8", "replace"),
                backend=base.ggml_backend_reg_name(base.ggml_backend_dev_backend_reg(device)).decode(),
                kind=kind_of(device),
                free=free.value,
                total=total.value,
            )
        )
    return found


def cards() -> list[Device]:
    """Returns the graphics cards that this build of llama.cpp can use."""
    return [
        Device(
            card.name, card.free, card.total, card.description, card.kind == "igpu" or card.backend == "MTL"
        )
        for card in devices()
        if card.kind in ("gpu", "igpu") and card.total
    ]


class Placed(Protocol):
    """What has layers on devices."""

    layers: Counter[str]


def place_of(target: Placed, draft: Placed | None = None, there: Sequence[Device] | None = None) -> str:
    """Returns which cards evaluate, in words; "" if the processor does all of it. there: None: `cards`."""
    names = {card.name: card.description or card.name for card in (cards() if there is None else there)}
    place, rest = _place(target, names), _place(draft, names) if draft else ""
    if draft is None or place == rest:
        return place
    if place and rest:
        return f"{place}; draft: {rest}"
    return f"{place}; draft on the processor" if place else f"draft: {rest}"


def _place(model: Placed, there: Mapping[str, str]) -> str:
    names = [there.get(name, name) for name in model.layers if name != PROCESSOR]
    rest = model.layers[PROCESSOR]
    on = model.layers.total() - rest
    return " and ".join(names) + (f", {on} of {on + rest} layers" if names and rest else "")


def cpu_features() -> list[str]:
    """Returns the processor features that this build uses: "AVX2", "NEON", "REPACK", ..."""
    info: bytes = C.llama_print_system_info() or b""
    parts = [part.split("=") for part in info.decode().replace(":", "|").split("|")]
    return [part[0].strip() for part in parts if len(part) == 2 and part[1].strip() == "1"]
