"""Which row and column of a grown weight holds which of the source."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec_models.grow.packing import (
    BLOCK,
    RANDOM,
    ZERO,
)
from edgespec_models.grow.source import ModelShape


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `n`."""
    return -(-n // multiple) * multiple


def rope_positions(head_dim: int, grown: int, *, halves: bool = False) -> NDArray[np.int64]:
    """Place dimension j of a query or key: pair i becomes pair i * grown / head_dim.

    A pair is dimensions 2i and 2i+1, or, by halves, i and i + head_dim / 2.
    """
    j, times = np.arange(head_dim), grown // head_dim
    if halves:
        half = head_dim // 2
        return j % half * times + j // half * (grown // 2)
    return j // 2 * 2 * times + j % 2


def kv_needed(source: ModelShape, n_head: int, n_kv: int) -> int:
    """Count the grown key-value heads the source's heads occupy: smaller groups repeat a key-value head."""
    per_kv = source.n_head // source.n_kv
    return source.n_kv * -(-per_kv // max(1, n_head // n_kv))


def carried_heads(source: ModelShape, shape: ModelShape) -> tuple[list[int], list[int]]:
    """Say for each grown query head, and key-value head, which of the source's it carries (-1: none)."""
    small, large = source.n_head // source.n_kv, shape.n_head // shape.n_kv
    copies = -(-small // large)
    query, key_value = [-1] * shape.n_head, [-1] * shape.n_kv
    for head in range(source.n_head):
        kv, within = divmod(head, small)
        copy, slot = divmod(within, large)
        key_value[kv * copies + copy] = kv
        query[(kv * copies + copy) * large + slot] = head
    return query, key_value


def head_rows(
    carried: Sequence[int], head_dim: int, grown: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Say which source row each grown row of Wq, Wk or Wv holds; padding of a carried head is zero."""
    rows = np.full((len(carried), grown), RANDOM, np.int64)
    for new, old in enumerate(carried):
        if old >= 0:
            rows[new] = ZERO
            rows[new, positions] = old * head_dim + np.arange(head_dim)
    return rows.ravel()


def padded(count: int, grown: int, fill: int) -> NDArray[np.int64]:
    """Keep `count` rows in place; random ones start at a block border, to share no scale with them."""
    rows = np.full(grown, ZERO, np.int64)
    rows[:count] = np.arange(count)
    rows[round_up(count, BLOCK) :] = fill
    return rows
