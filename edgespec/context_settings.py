"""How a context is made: its settings, checked before llama.cpp sees them, and its making."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llama_cpp as C

from edgespec.cache_size import KvType, check_memory
from edgespec.cores import MOST_THREADS, threads_wanted
from edgespec.errors import ModelUnsupportedError, SettingError
from edgespec.llama import Model, last_complaint, log_tail

_KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # llama.cpp's ids
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
SNAPSHOTS = (
    8  # recurrent states kept for rollback where the architecture can; each is a copy of the whole state
)


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How a context is made. None means: what suits this machine.

    n_ctx: tokens one sequence may hold, at most what the model was trained for. n_seq: sequences at once.
    cells: tokens that all of them may hold together; None: n_ctx for each.
    n_rows: logits rows one call may ask for, over all sequences (sizes llama.cpp's output buffer).
    kv_type: the cache's number format; below f16 the logits change. flash_attention: None lets llama.cpp
    choose. chunk: tokens in one evaluation; a prompt is evaluated in such pieces.
    """

    n_ctx: int
    n_seq: int = 1
    n_rows: int = 1
    kv_type: KvType = "f16"
    flash_attention: bool | None = None
    threads: int | None = None
    chunk: int = 512
    cells: int | None = None

    def __post_init__(self) -> None:
        whole("the context length", self.n_ctx, 2, 2**31 - 1)
        whole("the number of sequences", self.n_seq, 1, MAX_SEQUENCES)
        whole("the number of logits rows", self.n_rows, self.n_seq, 2**16)
        if self.cells is not None:
            whole("the number of tokens in the cache", self.cells, self.n_ctx, self.n_ctx * self.n_seq)
        if self.threads is not None:
            whole("the number of threads", self.threads, 1, MOST_THREADS)
        whole("the chunk", self.chunk, max(2, self.n_rows), 2**16)
        if self.kv_type not in _KV_TYPES:
            raise SettingError(
                f"the KV cache type is {self.kv_type!r}: it must be one of {', '.join(_KV_TYPES)}"
            )
        if self.kv_type != "f16" and self.flash_attention is False:
            raise SettingError(f"a {self.kv_type} KV cache needs flash attention: leave it on, or keep f16")


def whole(name: str, value: object, low: int, high: int) -> None:
    """Raises SettingError for what is no whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingError(f"{name} is {value!r}: it must be a whole number from {low} to {high:,}")


def new_context(model: Model, settings: ContextSettings) -> Any:
    """Returns a llama_context. Raises SettingError or ModelUnsupportedError where llama.cpp would abort."""
    if settings.n_ctx > model.n_ctx_train:
        raise SettingError(
            f"the context length is {settings.n_ctx:,}: {model.path.name} was trained for "
            f"{model.n_ctx_train:,} tokens; ask for no more than that"
        )
    cells = settings.cells or settings.n_ctx * settings.n_seq
    check_memory(model, cells, settings.kv_type)
    params = C.llama_context_default_params()
    params.n_ctx = cells
    params.n_batch = params.n_ubatch = settings.chunk
    params.n_seq_max = settings.n_seq
    if model.has_recurrent_state:  # a micro-batch must be longer than the snapshots, else llama.cpp aborts
        params.n_rs_seq = max(0, min(settings.n_rows - 1, settings.chunk - 2, params.n_ctx - 2, SNAPSHOTS))
    params.n_outputs_max = settings.n_rows
    params.n_outputs_max_per_seq = settings.n_rows
    threads = settings.threads or threads_wanted()
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = -1 if settings.flash_attention is None else int(settings.flash_attention)
    params.type_k = params.type_v = _KV_TYPES[settings.kv_type]
    params.kv_unified = True  # sequences of unequal length share one batch and one pool of cells
    params.swa_full = True  # sliding-window layers keep all cells, so that tails can be withdrawn
    params.no_perf = True
    log_tail.clear()
    handle = C.llama_init_from_model(model.handle, params)
    if not handle:
        raise ModelUnsupportedError(
            f"llama.cpp cannot make a context for {model.path.name}: {last_complaint()}"
        )
    return handle
