"""Grow a small llama-architecture GGUF to the cost of a large one, without changing what it computes.

What speculation is worth can only be shown with real agreement between target and draft *and* real cost.
A pair that was trained small has the first; growing gives it the second, by function-preserving steps:

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

Invariant: on the tokens the source has, a grown model's logits are the source's up to rounding (for F16
from a Q8_0 source that includes the 8-bit rounding of activations the source itself suffers).
Source of the idea: Net2Net (Chen et al., arXiv 1511.05641), carried over to RMSNorm, RoPE and GQA.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

__all__ = [
    "DTYPES",
    "SHAPES",
    "GrowError",
    "GrowSpec",
    "Progress",
    "Shape",
    "fit",
    "grow",
    "grow_pair",
    "parse_spec",
    "read_shape",
]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while weights are written; the last call has both equal."""

VERSION = 1  # part of the name of finished files: raise it whenever the same call writes other bytes
BLOCK = 32  # weights that share one scale in Q8_0 and Q4_0
ZERO, RANDOM = -1, -2  # what a grown row holds where it carries none of the source's
DUMMY_ROW = -16384.0  # the K above; times w * c = 2 a dummy's logit is about -32768 / rms of the residual
SMALLEST_C = 2.0**-14  # below this, F16 and the scales of Q8_0 could no longer tell the constant c from 0
CHUNK_WEIGHTS = 4 << 20
POOL_WEIGHTS = 1 << 20
SPARE_DISK = 64 << 20
STALE_AFTER_S = 3600.0

DTYPES: dict[str, GGMLQuantizationType] = {
    "F16": GGMLQuantizationType.F16,
    "Q8_0": GGMLQuantizationType.Q8_0,
    "Q4_0": GGMLQuantizationType.Q4_0,
}
"""The types added weights can have."""

FILE_TYPES = {
    "F16": LlamaFileType.MOSTLY_F16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}
SHAPE_KEYS = {
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "vocab_size",
}  # fmt: skip
KEPT_KEYS = {"context_length", "rope.freq_base"}
TOKEN_KEYS = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.scores"}


class GrowError(Exception):
    """Growing was refused or could not be finished; the message is one sentence for a user."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a llama-architecture model."""

    n_vocab: int
    d: int  # embedding length
    layers: int
    n_head: int
    n_kv: int
    head_dim: int
    ffn: int

    @property
    def parameters(self) -> int:
        """Count the weights, with tied embeddings and without the norms."""
        attention = 2 * self.d * self.head_dim * (self.n_head + self.n_kv)
        return self.n_vocab * self.d + self.layers * (attention + 3 * self.d * self.ffn)


@dataclass(frozen=True, slots=True)
class GrowSpec:
    """What a pair is grown to: the shapes of both models and the type of the added weights."""

    name: str
    dtype: str
    target: Shape
    draft: Shape


SHAPES: dict[str, tuple[Shape, Shape]] = {  # target, draft; the draft costs 0.05 to 0.10 of its target
    "0.6B": (Shape(151_936, 1024, 28, 16, 8, 128, 3072), Shape(151_936, 192, 4, 4, 4, 64, 768)),
    "1.1B": (Shape(32_000, 2048, 22, 32, 4, 64, 5632), Shape(32_000, 512, 14, 8, 4, 64, 1536)),
    "1B": (Shape(128_256, 2048, 16, 32, 8, 64, 8192), Shape(128_256, 384, 8, 8, 4, 64, 1536)),
    "3B": (Shape(128_256, 3072, 28, 24, 8, 128, 8192), Shape(128_256, 768, 8, 16, 8, 64, 3072)),
    "8B": (Shape(128_256, 4096, 32, 32, 8, 128, 14_336), Shape(128_256, 1024, 28, 16, 8, 128, 3072)),
}
"""Named sizes, after published models: Qwen3 0.6B, TinyLlama 1.1B, Llama 3.2 1B and 3B, Llama 3.1 8B."""


@dataclass(frozen=True, slots=True)
class _Source:
    path: Path
    reader: GGUFReader
    shape: Shape
    eps: float
    tied: bool


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor to be written: its place in the header, and its bytes made piece by piece on demand."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    chunks: Callable[[], Iterator[NDArray[np.uint8]]]

    @property
    def nbytes(self) -> int:
        block, size = GGML_QUANT_SIZES[self.type]
        return math.prod(self.shape) // block * size


def parse_spec(text: str) -> GrowSpec:
    """Read a size and a type such as `0.6B-F16` or `1.1B-Q4_0`; case does not matter.

    Raises GrowError, naming the valid ones, for anything else.
    """
    sizes, dtypes = {name.lower(): name for name in SHAPES}, {name.lower(): name for name in DTYPES}
    size, _, dtype = text.strip().lower().partition("-")
    if size not in sizes or dtype not in dtypes:
        raise GrowError(
            f"{text!r} is not a size to grow to: give one of {', '.join(SHAPES)}, a hyphen, and one of "
            f"{', '.join(DTYPES)}, for example 0.6B-F16."
        )
    name = sizes[size]
    return GrowSpec(f"{name}-{dtypes[dtype]}", dtypes[dtype], *SHAPES[name])


def read_shape(path: Path) -> Shape:
    """Read the shape of a llama-architecture GGUF; raises GrowError if it is one that cannot be grown."""
    return _open(path).shape


def fit(shape: Shape, source: Shape) -> Shape:
    """Widen `shape` where it is too small to hold `source`: a named size is a cost, met from above."""
    head_dim = _up(max(shape.head_dim, source.head_dim), source.head_dim)
    n_head = _up(source.n_head, shape.n_head)
    groups = (n for n in range(shape.n_kv, n_head + 1) if n_head % n == 0)
    return Shape(
        n_vocab=max(shape.n_vocab, source.n_vocab),
        d=max(shape.d, _up(source.d, BLOCK) + BLOCK),
        layers=max(shape.layers, source.layers),
        n_head=n_head,
        n_kv=next(n for n in groups if _kv_needed(source, n_head, n) <= n),
        head_dim=head_dim,
        ffn=max(shape.ffn, _up(source.ffn, BLOCK)),
    )


def grow(
    source: Path,
    destination: Path,
    shape: Shape,
    *,
    dtype: str = "F16",
    on_progress: Progress | None = None,
    seed: int = 0,
) -> None:
    """Write `source` grown to `shape` as `destination`, leaving what it computes as it was.

    With dtype "F16" every matrix is F16. Otherwise the added layers have that type, and matrices that hold
    weights of the source keep the source's type if it is Q8_0 or Q4_0, else get Q8_0. `seed` picks the
    random weights. The file appears under its name only when complete; memory use stays below about 200 MB
    plus the source's largest matrix in float32.

    Raises GrowError, with nothing left behind, if the source is unsuitable, the shape too small, or the
    disk too full.
    """
    opened = _open(source)
    _check_shape(opened.shape, shape, dtype)
    tensors = _tensors(opened, shape, dtype, seed)
    _check_space(destination.parent, opened, shape, tensors)
    _write(opened, destination, shape, dtype, tensors, on_progress or (lambda done, total: None))


def grow_pair(
    target: Path,
    draft: Path,
    folder: Path,
    spec: GrowSpec,
    *,
    on_progress: Progress | None = None,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Grow a pair into `folder` and return the paths of (target, draft); finished files are used again.

    A file's name holds a hash of its source's content, the shape, the type, the seed and VERSION, so a
    changed source or a changed way of growing is never mistaken for a finished file. Raises as `grow`.
    """
    jobs: list[tuple[Path, Path, Shape]] = []
    for source, wanted in ((target, spec.target), (draft, spec.draft)):
        shape = fit(wanted, read_shape(source))
        jobs.append((source, folder / _finished_name(source, shape, spec, seed), shape))
    missing = [job for job in jobs if not job[1].exists()]
    if not missing:
        return jobs[0][1], jobs[1][1]
    plans = [_tensors(_open(source), shape, spec.dtype, seed) for source, _, shape in missing]
    sizes = [sum(tensor.nbytes for tensor in plan) for plan in plans]
    done_before = 0

    def report(done: int, _: int) -> None:
        if on_progress is not None:
            on_progress(done_before + done, sum(sizes))

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GrowError(f"The folder {folder} cannot be made ({error}); choose another.") from None
    _check_free(folder, f"{target.name} and {draft.name}", sum(sizes))
    for (source, destination, shape), size in zip(missing, sizes, strict=True):
        grow(source, destination, shape, dtype=spec.dtype, on_progress=report, seed=seed)
        done_before += size
    return jobs[0][1], jobs[1][1]


# ---- reading and checking the source ----------------------------------------------------------------------


def _open(path: Path) -> _Source:
    """Open a GGUF and make sure all of it is understood: what is not could change the function."""
    try:
        reader = GGUFReader(path)
    except FileNotFoundError:
        raise GrowError(f"There is no file {path} to grow; check the path.") from None
    except (OSError, ValueError, KeyError, IndexError, OverflowError, TypeError, struct.error) as error:
        raise GrowError(f"{path} cannot be read as a GGUF file ({error}); is it complete?") from None
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise GrowError(f"{path} has the architecture {architecture!r}, and only 'llama' can be grown.")
    _check_keys(path, reader)
    shape = _shape_of(path, reader)
    names = {tensor.name for tensor in reader.tensors}
    tied = "output.weight" not in names
    _check_tensors(path, reader, shape, tied)
    eps = float(_value(reader, "llama.attention.layer_norm_rms_epsilon", 0.0))
    return _Source(path, reader, shape, eps, tied)


def _check_keys(path: Path, reader: GGUFReader) -> None:
    harmless = {"llama.rope.scaling.type": "none", "llama.expert_count": 0, "llama.expert_used_count": 0}
    known = {f"llama.{key}" for key in SHAPE_KEYS | KEPT_KEYS}
    for key in reader.fields:
        if not key.startswith("llama.") or key in known or _value(reader, key) == harmless.get(key, ""):
            continue
        raise GrowError(
            f"{path} sets {key} = {_value(reader, key)!r}, which growing does not know how to preserve; "
            "choose a plain llama model without RoPE scaling, experts or other extras."
        )


def _shape_of(path: Path, reader: GGUFReader) -> Shape:
    def number(key: str, default: int | None = None) -> int:
        value = _value(reader, f"llama.{key}", default)
        if not isinstance(value, int) or value < 1:
            raise GrowError(f"{path} has llama.{key} = {value!r} where growing needs one positive number.")
        return value

    d, n_head = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", d // n_head)
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_dim) != head_dim:
            raise GrowError(
                f"{path} has llama.{key} = {number(key)} but heads of {head_dim}; they must be equal."
            )
    vocabulary = next((tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"), None)
    if vocabulary is None or len(vocabulary.shape) != 2:
        raise GrowError(f"{path} lacks the matrix token_embd.weight; choose a complete model.")
    shape = Shape(
        n_vocab=int(vocabulary.shape[1]),
        d=d,
        layers=number("block_count"),
        n_head=n_head,
        n_kv=number("attention.head_count_kv", n_head),
        head_dim=head_dim,
        ffn=number("feed_forward_length"),
    )
    if shape.n_head % shape.n_kv or shape.head_dim % 2:
        raise GrowError(
            f"{path} has {shape.n_head} heads of {head_dim} over {shape.n_kv}: no llama has that."
        )
    return shape


def _check_tensors(path: Path, reader: GGUFReader, shape: Shape, tied: bool) -> None:
    expected = _expected_tensors(shape, tied)
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    for name in found.keys() - expected.keys():
        raise GrowError(f"{path} holds the tensor {name}, which growing does not know how to preserve.")
    for name, wanted in expected.items():
        if found.get(name) != wanted:
            raise GrowError(f"{path} should hold {name} of shape {wanted}, but has {found.get(name)}.")


def _expected_tensors(s: Shape, tied: bool) -> dict[str, tuple[int, ...]]:
    """Name every tensor of a plain llama model with its shape, rows (outputs) first."""
    q, kv = s.n_head * s.head_dim, s.n_kv * s.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (s.d,), "attn_q": (q, s.d), "attn_k": (kv, s.d), "attn_v": (kv, s.d),
        "attn_output": (s.d, q), "ffn_norm": (s.d,), "ffn_gate": (s.ffn, s.d), "ffn_up": (s.ffn, s.d),
        "ffn_down": (s.d, s.ffn),
    }  # fmt: skip
    vocabulary = ["token_embd.weight"] if tied else ["token_embd.weight", "output.weight"]
    expected: dict[str, tuple[int, ...]] = {name: (s.n_vocab, s.d) for name in vocabulary}
    expected["output_norm.weight"] = (s.d,)
    for il in range(s.layers):
        expected |= {f"blk.{il}.{part}.weight": dims for part, dims in layer.items()}
    return expected


def _check_shape(source: Shape, shape: Shape, dtype: str) -> None:
    if dtype not in DTYPES:
        raise GrowError(f"{dtype!r} is not a type to grow to: give one of {', '.join(DTYPES)}.")
    for field in fields(Shape):
        small, large = getattr(source, field.name), getattr(shape, field.name)
        if large < small and field.name != "n_kv":  # of which the next sentence says more
            raise GrowError(f"{field.name} cannot be grown from {small} to {large}: give {small} or more.")
    if shape.n_head % shape.n_kv or _kv_needed(source, shape.n_head, shape.n_kv) > shape.n_kv:
        raise GrowError(
            f"{source.n_head} heads over {source.n_kv} key-value heads do not fit {shape.n_head} over "
            f"{shape.n_kv}: give more key-value heads, a divisor of the heads."
        )
    if shape.head_dim % source.head_dim:
        raise GrowError(f"Heads of {source.head_dim} cannot be grown to {shape.head_dim}: give a multiple.")
    if any(n % BLOCK for n in (shape.d, shape.ffn, shape.n_head * shape.head_dim)):
        raise GrowError(f"d {shape.d}, ffn {shape.ffn} and all heads together must be multiples of {BLOCK}.")
    if shape.n_vocab > source.n_vocab and shape.d - BLOCK < source.d:
        raise GrowError(f"Dummy tokens need d {_up(source.d, BLOCK) + BLOCK} or more, not {shape.d}.")


# ---- the maths --------------------------------------------------------------------------------------------


def _norm_scale(d: int, grown: int) -> float:
    return math.sqrt(d / grown)


def _query_scale(head_dim: int, grown: int) -> float:
    return math.sqrt(grown / head_dim)


def _rope_positions(head_dim: int, grown: int) -> NDArray[np.int64]:
    """Place dimension j of a query or key: pair i (dimensions 2i, 2i+1) becomes pair i * grown / head_dim."""
    j = np.arange(head_dim)
    return j // 2 * 2 * (grown // head_dim) + j % 2


def _kv_needed(source: Shape, n_head: int, n_kv: int) -> int:
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
    rows[_up(count, BLOCK) :] = fill
    return rows


def _spare_constant(source: _Source) -> float:
    """Choose c: a power of two, so small that c^2 is at most an eighth of what epsilon adds (d * eps)."""
    room = source.eps * source.shape.d / 8
    if room < SMALLEST_C**2:
        raise GrowError(
            f"{source.path} has an RMSNorm epsilon of {source.eps:.2g}, too small for its vocabulary to be "
            "grown: keep n_vocab as it is."
        )
    return 2.0 ** math.floor(math.log2(room) / 2)


def _grown_eps(source: _Source, shape: Shape) -> float:
    extra = 2 * _spare_constant(source) ** 2 if shape.n_vocab > source.shape.n_vocab else 0.0
    return (source.eps * source.shape.d - extra) / shape.d


# ---- tensors to write -------------------------------------------------------------------------------------


def _tensors(source: _Source, shape: Shape, dtype: str, seed: int) -> list[_Tensor]:
    tensors = [_vocabulary(source, shape, dtype, seed, "token_embd.weight"), _output_norm(source, shape)]
    if not source.tied:
        tensors.append(_vocabulary(source, shape, dtype, seed, "output.weight"))
    for il in range(source.shape.layers):
        tensors += _real_layer(source, shape, dtype, seed, il)
    for il in range(source.shape.layers, shape.layers):
        tensors += _added_layer(source, shape, dtype, seed, il)
    return tensors


def _vocabulary(source: _Source, shape: Shape, dtype: str, seed: int, name: str) -> _Tensor:
    small = source.shape
    rows, cols = np.arange(shape.n_vocab), np.arange(small.d)
    type, load = _kept_type(source, name, dtype), partial(_load, source, name)
    if shape.n_vocab == small.n_vocab:
        return _matrix(name, type, rows, cols, shape.d, load, seed)
    rows = np.minimum(rows, small.n_vocab)  # every dummy holds the row that `_spared` adds at the end
    cols = np.append(cols, [shape.d - 2, shape.d - 1])
    # Only what enters the residual stream needs the constant: rows of an output matrix of its own are zero
    # there, and with tied embeddings the products of (c, c) with +w and -w cancel.
    c = _spare_constant(source) if name == "token_embd.weight" else 0.0
    return _matrix(name, type, rows, cols, shape.d, partial(_spared, source, name, c), seed)


def _spared(source: _Source, name: str, c: float) -> NDArray[np.float32]:
    """Read a vocabulary matrix; add two spare columns of c and, last, the row of a dummy, (0 ..., -K, 0)."""
    weights = _load(source, name)
    n_vocab, d = weights.shape
    grown = np.zeros((n_vocab + 1, d + 2), np.float32)
    grown[:n_vocab, :d] = weights
    grown[:n_vocab, d:] = c
    grown[n_vocab, d] = DUMMY_ROW
    return grown


def _output_norm(source: _Source, shape: Shape) -> _Tensor:
    weights = _grown_norm(source, shape, "output_norm.weight")
    if shape.n_vocab > source.shape.n_vocab:
        w = 2 / _spare_constant(source) * _norm_scale(source.shape.d, shape.d)
        weights[-2:] = w, -w
    return _vector("output_norm.weight", weights)


def _real_layer(source: _Source, shape: Shape, dtype: str, seed: int, il: int) -> list[_Tensor]:
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
    ) -> _Tensor:
        name = f"blk.{il}.{part}.weight"
        load = partial(_load, source, name, scale)
        return _matrix(name, _kept_type(source, name, dtype), rows, cols, width, load, seed)

    def norm(part: str) -> _Tensor:
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


def _added_layer(source: _Source, shape: Shape, dtype: str, seed: int, il: int) -> list[_Tensor]:
    tensors = []
    for name, dims in _expected_tensors(replace(shape, layers=1), tied=True).items():
        part = name.split(".")
        if part[0] != "blk":
            continue
        name = f"blk.{il}.{part[2]}.weight"
        if len(dims) == 1:
            tensors.append(_vector(name, np.ones(dims, np.float32)))
            continue
        fill = ZERO if part[2] in ("attn_output", "ffn_down") else RANDOM
        rows = np.full(dims[0], fill, np.int64)
        tensors.append(_matrix(name, DTYPES[dtype], rows, np.arange(0), dims[1], _nothing, seed))
    return tensors


def _nothing() -> NDArray[np.float32]:
    return np.zeros((0, 0), np.float32)


def _kept_type(source: _Source, name: str, dtype: str) -> GGMLQuantizationType:
    """Choose the type of a matrix that holds weights of the source, so that these lose little."""
    if dtype == "F16":
        return GGMLQuantizationType.F16
    own = _tensor_named(source, name).tensor_type
    # Padding heads that are no whole blocks tears blocks apart: 4 bits would then be rounded a second time.
    torn = name.endswith("attn_output.weight") and source.shape.head_dim % BLOCK
    return own if own in DTYPES.values() and own != DTYPES["F16"] and not torn else DTYPES["Q8_0"]


def _grown_norm(source: _Source, shape: Shape, name: str) -> NDArray[np.float32]:
    weights = np.zeros(shape.d, np.float32)
    weights[: source.shape.d] = _load(source, name)[0] * _norm_scale(source.shape.d, shape.d)
    return weights


def _vector(name: str, weights: NDArray[np.float32]) -> _Tensor:
    return _Tensor(name, weights.shape, GGMLQuantizationType.F32, lambda: iter([weights.view(np.uint8)]))


def _matrix(
    name: str,
    type: GGMLQuantizationType,
    rows: NDArray[np.int64],  # (grown rows,) the source row each holds, or ZERO, or RANDOM
    cols: NDArray[np.int64],  # (source columns,) where each goes
    width: int,
    load: Callable[[], NDArray[np.float32]],  # -> (source rows, source columns)
    seed: int,
) -> _Tensor:
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
                stock = _random_rows(type, width, seed)
                out[random] = stock[(at + start + random) % len(stock)]
            unique, back = np.unique(held[real], return_inverse=True)  # all dummies are packed once
            wide = np.zeros((len(unique), width), np.float32)
            if len(unique):
                wide[:, cols] = weights[unique]
                out[real] = _pack(wide, type)[back]
            yield out

    return _Tensor(name, (len(rows), width), type, chunks)


@lru_cache(maxsize=4)
def _random_rows(type: GGMLQuantizationType, width: int, seed: int) -> NDArray[np.uint8]:
    """Make a stock of packed random rows, (rows, bytes a row), that all added weights are cut from."""
    count = max(64, POOL_WEIGHTS // width)
    weights = np.random.default_rng(seed).standard_normal((count, width), np.float32) / math.sqrt(width)
    return _pack(weights, type)


def _pack(weights: NDArray[np.float32], type: GGMLQuantizationType) -> NDArray[np.uint8]:
    packed: NDArray[Any] = quantize(weights, type)
    return np.ascontiguousarray(packed).view(np.uint8)


def _tensor_named(source: _Source, name: str) -> Any:
    return next(tensor for tensor in source.reader.tensors if tensor.name == name)


def _load(source: _Source, name: str, scale: float = 1.0) -> NDArray[np.float32]:
    """Read a tensor of the source as float32, (rows, columns); a vector is one row."""
    tensor = _tensor_named(source, name)
    try:
        weights: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError:
        raise GrowError(
            f"{source.path} holds {name} as {tensor.tensor_type.name}, which cannot be unpacked here; "
            "choose a file of type F16 or Q8_0."
        ) from None
    return np.atleast_2d(weights) * np.float32(scale)


# ---- writing ----------------------------------------------------------------------------------------------


def _check_space(folder: Path, source: _Source, shape: Shape, tensors: Sequence[_Tensor]) -> None:
    header = source.reader.data_offset + 64 * (shape.n_vocab - source.shape.n_vocab)
    _check_free(folder, source.path.name, sum(tensor.nbytes for tensor in tensors) + header)


def _check_free(folder: Path, what: str, needed: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise GrowError(f"The folder {folder} cannot be used ({error}); choose another.") from None
    if free < needed + SPARE_DISK:
        raise GrowError(
            f"Growing {what} needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "make room, or choose a smaller size or type."
        )


def _write(
    source: _Source,
    destination: Path,
    shape: Shape,
    dtype: str,
    tensors: Sequence[_Tensor],
    on_progress: Progress,
) -> None:
    _remove_stale(destination)
    part = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    writer = GGUFWriter(part, "llama")
    try:
        _write_header(writer, source, shape, dtype, tensors)
        _write_tensors(writer, tensors, on_progress)
        os.replace(part, destination)
    except OSError as error:
        raise GrowError(f"{destination} was not written ({error}); make room or choose another.") from None
    finally:
        _random_rows.cache_clear()
        for file in writer.fout or []:
            file.close()
        part.unlink(missing_ok=True)


def _remove_stale(destination: Path) -> None:
    """Clear what a killed process left; a living one keeps writing, so its file is never an hour old."""
    for part in destination.parent.glob(f"{destination.name}.*.part"):
        with suppress(OSError):  # another process may be clearing it too
            if time.time() - part.stat().st_mtime > STALE_AFTER_S:
                part.unlink()


def _write_header(
    writer: GGUFWriter, source: _Source, shape: Shape, dtype: str, tensors: Sequence[_Tensor]
) -> None:
    replaced = {f"llama.{key}" for key in SHAPE_KEYS} | TOKEN_KEYS
    replaced |= {"general.architecture", "general.name", "general.file_type", "general.size_label"}
    replaced |= {"general.alignment", "edgespec.grown_from"}  # alignment: the writer's own is the default
    for key, field in source.reader.fields.items():
        if key in replaced or key.startswith("GGUF.") or len(field.types) > 2 or not field.data:
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    if "general.quantization_version" not in source.reader.fields:
        writer.add_quantization_version(2)
    _add_shape(writer, source, shape)
    _add_tokens(writer, source, shape)
    label = f"{shape.parameters / 1e9:.1f}B" if shape.parameters > 1e8 else f"{shape.parameters / 1e6:.1f}M"
    name = _value(source.reader, "general.name", source.path.stem)
    writer.add_name(f"{name} grown to {label} {dtype}")
    writer.add_size_label(label)
    writer.add_file_type(FILE_TYPES[dtype])
    origin = f"{name}, sha256 {_digest(source.path)}, {source.shape}, grown by version {VERSION}"
    writer.add_string("edgespec.grown_from", origin)
    unpacked = np.dtype(np.float32)  # says that `shape` counts weights; what is written is `raw_dtype`
    for t in tensors:
        writer.add_tensor_info(t.name, t.shape, unpacked, t.nbytes, raw_dtype=t.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _add_shape(writer: GGUFWriter, source: _Source, shape: Shape) -> None:
    writer.add_embedding_length(shape.d)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(_grown_eps(source, shape))
    writer.add_vocab_size(shape.n_vocab)


def _add_tokens(writer: GGUFWriter, source: _Source, shape: Shape) -> None:
    """Carry the vocabulary over and add dummies, marked unused: no text is ever tokenised into one."""
    texts: list[str] = _value(source.reader, "tokenizer.ggml.tokens", [])
    if not texts:  # a model without a vocabulary: its size is all there is
        return
    used, added = set(texts), []
    for i in range(len(texts), shape.n_vocab):
        text = f"<|grown_{i}|>"
        while text in used:
            text = f"<{text}>"
        added.append(text)
    writer.add_token_list([*texts, *added])
    types: list[int] = _value(source.reader, "tokenizer.ggml.token_type", [1] * len(texts))
    writer.add_token_types([*types, *[5] * len(added)])  # 5 = unused
    scores: list[float] = _value(source.reader, "tokenizer.ggml.scores", [])
    if scores:
        writer.add_token_scores([*scores, *[0.0] * len(added)])


def _write_tensors(writer: GGUFWriter, tensors: Sequence[_Tensor], on_progress: Progress) -> None:
    assert writer.fout is not None
    file, done, total = writer.fout[0], 0, sum(tensor.nbytes for tensor in tensors)
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        for chunk in tensor.chunks():
            file.write(chunk.data)
            done += chunk.nbytes
            on_progress(done, total)
        writer.write_padding(file, tensor.nbytes)
    file.flush()
    os.fsync(file.fileno())  # a finished name must never stand on bytes that a power cut could still take
    writer.close()


# ---- small things -----------------------------------------------------------------------------------------


def _finished_name(source: Path, shape: Shape, spec: GrowSpec, seed: int) -> str:
    key = hashlib.sha256(f"{_digest(source)} {shape} {spec.dtype} {seed} {VERSION}".encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', source.stem)}-{spec.name}-{key[:12]}.gguf"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _value(reader: GGUFReader, key: str, default: Any = None) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
