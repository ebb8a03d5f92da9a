"""Which slices of a model are measured, and how their costs become that of the whole.

Two slices of different depth, both too large for the processor's caches: the difference is the cost of the
layers between them, the rest the cost of vocabulary and output. A small model is measured whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgespec_models.gguf.slice import Layers

WHOLE = 400 << 20  # bytes; a model no larger is made in full
SMALL_SLICE = 128 << 20  # bytes of layers that one token reads, several times what caches hold
LARGE_SLICE = 4  # times that
LARGEST_FILE = 1 << 30  # bytes of layers that are made; a mixture of experts reads few of its bytes


@dataclass(frozen=True, slots=True)
class Slices:
    """How many layers to make. small: None if the whole model is made, as `large`."""

    small: int | None
    large: int
    whole: int


def slices_of(model: Layers) -> Slices:
    """Returns which slices show what the whole model costs."""
    n = len(model.layers)
    lead, period = model.rhythm
    depths = range(lead + period, n, period)
    if model.size <= WHOLE or len(depths) < 2:
        return Slices(None, n, n)
    made = [depth for depth in depths if model.stored(model.slice(depth)) <= LARGEST_FILE] or [depths[0]]
    large = _first(model, made, SMALL_SLICE * LARGE_SLICE)
    small = _first(model, made, model.read(model.slice(large)) // LARGE_SLICE)
    if small == large:  # one more than that, or one fewer
        small, large = (small, depths[1]) if large == depths[0] else (large - period, large)
    return Slices(small, large, n)


def _first(model: Layers, depths: Sequence[int], wanted: int) -> int:
    """Returns the first depth whose layers read as much as is wanted, else the last."""
    return next((k for k in depths if model.read(model.slice(k)) >= wanted), depths[-1])


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
        most = large[n] * between / read[slices.large]  # if all else cost nothing
        layers = min(max(large[n] - small[n], 0.0), most)  # times are disturbed, and may cross
        found[n] = large[n] + layers * beyond / between
    return found
