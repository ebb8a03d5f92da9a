"""Random weights in any of ggml's number formats, without llama.cpp: what an evaluation costs depends on
shapes and formats, not on the numbers, as long as they are numbers.

A quantised block is random bytes with small scales, so that no product overflows.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from edgespec_models.gguf.number_formats import Format, format_of, n_bytes

CHUNK = 1 << 22  # random bytes; longer tensors repeat them
SIZE_OF_WEIGHTS = 0.02  # their standard deviation, about


def random_bytes(
    shape: tuple[int, ...], type_: int, name: str, rng: np.random.Generator
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a tensor of random weights, in pieces. Raises UnknownFormatError."""
    layout, left = format_of(type_, name), n_bytes(shape, type_, name)
    if len(shape) == 1 and type_ == 0:
        piece = memoryview(np.full(min(shape[0], CHUNK // 4), _constant(name), np.float32).tobytes())
    else:
        blocks = max(1, min(left, CHUNK) // layout.size)
        piece = memoryview(_blocks(layout, blocks, rng).tobytes())
    while left > 0:
        yield piece[: min(left, len(piece))]
        left -= len(piece)


def _constant(name: str) -> float:
    """Returns the content of a vector: norms are ones, and a recurrent state has to fade."""
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
