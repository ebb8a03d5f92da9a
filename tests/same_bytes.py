"""Whether this machine computes the same bytes for batches as for single tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgespec.commands.verify.equality import batch_shapes
from edgespec.llama.context import ContextSettings
from edgespec.llama.model import Model


def byte_identical(model: Model, settings: ContextSettings, tokens: NDArray[np.int32], k: int) -> bool:
    """Returns True if single tokens and batches of up to k + 1 give the same bytes."""
    shapes = batch_shapes(model, settings, tokens, tokens.size // 2, range(2, k + 2))
    return all(shape.identical for shape in shapes)
