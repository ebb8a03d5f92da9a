"""Media of random rows, as a projector would have made them: for tests that need none."""

from __future__ import annotations

import numpy as np

from edgespec.core.media import cells
from edgespec.llama.medium import Medium


def drawn(seed: int, width: int, *, causal: bool, wide: bool, most: int = 6) -> Medium:
    """Return a medium of some 5 to 40 cells. wide: with M-RoPE's positions, of a grid. most: of a side."""
    rng = np.random.default_rng(seed)
    across, down = rng.integers(2, most + 1, 2).tolist()
    n = across * down
    if wide:
        at, moves = np.arange(n), np.ones((4, n), np.int32)
        places = np.stack([0 * at, at // across, at % across, 0 * at]).astype(np.int32)
        moves[3] = 0
    else:
        places, moves = np.arange(n, dtype=np.int32)[None], np.ones((1, n), np.int32)
    rows = rng.standard_normal((n, width)).astype(np.float32)
    return Medium(cells(rng.bytes(16), n, max(across, down) if wide else n), rows, places, moves, causal)
