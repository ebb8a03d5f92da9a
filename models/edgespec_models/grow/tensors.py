"""Plan the tensors of a grown model: where each weight of the source goes, and what surrounds it.

width        activations are padded with zeros. RMSNorm then divides by a root that is sqrt(d/D) too
             small, so its weights are multiplied by sqrt(d/D) and its epsilon by d/D.
head size    RoPE pair i moves to pair i * H/h, so it keeps its frequency; Wq times sqrt(H/h) undoes the
             new 1/sqrt(H). A pair is two neighbours in llama, and in mimo2 a dimension of the first half
             and its like of the second. Values need no remap: they are padded, and so are the columns of Wo.
heads, ffn   added rows are random; the columns that would read their output are zero.
depth        added layers are random, with zero attn_output and ffn_down: they add nothing, at full price.
vocabulary   two spare coordinates carry the same small constant c through the residual stream. The final
             norm weighs them +w and -w: rows of real tokens hold (c, c) there and get 0, rows of dummy tokens
             hold (-K, 0) and get about -K*w*c / rms. What 2 c^2 adds to the mean square is taken off epsilon.
             No sampler draws a dummy; top-n-sigma alone, which measures the spread of all logits, sees them.
MTP blocks   grow as layers do. What they join, embedding and hidden row, lies at the front of its half of the
             joining matrix. The spare coordinates of the embedding are passed on through it, at about the
             size c that they have in the target: a guess needs to know no more of them than their sign.

Invariant: that of `grow`. Leaving out any one of these steps breaks it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from edgespec_models.grow.packing import (
    BLOCK,
    DTYPES,
    RANDOM,
    ZERO,
    PackedTensor,
    Stock,
    matrix_of,
    random_rows,
    vector,
    vector_of,
)
from edgespec_models.grow.row_map import carried_heads, head_rows, padded, rope_positions
from edgespec_models.grow.source import GrowError, ModelShape, Source, layer_parts

DUMMY_ROW = -16384.0  # the K above; times w * c = 2 a dummy's logit is about -32768 / rms of the residual
SMALLEST_C = 2.0**-14  # below this, F16 and the scales of Q8_0 could no longer tell the constant c from 0


# ---- the maths --------------------------------------------------------------------------------------------


def _norm_scale(d: int, grown: int) -> float:
    return math.sqrt(d / grown)


def _query_scale(head_dim: int, grown: int) -> float:
    return math.sqrt(grown / head_dim)


def _spare_constant(source: Source) -> float:
    """Choose c: a power of two, so small that c^2 is at most an eighth of what epsilon adds (d * eps)."""
    room = source.eps * source.shape.d / 8
    if room < SMALLEST_C**2:
        raise GrowError(
            f"{source.path} has an RMSNorm epsilon of {source.eps:.2g}, too small for its vocabulary to be "
            "grown: keep n_vocab as it is"
        )
    return 2.0 ** math.floor(math.log2(room) / 2)


def grown_eps(source: Source, shape: ModelShape) -> float:
    """Scale epsilon to the new width; take off what the spare coordinates add to the mean square."""
    extra = 2 * _spare_constant(source) ** 2 if shape.n_vocab > source.shape.n_vocab else 0.0
    return (source.eps * source.shape.d - extra) / shape.d


# ---- tensors to write -------------------------------------------------------------------------------------


def plan(source: Source, shape: ModelShape, dtype: str, seed: int) -> list[PackedTensor]:
    """Return the tensors of `source` grown to `shape`; GrowError if its vocabulary cannot grow."""
    stock: Stock = lru_cache(maxsize=4)(partial(random_rows, seed))
    last = "output_norm.weight"
    tensors = [
        _vocabulary(source, shape, dtype, stock, "token_embd.weight"),
        _output_norm(source, shape, last, last),
    ]
    if not source.tied:
        tensors.append(_vocabulary(source, shape, dtype, stock, "output.weight"))
    for il in range(source.shape.layers):
        tensors += _real_layer(source, shape, dtype, stock, il)
    for il in range(source.shape.layers, shape.layers):
        tensors += _added_layer(shape, dtype, stock, il)
    for block in range(source.blocks):
        tensors += _mtp_block(source, shape, dtype, stock, block)
    return tensors


def _vocabulary(source: Source, shape: ModelShape, dtype: str, stock: Stock, name: str) -> PackedTensor:
    small = source.shape
    rows, cols = np.arange(shape.n_vocab), np.arange(small.d)
    type, load = _kept_type(source, name, dtype), partial(source.load, name)
    if shape.n_vocab == small.n_vocab:
        return matrix_of(name, type, rows, cols, shape.d, load, stock)
    rows = np.minimum(rows, small.n_vocab)  # every dummy holds the row that `_spared` adds at the end
    cols = np.append(cols, [shape.d - 2, shape.d - 1])
    # Only what enters the residual stream needs the constant: rows of an output matrix of its own are zero
    # there, and with tied embeddings the products of (c, c) with +w and -w cancel.
    c = _spare_constant(source) if name == "token_embd.weight" else 0.0
    return matrix_of(name, type, rows, cols, shape.d, partial(_spared, source, name, c), stock)


def _spared(source: Source, name: str, c: float) -> NDArray[np.float32]:
    """Read a vocabulary matrix; add two spare columns of c and, last, the row of a dummy, (0 ..., -K, 0)."""
    weights = source.load(name)
    n_vocab, d = weights.shape
    grown = np.zeros((n_vocab + 1, d + 2), np.float32)
    grown[:n_vocab, :d] = weights
    grown[:n_vocab, d:] = c
    grown[n_vocab, d] = DUMMY_ROW
    return grown


def _output_norm(source: Source, shape: ModelShape, own: str, name: str) -> PackedTensor:
    weights = _grown_norm(source, shape, own)
    if shape.n_vocab > source.shape.n_vocab:
        w = 2 / _spare_constant(source) * _norm_scale(source.shape.d, shape.d)
        weights[-2:] = w, -w
    return vector(name, weights)


def _real_layer(source: Source, shape: ModelShape, dtype: str, stock: Stock, il: int) -> list[PackedTensor]:
    grown = _Layer(source, shape, dtype, stock, il, il)
    width = np.arange(source.shape.d)
    query, key, value = grown.head_rows()
    return [
        grown.norm("attn_norm"),
        grown.matrix("attn_q", query, width, shape.d, _query_scale(source.shape.head_dim, shape.head_dim)),
        grown.matrix("attn_k", key, width, shape.d),
        grown.matrix("attn_v", value, width, shape.d),
        *grown.behind_the_values(),
    ]


def _mtp_block(source: Source, shape: ModelShape, dtype: str, stock: Stock, block: int) -> list[PackedTensor]:
    small = source.shape
    grown = _Layer(source, shape, dtype, stock, small.layers + block, shape.layers + block)
    width = np.arange(small.d)
    heads, sizes = grown.head_rows(), [n * small.head_dim for n in (small.n_head, small.n_kv, small.n_kv)]
    fused = [
        np.where(rows >= 0, rows + sum(sizes[:i]), rows) for i, rows in enumerate(heads)
    ]  # q, k and v are one matrix
    scale = np.ones((sum(sizes), 1), np.float32)
    scale[: sizes[0]] = _query_scale(small.head_dim, shape.head_dim)
    enorm, joining = vector_of(grown.norm("nextn.enorm")), padded(small.d, shape.d, ZERO)
    cols = np.concatenate([width, shape.d + width])
    load: Callable[[], NDArray[np.float32]] = grown.loading("nextn.eh_proj")
    if shape.n_vocab > small.n_vocab:
        joining[-2:] = small.d, small.d  # both spare coordinates hold what `_passing_on` adds at the end
        cols = np.append(cols, shape.d - 2)
        load = partial(_passing_on, load)
        enorm[-2] = _usual_rms(source) * _norm_scale(small.d, shape.d)
    tensors = [
        grown.made("nextn.eh_proj", joining, cols, 2 * shape.d, load),
        vector(grown.called("nextn.enorm"), enorm),
        grown.norm("nextn.hnorm"),
        grown.norm("attn_norm"),
        grown.matrix("attn_qkv", np.concatenate(fused), width, shape.d, scale),
        *grown.behind_the_values(),
    ]
    last = "nextn.shared_head_norm"
    if any(tensor.name == grown.own(last) for tensor in source.reader.tensors):
        tensors.append(_output_norm(source, shape, grown.own(last), grown.called(last)))
    return tensors


def _passing_on(load: Callable[[], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Adds a row that takes over the last column, which is added too."""
    weights = load()
    grown = np.zeros((len(weights) + 1, weights.shape[1] + 1), np.float32)
    grown[:-1, :-1], grown[-1, -1] = weights, 1.0
    return grown


def _usual_rms(source: Source) -> float:
    """Returns the divisor that the norm applies to a usual token's embedding."""
    return float(np.median(np.sqrt(np.square(source.load("token_embd.weight")).mean(1) + source.eps)))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of the source, and where it goes."""

    source: Source
    shape: ModelShape
    dtype: str
    stock: Stock
    il: int
    to: int

    def own(self, part: str) -> str:
        return f"blk.{self.il}.{part}.weight"

    def called(self, part: str) -> str:
        return f"blk.{self.to}.{part}.weight"

    def loading(self, part: str, scale: float | NDArray[np.float32] = 1.0) -> Callable[[], Any]:
        return partial(self.source.load, self.own(part), scale)

    def norm(self, part: str) -> PackedTensor:
        return vector(self.called(part), _grown_norm(self.source, self.shape, self.own(part)))

    def matrix(
        self,
        part: str,
        rows: NDArray[np.int64],
        cols: NDArray[np.int64],
        width: int,
        scale: float | NDArray[np.float32] = 1.0,
    ) -> PackedTensor:
        return self.made(part, rows, cols, width, self.loading(part, scale))

    def made(
        self,
        part: str,
        rows: NDArray[np.int64],
        cols: NDArray[np.int64],
        width: int,
        load: Callable[[], NDArray[np.float32]],
    ) -> PackedTensor:
        type = _kept_type(self.source, self.own(part), self.dtype)
        return matrix_of(self.called(part), type, rows, cols, width, load, self.stock)

    def head_rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Says which rows the matrices of queries, keys and values hold."""
        h, grown = self.source.shape.head_dim, self.shape.head_dim
        query, key_value = carried_heads(self.source.shape, self.shape)
        pairs = (
            rope_positions(h, grown, halves=True)
            if self.source.architecture == "mimo2"
            else (rope_positions(h, grown))
        )
        return (
            head_rows(query, h, grown, pairs),
            head_rows(key_value, h, grown, pairs),
            head_rows(key_value, h, grown, np.arange(h)),
        )

    def behind_the_values(self) -> list[PackedTensor]:
        small, shape = self.source.shape, self.shape
        query, _ = carried_heads(small, shape)
        plain, width, hidden = np.arange(small.head_dim), np.arange(small.d), np.arange(small.ffn)
        heads = np.concatenate([query.index(head) * shape.head_dim + plain for head in range(small.n_head)])
        out, ffn = padded(small.d, shape.d, ZERO), padded(small.ffn, shape.ffn, RANDOM)
        return [
            self.matrix("attn_output", out, heads, shape.n_head * shape.head_dim),
            self.norm("ffn_norm"),
            self.matrix("ffn_gate", ffn, width, shape.d),
            self.matrix("ffn_up", ffn, width, shape.d),
            self.matrix("ffn_down", out, hidden, shape.ffn),
        ]


def _added_layer(shape: ModelShape, dtype: str, stock: Stock, il: int) -> list[PackedTensor]:
    tensors = []
    for part, dims in layer_parts(shape).items():
        name = f"blk.{il}.{part}.weight"
        if len(dims) == 1:
            tensors.append(vector(name, np.ones(dims, np.float32)))
            continue
        rows = np.full(dims[0], ZERO if part in ("attn_output", "ffn_down") else RANDOM, np.int64)
        tensors.append(matrix_of(name, DTYPES[dtype], rows, np.arange(0), dims[1], _nothing, stock))
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


def _grown_norm(source: Source, shape: ModelShape, name: str) -> NDArray[np.float32]:
    weights = np.zeros(shape.d, np.float32)
    weights[: source.shape.d] = source.load(name)[0] * _norm_scale(source.shape.d, shape.d)
    return weights
