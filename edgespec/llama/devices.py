"""The devices that this build of llama.cpp can use: processors and graphics cards, and their memory.

llama-cpp-python binds no function for them; they are exported by the two ggml libraries beside it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import llama_cpp as C
from llama_cpp._ctypes_extensions import load_shared_library

import edgespec.llama.model  # noqa: F401 - it catches llama.cpp's log, which would go to the terminal
from edgespec_models.fit.need import Device

Kind = Literal["cpu", "gpu", "igpu", "accelerator", "meta"]
_KINDS: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accelerator", "meta")


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """One device. free, total: bytes of its memory, 0 where it does not say."""

    name: str  # as llama.cpp's log has it: "CPU", "CUDA0", "Vulkan0", "MTL0"
    description: str
    backend: str  # "CPU", "CUDA", "Vulkan", "MTL", "ROCm", ...
    kind: Kind
    free: int
    total: int


def devices() -> list[GgmlDevice]:
    """Returns the devices that llama.cpp was built for and finds here, the processor among them."""
    ggml, base = _libraries()
    found = []
    for i in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        kind = base.ggml_backend_dev_type(device)
        found.append(
            GgmlDevice(
                name=base.ggml_backend_dev_name(device).decode("utf-8", "replace"),
                description=base.ggml_backend_dev_description(device).decode("utf-8", "replace"),
                backend=base.ggml_backend_reg_name(base.ggml_backend_dev_backend_reg(device)).decode(),
                kind=_KINDS[kind] if kind < len(_KINDS) else "accelerator",
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


def cpu_features() -> list[str]:
    """Returns what of the processor this build uses: "AVX2", "NEON", "REPACK", ..."""
    said: bytes = C.llama_print_system_info() or b""
    parts = [part.split("=") for part in said.decode().replace(":", "|").split("|")]
    return [part[0].strip() for part in parts if len(part) == 2 and part[1].strip() == "1"]


def _libraries() -> tuple[Any, Any]:
    """Returns libggml and libggml-base, with the functions used here described."""
    folder = Path(C.__file__).parent / "lib"
    ggml = load_shared_library("ggml", folder)
    base = load_shared_library("ggml-base", folder)
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    pointer_to_size = ctypes.POINTER(ctypes.c_size_t)
    base.ggml_backend_dev_memory.restype = None
    base.ggml_backend_dev_memory.argtypes = [ctypes.c_void_p, pointer_to_size, pointer_to_size]
    base.ggml_backend_dev_type.restype = ctypes.c_int
    base.ggml_backend_dev_backend_reg.restype = ctypes.c_void_p
    for name in ("dev_name", "dev_description", "reg_name"):
        getattr(base, f"ggml_backend_{name}").restype = ctypes.c_char_p
    for name in ("dev_type", "dev_backend_reg", "dev_name", "dev_description", "reg_name"):
        getattr(base, f"ggml_backend_{name}").argtypes = [ctypes.c_void_p]
    return ggml, base
