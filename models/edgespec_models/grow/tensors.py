"""Plan the tensors of a grown model: where each weight of the source goes, and what is put around it.

width        activations are padded with zeros. RMSNorm then divides by a root that is sqrt(d/D) too
             small, so its weights are multiplied by sqrt(d/D) and its epsilon by d/D.
head size    RoPE pair i moves to pair i * H/h, so it keeps its frequency; Wq times sqrt(H/h) undoes the
             new 1/sqrt(H). Values need no remap: they are padded, and so are the columns of Wo.
heads, ffn   added rows are random; the columns that would read their output are zero.
depth        added layers are random, with zero attn_output and ffn_down: they add nothing, at full price.
vocabulary   two spare coordinates carry the same small constant c through the residual stream. The final
             norm weighs them +w and -w: rows of real tokens hold (c, c) there and get 0, rows of dummy tokens
             hold (-K, 0) and get about -K*w*c / rms. What 2 c^2 adds to the mean square is taken off epsilon.
             No sampler draws a dummy; top-n-sigma alone, which measures the spread of all logits, sees them.

Invariant: that of `grow`. Leaving out any one of these steps breaks it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from edgespec_models.grow.source import GrowError, Shape, Source, layer_parts

BLOCK = 32  # weights that share one scale in Q8_0 and Q4_0
ZERO, RANDOM = -1, -2  # what a grown row holds where it carries none of the source's
DUMMY_ROW = -16384.0  # the K above; times w * c = 2 a dummy's logit is about -32768 / rms of the residual
SMALLEST_C = 2.0**-14  # below this, F16 and the scales of Q8_0 could no longer tell the constant c from 0
CHUNK_WEIGHTS = 4 << 20
POOL_WEIGHTS = 1 << 20

DTYPES: dict[str, GGMLQuantizationType] = {
    "F16": GGMLQuantizationType.F16,
    "Q8_0": GGMLQuantizationType.Q8_0,
    "Q4_0": GGMLQuantizationType.Q4_0,
}
"""The types added weights can have."""

_Stock = Callable[[GGMLQuantizationType, int], NDArray[np.uint8]]  # type, width -> packed random rows


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor to be written: its place in the header, and its bytes made piece by piece on demand."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[NDArray[np.uint8]]]

    @property
    def nbytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // block * size


# ---- the maths --------------------------------------------------------------------------------------------


def round_up(n: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `n`."""
    return -(-n // multiple) * multiple


def _norm_scale(d: int, grown: int) -> float:
    return math.sqrt(d / grown)


def _query_scale(head_dim: int, grown: int) -> float:
    return math.sqrt(grown / head_dim)


def _rope_positions(head_dim: int, grown: int) -> NDArray[np.int64]:
    """Place dimension j of a query or key: pair i (dimensions 2i, 2i+1) becomes pair i * grown / head_dim."""
    j = np.arange(head_dim)
    return j // 2 * 2 * (grown // head_dim) + j % 2


def kv_needed(source: Shape, n_head: int, n_kv: int) -> int:
    """Count the grown key-value heads the source's heads occupy: smaller groups repeat a key-value head."""
    per_kv = source.n_head // source.n_kv
    return source.n_kv * -(-per_kv // max(1, n_head // n_kv))


def _carried_heads(source: Shape, shape: Shape) -> tuple[list[int], list[int]]:
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


def _head_rows(
    carried: Sequence[int], head_dim: int, grown: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Say which source row each grown row of Wq, Wk or Wv holds; padding of a carried head is zero."""
    rows = np.full((len(carried), grown), RANDOM, np.int64)
    for new, old in enumerate(carried):
        if old >= 0:
            rows[new] = ZERO
            rows[new, positions] = old * head_dim + np.arange(head_dim)
    return rows.ravel()


def _padded(count: int, grown: int, fill: int) -> NDArray[np.int64]:
    """Keep `count` rows in place; random ones start at a block border, to share no scale with them."""
    rows = np.full(grown, ZERO, np.int64)
    rows[:count] = np.arange(count)
    rows[round_up(count, BLOCK) :] = fill
    return rows


def _spare_constant(source: Source) -> float:
    """Choose c: a power of two, so small that c^2 is at most an eighth of what epsilon adds (d * eps)."""
    room = source.eps * source.shape.d / 8
    if room < SMALLEST_C**2:
        raise GrowError(
            f"{source.path} has an RMSNorm epsilon of {source.eps:.2g}, too small for its vocabulary to be "
            "grown: keep n_vocab as it is"
        )
    return 2.0 ** math.floor(math.log2(room) / 2)


def grown_eps(source: Source, shape: Shape) -> float:
    """Scale epsilon to the new width; take off what the spare coordinates add to the mean square."""
    extra = 2 * _spare_constant(source) ** 2 if shape.n_vocab > source.shape.n_vocab else 0.0
    return (source.eps * source.shape.d - extra) / shape.d


# ---- tensors to write -------------------------------------------------------------------------------------


def plan(source: Source, shape: Shape, dtype: str, seed: int) -> list[Tensor]:
    """Say what tensors `source` grown to `shape` consists of; GrowError if its vocabulary cannot grow."""
    stock: _Stock = lru_cache(maxsize=4)(partial(_random_rows, seed))
    tensors = [_vocabulary(source, shape, dtype, stock, "token_embd.weight"), _output_norm(source, shape)]
    if not source.tied:
        tensors.append(_vocabulary(source, shape, dtype, stock, "output.weight"))
    for il in range(source.shape.layers):
        tensors += _real_layer(source, shape, dtype, stock, il)
    for il in range(source.shape.layers, shape.layers):
        tensors += _added_layer(shape, dtype, stock, il)
    return tensors


def _vocabulary(source: Source, shape: Shape, dtype: str, stock: _Stock, name: str) -> Tensor:
    small = source.shape
    rows, cols = np.arange(shape.n_vocab), np.arange(small.d)
    type, load = _kept_type(source, name, dtype), partial(source.load, name)
    if shape.n_vocab == small.n_vocab:
        return _matrix(name, type, rows, cols, shape.d, load, stock)
    rows = np.minimum(rows, small.n_vocab)  # every dummy holds the row that `_spared` adds at the end
    cols = np.append(cols, [shape.d - 2, shape.d - 1])
    # Only what enters the residual stream needs the constant: rows of an output matrix of its own are zero
    # there, and with tied embeddings the products of (c, c) with +w and -w cancel.
    c = _spare_constant(source) if name == "token_embd.weight" else 0.0
    return _matrix(name, type, rows, cols, shape.d, partial(_spared, source, name, c), stock)


def _spared(source: Source, name: str, c: float) -> NDArray[np.float32]:
    """Read a vocabulary matrix; add two spare columns of c and, last, the row of a dummy, (0 ..., -K, 0)."""
    weights = source.load(name)
    n_vocab, d = weights.shape
    grown = np.zeros((n_vocab + 1, d + 2), np.float32)
    grown[:n_vocab, :d] = weights
    grown[:n_vocab, d:] = c
    grown[n_vocab, d] = DUMMY_ROW
    return grown


def _output_norm(source: Source, shape: Shape) -> Tensor:
    weights = _grown_norm(source, shape, "output_norm.weight")
    if shape.n_vocab > source.shape.n_vocab:
        w = 2 / _spare_constant(source) * _norm_scale(source.shape.d, shape.d)
        weights[-2:] = w, -w
    return _vector("output_norm.weight", weights)


def _real_layer(source: Source, shape: Shape, dtype: str, stock: _Stock, il: int) -> list[Tensor]:
    small, h, grown_h = source.shape, source.shape.head_dim, shape.head_dim
    query, key_value = _carried_heads(small, shape)
    pairs, plain = _rope_positions(h, grown_h), np.arange(h)
    width, hidden = np.arange(small.d), np.arange(small.ffn)
    heads = np.concatenate([query.index(head) * grown_h + plain for head in range(small.n_head)])
    out, ffn = _padded(small.d, shape.d, ZERO), _padded(small.ffn, shape.ffn, RANDOM)
    q_scale, q_width = _query_scale(h, grown_h), shape.n_head * grown_h
    key_rows = _head_rows(key_value, h, grown_h, pairs)
    value_rows = _head_rows(key_value, h, grown_h, plain)

    def matrix(
        part: str, rows: NDArray[np.int64], cols: NDArray[np.int64], width: int, scale: float = 1.0
    ) -> Tensor:
        name = f"blk.{il}.{part}.weight"
        load = partial(source.load, name, scale)
        return _matrix(name, _kept_type(source, name, dtype), rows, cols, width, load, stock)

    def norm(part: str) -> Tensor:
        return _vector(f"blk.{il}.{part}.weight", _grown_norm(source, shape, f"blk.{il}.{part}.weight"))

    return [
        norm("attn_norm"),
        matrix("attn_q", _head_rows(query, h, grown_h, pairs), width, shape.d, q_scale),
        matrix("attn_k", key_rows, width, shape.d),
        matrix("attn_v", value_rows, width, shape.d),
        matrix("attn_output", out, heads, q_width),
        norm("ffn_norm"),
        matrix("ffn_gate", ffn, width, shape.d),
        matrix("ffn_up", ffn, width, shape.d),
        matrix("ffn_down", out, hidden, shape.ffn),
    ]


def _added_layer(shape: Shape, dtype: str, stock: _Stock, il: int) -> list[Tensor]:
    tensors = []
    for part, dims in layer_parts(shape).items():
        name = f"blk.{il}.{part}.weight"
        if len(dims) == 1:
            tensors.append(_vector(name, np.ones(dims, np.float32)))
            continue
        rows = np.full(dims[0], ZERO if part in ("attn_output", "ffn_down") else RANDOM, np.int64)
        tensors.append(_matrix(name, DTYPES[dtype], rows, np.arange(0), dims[1], _nothing, stock))
    return tensors


def _nothing() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


def _kept_type(source: Source, name: str, dtype: str) -> GGMLQuantizationType:
    """Choose the type of a matrix that holds weights of the source, so that these lose little."""
    if dtype == "F16":
        return GGMLQuantizationType.F16
    own = source.tensor(name).tensor_type
    # Padding heads that are not whole blocks tears blocks apart: 4 bits would then be rounded a second time.
    torn = name.endswith("attn_output.weight") and source.shape.head_dim % BLOCK
    return own if own in DTYPES.values() and own != DTYPES["F16"] and not torn else DTYPES["Q8_0"]


def _grown_norm(source: Source, shape: Shape, name: str) -> NDArray[np.float32]:
    weights = np.zeros(shape.d, np.float32)
    weights[: source.shape.d] = source.load(name)[0] * _norm_scale(source.shape.d, shape.d)
    return weights


def _vector(name: str, weights: NDArray[np.float32]) -> Tensor:
    return Tensor(name, weights.shape, GGMLQuantizationType.F32, lambda: iter([weights.view(np.uint8)]))


def _matrix(
    name: str,
    type: GGMLQuantizationType,
    rows: NDArray[np.int64],  # (grown rows,) the source row each holds, or ZERO, or RANDOM
    cols: NDArray[np.int64],  # (source columns,) where each goes
    width: int,
    load: Callable[[], NDArray[np.float32]],  # -> (source rows, source columns)
    stock: _Stock,
) -> Tensor:
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

    return Tensor(name, (len(rows), width), type, chunks)


def _random_rows(seed: int, type: GGMLQuantizationType, width: int) -> NDArray[np.uint8]:
    """Make a stock of packed random rows, (rows, bytes a row), that all added weights are cut from."""
    count = max(64, POOL_WEIGHTS // width)
    weights = np.random.default_rng(seed).standard_normal((count, width), np.float32) / math.sqrt(width)
    return _pack(weights, type)


def _pack(weights: NDArray[np.float32], type: GGMLQuantizationType) -> NDArray[np.uint8]:
    packed: NDArray[Any] = quantize(weights, type)
    return np.ascontiguousarray(packed).view(np.uint8)
