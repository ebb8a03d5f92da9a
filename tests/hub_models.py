"""Small models and large ones for the local hub."""

from __future__ import annotations

from pathlib import Path

import tiny_gguf
from local_hub import Content

TEMPLATE_FREE = None


def model_bytes(folder: Path, *, seed: int = 0, d: int = 32, layers: int = 1, **changes: object) -> bytes:
    """Returns a GGUF of random weights; changes: of its vocabulary, as tiny_gguf.altered has them."""
    vocabulary = tiny_gguf.altered(tiny_gguf.make_vocabulary(), **changes)  # type: ignore[arg-type]
    path = tiny_gguf.write_llama(folder / "made.gguf", d=d, layers=layers, vocab=vocabulary, seed=seed)
    return path.read_bytes()


def as_large_as(header_of: bytes, size: int) -> Content:
    """Returns a file that begins as a model does and goes on with zeros, without holding them."""
    return Content(header_of, size)
