"""A model's working state: KV caches that are synced to token lists, and the one verb that does it.

`score` finds what a sequence already holds, removes the rest, decodes what is missing and returns logits.
Rewinding after a rejection, edits, cancellation and new turns are all that verb. Models with recurrent
state cannot forget their last tokens at will; what they can do is probed when the context is made:

- attention only: any tail can be removed;
- snapshots (`n_rs_seq`, some hybrid architectures): tokens of the last evaluation can be rolled back,
  once, as far as snapshots were written, never its first. llama.cpp does not check how many there are and
  silently continues from a wrong state, so the limit is kept here;
- otherwise: the state is checkpointed before tokens that may be withdrawn are decoded, and restored.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.cache_size import KvType, check_memory, kv_bytes
from edgespec.cores import MOST_THREADS, threads_wanted
from edgespec.decode import Rows, Want
from edgespec.errors import (
    DecodeAbortedError,
    EngineError,
    FatalDecodeError,
    InvalidBatchError,
    ModelUnsupportedError,
    NoRoomError,
    SettingError,
)
from edgespec.llama import Model, last_complaint, log_tail

__all__ = ["Context", "ContextSettings", "KvType", "kv_bytes"]

_KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # llama.cpp's ids
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
SNAPSHOTS = (
    8  # recurrent states kept for rollback where the architecture can; each is a copy of the whole state
)
CHECKPOINT_FLAGS = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: recurrent state alone, kept in host memory


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How a context is made. None means: what suits this machine.

    n_ctx: tokens one sequence may hold, at most what the model was trained for. n_seq: sequences at once.
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

    def __post_init__(self) -> None:
        _whole("the context length", self.n_ctx, 2, 2**31 - 1)
        _whole("the number of sequences", self.n_seq, 1, MAX_SEQUENCES)
        _whole("the number of logits rows", self.n_rows, self.n_seq, 2**16)
        if self.threads is not None:
            _whole("the number of threads", self.threads, 1, MOST_THREADS)
        _whole("the chunk", self.chunk, max(2, self.n_rows), 2**16)
        if self.kv_type not in _KV_TYPES:
            raise SettingError(
                f"the KV cache type is {self.kv_type!r}: it must be one of {', '.join(_KV_TYPES)}"
            )
        if self.kv_type != "f16" and self.flash_attention is False:
            raise SettingError(f"a {self.kv_type} KV cache needs flash attention: leave it on, or keep f16")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingError(f"{name} is {value!r}: it must be a whole number from {low} to {high:,}")


@dataclass(slots=True)
class _Sequence:
    """What one sequence of the cache holds, and how far it can go back."""

    tokens: NDArray[np.int32]  # (n_ctx,), the first `held` are in the cache
    held: int = 0
    snapshots: int = 0  # how many last tokens can be rolled back now
    checkpoint: tuple[int, Any] = field(default=(0, None))  # (tokens held then, state blob)


class Context:
    """Evaluates tokens of one model. Logits it returns are views, valid until the next `score`.

    `seconds` counts the time spent inside llama.cpp, `calls` its decode calls, `evaluated` the tokens that
    it evaluated.
    Not for two threads at once. Close it before its model, or use it in a `with`.
    """

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Raises SettingError or ModelUnsupportedError with a reason instead of letting llama.cpp abort."""
        if settings.n_ctx > model.n_ctx_train:
            raise SettingError(
                f"the context length is {settings.n_ctx:,}: {model.path.name} was trained for "
                f"{model.n_ctx_train:,} tokens; ask for no more than that"
            )
        check_memory(model, settings.n_ctx * settings.n_seq, settings.kv_type)
        self.model, self.settings = model, settings
        self.n_ctx = settings.n_ctx
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0
        self._handle: Any = _new_context(model, settings)
        self._memory: Any = C.llama_get_memory(self._handle)
        self._batch = _Batch(settings.chunk)
        self._sequences = [_Sequence(np.zeros(settings.n_ctx, np.int32)) for _ in range(settings.n_seq)]
        self._n_rs_seq = int(C.llama_n_rs_seq(self._handle)) if model.has_recurrent_state else 0
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the caches."""
        if self._handle:
            C.llama_free(self._handle)
            self._handle = None

    def _probe(self) -> None:
        """Evaluates two tokens (a warm-up as well) and tries to remove the second."""
        self._decode([(0, np.zeros(2, np.int32), 1)])
        if not self.model.has_recurrent_state and not C.llama_memory_seq_rm(self._memory, 0, 1, -1):
            raise ModelUnsupportedError(
                f"{self.model.path.name} cannot take back evaluated tokens (llama_memory_seq_rm refused), "
                "so guesses cannot be withdrawn from it"
            )
        self._clear(0)
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence holds (a view)."""
        return self._sequences[seq].tokens[: self._sequences[seq].held]

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Makes each sequence hold its tokens + tail; returns the last `rows` logits rows of each.

        Rows are float32 (rows, n_vocab), views into llama.cpp's buffer, valid until the next call.
        Raises SettingError for what llama.cpp would abort on and EngineError for its failures; the record
        of what is held stays true in either case.
        """
        self._check(wants)
        if self.model.has_recurrent_state and len(wants) > 1:  # unequal lengths in one batch would split it
            return [self.score([want])[0].copy() for want in wants]
        missing = [self._sync(want) for want in wants]
        share = (self.settings.chunk - sum(want.rows for want in wants)) // len(wants)
        for i, want in enumerate(wants):  # all but what fits the last, common evaluation
            n_unread = max(0, missing[i].size - want.rows - share)
            self._decode_unread(want.seq, missing[i][:n_unread])
            missing[i] = missing[i][n_unread:]
        self._decode([(want.seq, tokens, want.rows) for want, tokens in zip(wants, missing, strict=True)])
        return self._rows(wants, missing)

    def _check(self, wants: Sequence[Want]) -> None:
        if not self._handle:
            raise SettingError("this context has been closed: make a new one")
        rows, seqs = 0, set()
        for want in wants:
            n = want.tokens.size + len(want.tail)
            _whole("the sequence", want.seq, 0, self.settings.n_seq - 1)
            _whole("the number of tokens", n, 1, self.n_ctx)
            _whole("the number of rows", want.rows, 1, n)
            rows += want.rows
            seqs.add(want.seq)
        _whole("the number of rows", rows, 1, self.settings.n_rows)
        if len(seqs) != len(wants):
            raise SettingError("a sequence was asked for twice in one evaluation")

    def _sync(self, want: Want) -> NDArray[np.int32]:
        """Rewinds the sequence to what it shares with `want`; returns the tokens still to be decoded."""
        seq = self._sequences[want.seq]
        tokens = np.concatenate([want.tokens, np.array(want.tail, np.int32)])
        keep = min(seq.held, tokens.size - want.rows)
        differs = np.flatnonzero(seq.tokens[:keep] != tokens[:keep])
        keep = int(differs[0]) if differs.size else keep
        fresh = tokens[keep:]
        unknown = fresh.view(np.uint32) >= self.model.n_vocab  # negative ids are large ones here
        if unknown.any():
            wrong = int(fresh[unknown][0])
            raise SettingError(f"token {wrong} does not exist: the model has {self.model.n_vocab:,} tokens")
        self._rewind(want.seq, keep)
        settled = min(want.tokens.size, tokens.size - want.rows)
        if self.model.has_recurrent_state and len(want.tail) > self._n_rs_seq and seq.held <= settled:
            self._decode_unread(want.seq, tokens[seq.held : settled])
            self._save_checkpoint(want.seq)
        return tokens[seq.held :]

    def _rewind(self, s: int, keep: int) -> None:
        """Makes the sequence hold its first `keep` tokens, or fewer where the model cannot go back there."""
        seq = self._sequences[s]
        if keep == seq.held:
            return
        near = not self.model.has_recurrent_state or seq.held - keep <= seq.snapshots
        seq.snapshots = 0  # whatever follows, they are used up
        if near and keep > 0:
            if C.llama_memory_seq_rm(self._memory, s, keep, -1):
                seq.held = keep
                return
        at, state = seq.checkpoint
        if state is not None and at <= keep:
            # this first removal may be refused while the old recurrent state is there; the second counts
            C.llama_memory_seq_rm(self._memory, s, at, -1)
            if C.llama_state_seq_set_data_ext(self._handle, state, len(state), s, CHECKPOINT_FLAGS):
                C.llama_memory_seq_rm(self._memory, s, at, -1)
                seq.held = at
                return
        self._clear(s)

    def _clear(self, s: int) -> None:
        C.llama_memory_seq_rm(self._memory, s, -1, -1)
        seq = self._sequences[s]
        seq.held, seq.snapshots, seq.checkpoint = 0, 0, (0, None)

    def _save_checkpoint(self, s: int) -> None:
        seq = self._sequences[s]
        if seq.checkpoint[0] == seq.held and seq.checkpoint[1] is not None or seq.held == 0:
            return
        size = C.llama_state_seq_get_size_ext(self._handle, s, CHECKPOINT_FLAGS)
        state = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._handle, state, size, s, CHECKPOINT_FLAGS) != size:
            raise EngineError(f"the state of {self.model.path.name} cannot be saved: {last_complaint()}")
        seq.checkpoint = (seq.held, state)

    def _decode_unread(self, s: int, tokens: NDArray[np.int32]) -> None:
        """Evaluates tokens of which no logits are wanted, in pieces."""
        for at in range(0, tokens.size, self.settings.chunk):
            self._decode([(s, tokens[at : at + self.settings.chunk], 0)])

    def _decode(self, parts: Sequence[tuple[int, NDArray[np.int32], int]]) -> None:
        """Evaluates (sequence, tokens, rows) parts in one llama_decode and keeps the record true."""
        self._batch.fill([(s, tokens, rows, self._sequences[s].held) for s, tokens, rows in parts])
        started = time.perf_counter()
        code = C.llama_decode(self._handle, self._batch.struct)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        self.evaluated += 0 if code in (1, -1) else self._batch.struct.n_tokens
        for s, tokens, _ in parts:
            seq = self._sequences[s]
            if code in (1, -1):  # nothing was changed
                continue
            end = seq.held + tokens.size
            seq.tokens[seq.held : end] = tokens
            if seq.checkpoint[0] > seq.held:
                seq.checkpoint = (0, None)
            seq.held = end
            seq.snapshots = min(tokens.size - 1, self._n_rs_seq)
            if code != 0:
                self._resync(s)
        if code != 0:
            raise self._failure(code)

    def _resync(self, s: int) -> None:
        """After a failure in the middle: believes the cache, not the plan."""
        seq = self._sequences[s]
        reached = C.llama_memory_seq_pos_max(self._memory, s) + 1
        if self.model.has_recurrent_state or not 0 < reached <= seq.held:
            self._clear(s)
        else:
            C.llama_memory_seq_rm(self._memory, s, reached, -1)
            seq.held = reached

    def _failure(self, code: int) -> EngineError:
        n, held = self._batch.struct.n_tokens, sum(seq.held for seq in self._sequences)
        if code == 1:
            return NoRoomError(f"the KV cache has no room for {n} more tokens beside {held:,}: raise --ctx")
        if code == 2:
            return DecodeAbortedError("the evaluation was interrupted")
        kind = InvalidBatchError if code == -1 else FatalDecodeError
        return kind(f"llama.cpp failed with code {code} on {n} tokens: {last_complaint()}")

    def _rows(self, wants: Sequence[Want], missing: Sequence[NDArray[np.int32]]) -> list[Rows]:
        started = time.perf_counter()
        views: list[Rows] = []
        at, n_vocab = 0, self.model.n_vocab
        for want, tokens in zip(wants, missing, strict=True):
            first = at + tokens.size - want.rows
            at += tokens.size
            begin = C.llama_get_logits_ith(self._handle, first)  # waits for the GPU
            end = C.llama_get_logits_ith(self._handle, at - 1)
            address = ctypes.cast(begin, ctypes.c_void_p).value
            last = ctypes.cast(end, ctypes.c_void_p).value
            if not address or not last or last - address != 4 * n_vocab * (want.rows - 1):
                raise EngineError(f"llama.cpp returned no logits: {last_complaint()}")
            buffer: Any = (ctypes.c_float * (n_vocab * want.rows)).from_address(address)
            views.append(np.frombuffer(buffer, np.float32).reshape(want.rows, n_vocab))
        self.seconds += time.perf_counter() - started
        return views


class _Batch:
    """A llama_batch over numpy arrays that are allocated once."""

    def __init__(self, size: int) -> None:
        self._token = np.zeros(size, np.int32)
        self._pos = np.zeros(size, np.int32)
        self._n_seq_id = np.ones(size, np.int32)
        self._seq_id = np.zeros(size, np.int32)
        self._logits = np.zeros(size, np.int8)
        self._seq_pointers = self._seq_id.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        ints = ctypes.POINTER(ctypes.c_int32)
        struct: Any = C.llama_batch()
        struct.token = self._token.ctypes.data_as(ints)
        struct.pos = self._pos.ctypes.data_as(ints)
        struct.n_seq_id = self._n_seq_id.ctypes.data_as(ints)
        struct.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(ints))
        struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.struct = struct

    def fill(self, parts: Sequence[tuple[int, NDArray[np.int32], int, int]]) -> None:
        """Takes (sequence, tokens, rows wanted at the end, position of the first token) parts."""
        at = 0
        for seq, tokens, rows, position in parts:
            end = at + tokens.size
            self._token[at:end] = tokens
            self._pos[at:end] = np.arange(position, position + tokens.size)
            self._seq_id[at:end] = seq
            self._logits[at:end] = 0
            self._logits[end - rows : end] = 1
            at = end
        self.struct.n_tokens = at


def _new_context(model: Model, settings: ContextSettings) -> Any:
    params = C.llama_context_default_params()
    params.n_ctx = settings.n_ctx * settings.n_seq
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
