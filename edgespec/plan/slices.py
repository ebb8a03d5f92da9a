"""Which slices of a model are measured, and how their costs become that of the whole.

Two slices of different depth, both too large for the processor's caches: the difference is the cost of the
layers between them, what is left the cost of vocabulary and output. A small model is measured whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgespec_models.gguf_slice import Layers

WHOLE = 400 << 20  # bytes; a model no larger is made in full
SMALL_SLICE = 96 << 20  # bytes of layers that one token reads, several times what caches hold
LARGE_SLICE = 3  # times that
CPU_CACHE = 32 << 20


@dataclass(frozen=True, slots=True)
class Slices:
    """How many layers to make. small: None where the whole model is made, as `large`."""

    small: int | None
    large: int
    whole: int


def slices_of(model: Layers) -> Slices:
    """Returns which slices tell what the whole model costs."""
    n = len(model.layers)
    if model.size <= WHOLE:
        return Slices(None, n, n)
    lead, period = model.rhythm
    sizes = [model.read(model.slice(k)) for k in range(n + 1)]
    small = _first(sizes, SMALL_SLICE, lead, period)
    large = _first(sizes, SMALL_SLICE * LARGE_SLICE, lead, period)
    large = max(large, min(n, small + period))
    if large >= n or small >= large:
        return Slices(None, n, n)
    return Slices(small, large, n)


def _first(sizes: list[int], wanted: int, lead: int, period: int) -> int:
    """Returns the fewest layers that read as much as is wanted and end where the rhythm does."""
    n = len(sizes) - 1
    return next((k for k in range(lead + period, n + 1, period) if sizes[k] >= wanted), n)


def whole_cost(
    model: Layers, slices: Slices, small: Mapping[int, float], large: Mapping[int, float]
) -> dict[int, float]:
    """Returns number of tokens -> seconds of the whole model. small, large: the same of the slices."""
    if slices.small is None:
        return dict(large)
    read = {k: model.read(model.slice(k)) for k in (slices.small, slices.large, slices.whole)}
    between, beyond = read[slices.large] - read[slices.small], read[slices.whole] - read[slices.large]
    found = {}
    for n in sorted(set(small) & set(large)):
        layers = max(large[n] - small[n], 0.0)
        layers = max(layers, 0.5 * large[n] * between / read[slices.large])  # a disturbed pair of times
        found[n] = large[n] + layers * beyond / between
    return found
