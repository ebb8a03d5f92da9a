"""Weights in huge pages: with those of 4 KiB, each token has the processor look up every page of the model.

llama.cpp maps a file, whose pages are mostly small. Read into memory instead, which Linux is asked to give in
huge pages before it is filled, the same weights are evaluated 1.15 times as fast in F16 (0.6B, one row; AMD
EPYC, Zen 4, 2 cores, 2026-11-26). Loading takes 0.9 s longer for each GB, and what is read belongs to the
process: others that load the file have their own, so there has to be room.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

from edgespec.llama.ggml import local_devices
from edgespec_models.gguf.header import split_names

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")  # "always [madvise] never"
MAPS = Path("/proc/self/maps")
HUGE = 2 << 20  # bytes; where huge pages are larger, Linux takes what is whole
LEAST = 32 << 20  # bytes of a model, and of an allocation, below which it is left alone
ROOM = 2  # times its size must be free: the file itself stays in the system's cache for a while
MADV_HUGEPAGE = 14


def pay(model: Path, free: int) -> bool:
    """Returns whether a model is better read into huge pages than mapped. free: bytes of memory.

    model: its file, the first one if it is split. False where cards may take part of it.
    """
    try:
        size = sum(model.with_name(name).stat().st_size for name in split_names(model.name))
        mode = MODE.read_text()
    except OSError:  # not Linux, or a system that hides it
        return False
    return "[never]" not in mode and LEAST <= size <= free / ROOM and not local_devices("gpu", "igpu")


def ask() -> None:
    """Asks for huge pages wherever much memory was allocated; what is in it already stays as it is."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, end in _allocations():
        start = -(-start // HUGE) * HUGE
        libc.madvise(start, end // HUGE * HUGE - start, MADV_HUGEPAGE)  # refused: the pages stay small


def _allocations() -> Iterator[tuple[int, int]]:
    """Yields the addresses of large allocations: mappings that may be written and are of no file."""
    for line in MAPS.read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        if inode == "0" and rights.startswith("rw") and end - start >= LEAST:
            yield start, end
