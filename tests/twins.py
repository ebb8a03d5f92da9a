"""Twins of a draft with another vocabulary: the same weights, ids permuted or the rarest tokens gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.trim import TOKENS, most_used, write_with_tokens


def permuted(source: Path, path: Path, seed: int = 0) -> Path:
    """Writes a twin whose ids are in another order."""
    tokens = read_file(source).metadata[TOKENS]
    assert isinstance(tokens, list)
    write_with_tokens(source, path, np.random.default_rng(seed).permutation(len(tokens)).tolist())
    return path


def trimmed(source: Path, path: Path, n: int) -> Path:
    """Writes a twin of the n most used tokens."""
    write_with_tokens(source, path, most_used(read_file(source), n))
    return path
