"""Times one layer's attention on the processor, as llama.cpp builds it, with and without flash attention.

No model is needed: keys, values and queries are random, and only these nodes are evaluated.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.llama.ggml import libraries, local_devices

F32, F16, I64 = 0, 1, 27  # ggml_type
ACCUMULATE_F32 = 10  # GGML_PREC_F32
CACHE = 4096  # cells of the cache: transposed, values of one token lie so far apart
LAYERS = 4  # evaluated in turn
WEIGHTS = 32 << 20  # bytes that pass through the processor's caches before, as a model's weights do
Processor = tuple[Any, Any, NDArray[np.float32]]
NEARLY, MOST_RUNS = 1.2, 8  # so near to the least a second run has to come, of so many
LONGEST_S = 4.0  # for all: somebody waits for the model


@dataclass(frozen=True, slots=True)
class Shape:
    """The heads of one layer. in_keys: values are the first part of each key (latent attention)."""

    key: int  # numbers of one head
    value: int
    heads: int
    kv_heads: int
    in_keys: bool = False


def time_attention(
    shape: Shape, plan: Sequence[tuple[int, int]], threads: int
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float]] | None:
    """Returns the seconds of each (rows, cells) of a plan: with flash attention, and without.

    None if this build has no processor to time, the machine no memory for it, or other programs disturb it.
    """
    with suppress(MemoryError), _processor(threads) as compute:
        if compute is None:
            return None
        found: tuple[dict[tuple[int, int], float], ...] = ({}, {})
        until = time.monotonic() + LONGEST_S
        for rows, cells in plan:
            both = _both(compute, shape, rows, cells)
            if both is None or time.monotonic() > until:
                return None
            for of, seconds in zip(found, both, strict=True):
                of[rows, cells] = seconds
        return found[0], found[1]
    return None


@contextmanager
def _processor(threads: int) -> Iterator[Processor | None]:
    """Gives ggml's functions, the processor's back end, and what is read between two evaluations."""
    base = _functions()
    device = next(iter(local_devices("cpu")), None)
    backend = base.ggml_backend_dev_init(device, None) if device else None
    if not backend:
        yield None
        return
    try:
        setter = base.ggml_backend_reg_get_proc_address(
            base.ggml_backend_dev_backend_reg(device), b"ggml_backend_set_n_threads"
        )
        if setter:
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(setter)(backend, threads)
        yield base, backend, np.ones(WEIGHTS // 4, np.float32)
    finally:
        base.ggml_backend_free(backend)


def _both(processor: Processor, shape: Shape, rows: int, cells: int) -> tuple[float, float] | None:
    """Returns the least seconds of one layer of each kind."""
    base, backend, weights = processor
    with (
        _graph(base, backend, weights, shape, rows, cells, flash=True) as flash,
        _graph(base, backend, weights, shape, rows, cells, flash=False) as plain,
    ):
        return confirmed(flash, plain)


def confirmed(flash: Callable[[], float], plain: Callable[[], float]) -> tuple[float, float] | None:
    """Returns the least seconds of two runs, made in turn until each has nearly reached its least twice.

    None if they do not: next to a busy program a run may take ten times as long, the more so the more
    threads have to wait for each other in it.
    """
    found: tuple[list[float], list[float]] = [], []
    for n in range(1, MOST_RUNS + 1):
        for of, run in zip(found, (flash, plain), strict=True):
            of.append(run())
        if n > 1 and all(sorted(of)[1] < NEARLY * min(of) for of in found):
            return min(found[0]), min(found[1])
    return None


@contextmanager
def _graph(
    base: Any, backend: Any, weights: NDArray[np.float32], shape: Shape, rows: int, cells: int, *, flash: bool
) -> Iterator[Callable[[], float]]:
    """Gives what evaluates the attention of some layers, and returns the seconds of one."""
    layers = LAYERS if rows <= 16 else 1
    size = 32 * layers * base.ggml_tensor_overhead() + base.ggml_graph_overhead() + (1 << 16)
    context = base.ggml_init(_Init(size, None, True))
    graph = base.ggml_new_graph(context)
    mask = base.ggml_new_tensor_3d(context, F16 if flash else F32, cells, rows, 1)
    inputs = [(mask, bytes(base.ggml_nbytes(mask)))]
    for _ in range(layers):
        made, read = _layer(base, context, shape, rows, cells, mask, flash=flash)
        for tensor in made:
            base.ggml_build_forward_expand(graph, tensor)
        inputs += read
    buffer = base.ggml_backend_alloc_ctx_tensors(context, backend)
    try:
        if not buffer:
            raise MemoryError
        for tensor, data in inputs:
            _set(base, tensor, data)

        def run() -> float:
            weights.sum()
            began = time.perf_counter()
            base.ggml_backend_graph_compute(backend, graph)
            return (time.perf_counter() - began) / layers

        yield run
    finally:
        if buffer:
            base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)


def _layer(
    base: Any, context: Any, shape: Shape, rows: int, cells: int, mask: Any, *, flash: bool
) -> tuple[list[Any], list[tuple[Any, bytes]]]:
    """Returns what one layer's attention makes, the rows of values in the cache and its output, and what it
    reads, with the bytes of that (`cpy_v` and `build_attn_mha` of llama.cpp).
    """
    read: list[tuple[Any, bytes]] = []

    def new(kind: int, *sizes: int, data: bytes | None = None) -> Any:
        tensor = base.ggml_new_tensor_3d(context, kind, *sizes)
        read.append((tensor, data or _random(kind, math.prod(sizes))))
        return tensor

    def turned(tensor: Any) -> Any:
        return base.ggml_permute(context, tensor, 0, 2, 1, 3)

    queries = turned(new(F32, shape.key, shape.heads, rows))
    keys = turned(new(F16, shape.key, shape.kv_heads, cells))
    transposed = not flash and not shape.in_keys  # as such a cache keeps values
    width, made = shape.kv_heads * shape.value, []
    if transposed:
        cache = new(F16, CACHE, shape.value, shape.kv_heads, data=_random(F16, cells))
        v = base.ggml_view_3d(
            context, cache, cells, shape.value, shape.kv_heads, 2 * CACHE, 2 * CACHE * shape.value, 0
        )
    else:
        v = cache = new(F16, shape.value, shape.kv_heads, cells)
    if not shape.in_keys:
        places = np.arange(rows)[:, None] + CACHE * np.arange(width if transposed else 1)
        one = (1, rows * width) if transposed else (width, rows)
        stored = base.ggml_reshape_2d(context, cache, one[0], base.ggml_nbytes(cache) // (2 * one[0]))
        at = new(I64, places.size, 1, 1, data=places.astype(np.int64).tobytes())
        made.append(base.ggml_set_rows(context, stored, new(F32, *one, 1), at))
    scale = shape.key**-0.5
    if flash:
        out = base.ggml_flash_attn_ext(context, queries, keys, turned(v), mask, scale, 0.0, 0.0)
        base.ggml_prec_set_acc(out, ACCUMULATE_F32)
        return [*made, out], read
    scores = base.ggml_mul_mat(context, keys, queries)
    base.ggml_prec_set_acc(scores, ACCUMULATE_F32)
    weights = base.ggml_soft_max_ext(context, scores, mask, scale, 0.0)
    values = v if transposed else base.ggml_cont(context, base.ggml_transpose(context, turned(v)))
    mixed = base.ggml_permute(context, base.ggml_mul_mat(context, values, weights), 0, 2, 1, 3)
    return [*made, base.ggml_cont_2d(context, mixed, shape.value * shape.heads, rows)], read


def _set(base: Any, tensor: Any, data: bytes) -> None:
    """Writes an input; what is shorter than its tensor is written at the beginning of each row of a cache."""
    whole = base.ggml_nbytes(tensor)
    for at in range(0, whole, whole if len(data) == whole else 2 * CACHE):
        base.ggml_backend_tensor_set(tensor, data, at, len(data))


def _random(kind: int, n: int) -> bytes:
    """Returns n random numbers: what was never written would lie on one page of memory."""
    some = np.random.default_rng(1).standard_normal(1 << 15).astype(np.float32 if kind == F32 else np.float16)
    return np.resize(some, n).tobytes()


class _Init(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def _functions() -> Any:
    """Returns libggml-base, with the signatures of what is used here."""
    base = libraries()[1]
    pointer, size, whole, real = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_float
    long = ctypes.c_int64
    for name, returns, takes in (
        ("ggml_init", pointer, [_Init]),
        ("ggml_free", None, [pointer]),
        ("ggml_tensor_overhead", size, []),
        ("ggml_graph_overhead", size, []),
        ("ggml_nbytes", size, [pointer]),
        ("ggml_new_graph", pointer, [pointer]),
        ("ggml_new_tensor_3d", pointer, [pointer, whole, long, long, long]),
        ("ggml_permute", pointer, [pointer, pointer, whole, whole, whole, whole]),
        ("ggml_transpose", pointer, [pointer, pointer]),
        ("ggml_reshape_2d", pointer, [pointer, pointer, long, long]),
        ("ggml_view_3d", pointer, [pointer, pointer, long, long, long, size, size, size]),
        ("ggml_set_rows", pointer, [pointer, pointer, pointer, pointer]),
        ("ggml_cont", pointer, [pointer, pointer]),
        ("ggml_cont_2d", pointer, [pointer, pointer, long, long]),
        ("ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        ("ggml_prec_set_acc", ctypes.c_bool, [pointer, whole]),
        ("ggml_soft_max_ext", pointer, [pointer, pointer, pointer, real, real]),
        ("ggml_flash_attn_ext", pointer, [pointer, pointer, pointer, pointer, pointer, real, real, real]),
        ("ggml_build_forward_expand", None, [pointer, pointer]),
        ("ggml_backend_dev_init", pointer, [pointer, ctypes.c_char_p]),
        ("ggml_backend_free", None, [pointer]),
        ("ggml_backend_alloc_ctx_tensors", pointer, [pointer, pointer]),
        ("ggml_backend_buffer_free", None, [pointer]),
        ("ggml_backend_tensor_set", None, [pointer, ctypes.c_char_p, size, size]),
        ("ggml_backend_graph_compute", whole, [pointer, pointer]),
    ):
        function = getattr(base, name)
        function.restype, function.argtypes = returns, takes
    return base
