"""Random weights in any of ggml's number formats, without llama.cpp: what an evaluation costs depends on
shapes and formats, not on what the numbers are, as long as they are numbers.

A quantised block is random bytes whose scales are set to a small value, so that no product overflows.
Layouts: ggml/src/ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 22  # bytes that are drawn; longer tensors repeat them
SIZE_OF_WEIGHTS = 0.02  # their standard deviation, about


@dataclass(frozen=True, slots=True)
class Format:
    """One of ggml's formats. scales: where in a block its 16-bit scales lie, and what they are set to."""

    name: str
    weights: int  # in a block
    size: int  # bytes of a block
    scales: tuple[tuple[int, float], ...] = ()


FORMATS = {
    0: Format("F32", 1, 4),
    1: Format("F16", 1, 2),
    2: Format("Q4_0", 32, 18, ((0, 4e-3),)),
    3: Format("Q4_1", 32, 20, ((0, 4e-3), (2, -0.03))),
    6: Format("Q5_0", 32, 22, ((0, 2e-3),)),
    7: Format("Q5_1", 32, 24, ((0, 2e-3), (2, -0.03))),
    8: Format("Q8_0", 32, 34, ((0, 3e-4),)),
    10: Format("Q2_K", 256, 84, ((80, 2e-3), (82, 3e-3))),
    11: Format("Q3_K", 256, 110, ((108, 4e-4),)),
    12: Format("Q4_K", 256, 144, ((0, 1.2e-4), (2, 9e-4))),
    13: Format("Q5_K", 256, 176, ((0, 6e-5), (2, 9e-4))),
    14: Format("Q6_K", 256, 210, ((208, 1.5e-5),)),
    16: Format("IQ2_XXS", 256, 66, ((0, 3e-4),)),
    17: Format("IQ2_XS", 256, 74, ((0, 3e-4),)),
    18: Format("IQ3_XXS", 256, 98, ((0, 3e-4),)),
    19: Format("IQ1_S", 256, 50, ((0, 4e-3),)),
    20: Format("IQ4_NL", 32, 18, ((0, 3e-4),)),
    21: Format("IQ3_S", 256, 110, ((0, 2e-4),)),
    22: Format("IQ2_S", 256, 82, ((0, 3e-4),)),
    23: Format("IQ4_XS", 256, 136, ((0, 1e-5),)),
    30: Format("BF16", 1, 2),
    34: Format("TQ1_0", 256, 54, ((52, 0.02),)),
    35: Format("TQ2_0", 256, 66, ((64, 0.02),)),
    39: Format("MXFP4", 32, 17),
}


class UnknownFormatError(Exception):
    """A tensor has a number format that is not known here; the message is one sentence."""


def format_of(type_: int, name: str) -> Format:
    """Returns the format of a tensor. Raises UnknownFormatError."""
    if type_ not in FORMATS:
        raise UnknownFormatError(f"tensor {name} has the number format {type_}, which is not known here")
    return FORMATS[type_]


def n_bytes(shape: tuple[int, ...], type_: int, name: str = "it") -> int:
    """Returns the bytes of a tensor, padding left out. Raises UnknownFormatError."""
    layout, n = format_of(type_, name), 1
    for dimension in shape:
        n *= dimension
    return n // layout.weights * layout.size


def random_bytes(
    shape: tuple[int, ...], type_: int, name: str, rng: np.random.Generator
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a tensor of random weights, in pieces. Raises UnknownFormatError."""
    layout, left = format_of(type_, name), n_bytes(shape, type_, name)
    if len(shape) == 1 and type_ == 0:
        yield np.full(shape[0], _constant(name), np.float32).tobytes()
        return
    blocks = max(1, min(left, CHUNK) // layout.size)
    piece = memoryview(_blocks(layout, blocks, rng).tobytes())
    while left > 0:
        yield piece[: min(left, len(piece))]
        left -= len(piece)


def _constant(name: str) -> float:
    """Returns what a vector holds: norms are ones, and a recurrent state has to fade."""
    return -1.0 if "ssm_a" in name else 0.0 if name.endswith(".bias") else 1.0


def _blocks(layout: Format, n: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Returns n random blocks: (n, size) uint8."""
    if layout.name in ("F32", "F16", "BF16"):
        values = rng.standard_normal(n, np.float32) * np.float32(SIZE_OF_WEIGHTS)
        if layout.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float32 if layout.name == "F32" else np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (n, layout.size), np.uint8)
    for at, scale in layout.scales:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if layout.name == "MXFP4":
        blocks[:, 0] = 120  # a power of two: 2^(120 - 127)
    return blocks
