"""A tensor of a grown model: its parts from the source, random ones and zeros, packed piece by piece."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

BLOCK = 32  # weights that share one scale in Q8_0 and Q4_0
ZERO, RANDOM = -1, -2  # content of a grown row without any of the source's
CHUNK_WEIGHTS = 4 << 20
POOL_WEIGHTS = 1 << 20

DTYPES = {name: GGMLQuantizationType[name] for name in ("F16", "Q8_0", "Q4_0")}
"""The types added weights can have."""

Stock = Callable[[GGMLQuantizationType, int], NDArray[np.uint8]]  # type, width -> packed random rows


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """One tensor to be written: its place in the header, and its bytes made piece by piece on demand."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[NDArray[np.uint8]]]

    @property
    def nbytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // block * size


def vector_of(tensor: PackedTensor) -> NDArray[np.float32]:
    return np.concatenate(list(tensor.chunks())).view(np.float32)


def vector(name: str, weights: NDArray[np.float32]) -> PackedTensor:
    return PackedTensor(name, weights.shape, GGMLQuantizationType.F32, lambda: iter([weights.view(np.uint8)]))


def matrix_of(
    name: str,
    type: GGMLQuantizationType,
    rows: NDArray[np.int64],  # (grown rows,) the source row of each, or ZERO, or RANDOM
    cols: NDArray[np.int64],  # (source columns,) where each goes
    width: int,
    load: Callable[[], NDArray[np.float32]],  # -> (source rows, source columns)
    stock: Stock,
) -> PackedTensor:
    block, size = GGML_QUANT_SIZES[type]

    def chunks() -> Iterator[NDArray[np.uint8]]:
        weights, row_bytes = load(), width // block * size
        at = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")
        step = max(1, CHUNK_WEIGHTS // width)
        for start in range(0, len(rows), step):
            held = rows[start : start + step]
            out = np.zeros((len(held), row_bytes), np.uint8)
            random, real = np.flatnonzero(held == RANDOM), held >= 0
            if len(random):
                packed = stock(type, width)
                out[random] = packed[(at + start + random) % len(packed)]
            if real.any():
                unique, back = np.unique(held[real], return_inverse=True)  # all dummies are packed once
                wide = np.zeros((len(unique), width), np.float32)
                wide[:, cols] = weights[unique]
                out[real] = _pack(wide, type)[back]
            yield out

    return PackedTensor(name, (len(rows), width), type, chunks)


def random_rows(seed: int, type: GGMLQuantizationType, width: int) -> NDArray[np.uint8]:
    """Make a stock of packed random rows, (rows, bytes a row), that all added weights are cut from."""
    count = max(64, POOL_WEIGHTS // width)
    weights = np.random.default_rng(seed).standard_normal((count, width), np.float32) / math.sqrt(width)
    return _pack(weights, type)


def _pack(weights: NDArray[np.float32], type: GGMLQuantizationType) -> NDArray[np.uint8]:
    packed: NDArray[Any] = quantize(weights, type)
    return np.ascontiguousarray(packed).view(np.uint8)
