"""One llama_decode: tokens or the rows of a medium go in, logits come out, and the record stays true."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp as C
import numpy as np

from edgespec.core.loop import Rows
from edgespec.core.media import begun
from edgespec.errors import (
    DecodeAbortedError,
    EngineError,
    FatalDecodeError,
    InvalidBatchError,
    NoRoomError,
)
from edgespec.llama.batch import Batch
from edgespec.llama.cells import Cells
from edgespec.llama.heads.row_batch import RowBatch, RowPart
from edgespec.llama.heads.taps import Switch, Tap
from edgespec.llama.log import complaints, last_complaint
from edgespec.llama.medium import Medium
from edgespec.llama.model import Model
from edgespec.llama.other_sequences import OtherSequences
from edgespec.llama.sequence import HeldSequence
from edgespec.llama.settings import ContextSettings, sequences
from edgespec.llama.thread_count import Threads

NO_CELLS = 1  # code of llama_decode
WRONG_BATCH = -1  # code for positions, too, that do not follow those in the cache
# cells up to which flash attention splits no row over the threads, by whose number it would round
UNSPLIT = 256
Part = tuple[int, bytes, int]  # what is evaluated of a sequence: its number, tokens, rows wanted of the last
_address_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    ctypes.cast(C.llama_get_logits_ith, ctypes.c_void_p).value or 0
)  # returns a number; llama_cpp's own function makes a pointer object, which costs more than the call


class Evaluator:
    """Evaluates what is missing of a context's sequences.

    `seconds` counts the time spent inside llama.cpp, `calls` its decode calls, `evaluated` the tokens that
    it evaluated, `others` what other sequences held.
    """

    def __init__(self, model: Model, settings: ContextSettings, handle: Any, cells: Cells) -> None:
        """handle: the llama_context."""
        self._model, self._settings, self._handle, self._cells = model, settings, handle, cells
        self.reset()
        self.chunk = min(settings.chunk, int(C.llama_n_batch(handle)))  # less in a small cache
        self._batch = Batch(self.chunk, settings.n_ctx)
        self._companion = sequences(model, settings) - 1 if settings.identical else None  # see `decode`
        self._splits = bool(settings.flash_attention) and not model.on_gpu
        self.threads = Threads(handle, settings.threads, fixed=model.on_gpu)
        self._views: dict[tuple[int, int], Rows] = {}  # (address, rows) -> the logits there
        self._row_batch: RowBatch | None = None  # for media
        self.n_rs_seq = int(C.llama_n_rs_seq(handle)) if model.has_recurrent_state else 0
        self.tap: Tap | None = None  # of the rows that a head wants
        self.switch: Switch | None = None

    def reset(self) -> None:
        """Counts from 0."""
        self.seconds, self.calls, self.evaluated, self.others = 0.0, 0, 0, OtherSequences()

    def decode(self, parts: Sequence[Part]) -> list[Rows]:
        """Evaluates parts in one llama_decode and keeps the record true.

        A single row goes through other kernels than two and more, and so does the only one that is asked
        for, behind the last layer's attention. Where that must not show, each has another one for company:
        the row before it, or one in a sequence of its own; both are thrown away.
        """
        seqs = self._cells.sequences
        asked = [(s, tokens, rows, seqs[s].position(len(seqs[s].tokens) // 4)) for s, tokens, rows in parts]
        if self._companion is None:
            return self._evaluate(self._batch.struct, parts, self._batch.fill(asked))
        ((s, tokens, rows, position),) = asked
        if len(tokens) > 4:
            n = self._batch.fill([(s, tokens, 2 if rows == 1 else rows, position)])
            return self._evaluate(self._batch.struct, parts, n)
        try:
            n = self._batch.fill([*asked, (self._companion, bytes(4), rows, 0)])
            return self._evaluate(self._batch.struct, parts, n)
        finally:
            C.llama_memory_seq_rm(self._cells.memory, self._companion, -1, -1)

    def decode_medium(self, s: int, medium: Medium) -> None:
        """Evaluates a medium, at once if all of it sees all of it."""
        if self._row_batch is None:
            size, width = max(self._settings.chunk, self._settings.medium), medium.rows.shape[1]
            self._row_batch = RowBatch(size, width, sections=len(medium.places))
        seq, n = self._cells.sequences[s], medium.cells.size
        before = begun(np.frombuffer(seq.tokens, np.int32, seq.held))
        places = medium.positions(seq.position(seq.held), before)
        seq.media = True
        C.llama_set_causal_attn(self._handle, medium.causal)
        try:
            size = self.chunk if medium.causal else n
            size -= n % size == 1 and self._settings.identical  # no row alone
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                self._row_batch.fill([RowPart(s, 0, medium.rows[part], None, places[:, part])], outputs=0)
                self._evaluate(
                    self._row_batch.struct, [(s, medium.cells[part].tobytes(), 0)], part.stop - part.start
                )
        finally:
            C.llama_set_causal_attn(self._handle, True)

    def _evaluate(self, struct: Any, parts: Sequence[Part], n: int) -> list[Rows]:
        """Evaluates a batch of n tokens that is ready."""
        if not (self._splits and sum(seq.held for seq in self._cells.sequences) > UNSPLIT):
            self.threads.choose(n)
        tapped = self._cells.hidden is not None
        if self.switch:
            tapped = all([len(tokens) == 4 * rows for _, tokens, rows in parts])
            self.switch(tapped)
        complaints.clear()
        started = time.perf_counter()
        code = C.llama_decode(self._handle, struct)
        if code == NO_CELLS and self._cells.give_back_cells():
            code = C.llama_decode(self._handle, struct)
        ends = self._ends(parts) if code == 0 else ()
        seconds = time.perf_counter() - started
        self.seconds += seconds
        self.calls += 1
        if code == WRONG_BATCH:  # the cache holds something else than was thought
            for s, _, _ in parts:
                self._cells.clear(s)
        if code in (NO_CELLS, WRONG_BATCH):
            raise self._failure(code, n)
        if code == 0:
            self.threads.note(n, seconds)
            if tapped:
                self._take_hidden(parts, n)
        self.evaluated += n
        for s, tokens, _ in parts:
            seq = self._cells.sequences[s]
            if self._model.has_recurrent_state:
                self._note_state(seq, len(tokens) // 4)
            seq.tokens += tokens
        if len(self._cells.sequences) > 1:
            self.others.note(self._cells.sequences, [(s, len(tokens) // 4) for s, tokens, _ in parts])
        if code != 0:
            for s, _, _ in parts:
                self._cells.resync(s)
            raise self._failure(code, n)
        return [self._views[end] if end in self._views else self._view(*end) for end in ends]

    def _take_hidden(self, parts: Sequence[Part], n_tokens: int) -> None:
        """Keeps the hidden rows of an evaluation for the head."""
        assert self._cells.hidden and self.tap
        rows, at = self.tap(n_tokens), 0
        for s, tokens, _ in parts:
            n = len(tokens) // 4
            self._cells.hidden.put(s, self._cells.sequences[s].held, rows[at : at + n])
            at += n

    def _note_state(self, seq: HeldSequence, n: int) -> None:
        """Records what the evaluation of n tokens does to a recurrent state."""
        if seq.checkpoint[0] > seq.held:
            seq.checkpoint = (0, None)
        seq.snapshots = min(n - 1, self.n_rs_seq)

    def _ends(self, parts: Sequence[Part]) -> list[tuple[int, int]]:
        """Returns (address of the last row, rows) for each part that wants some. Waits for the GPU."""
        found, at = [], 0
        for _, tokens, rows in parts:
            at += len(tokens) // 4
            if rows:
                found.append((_address_of(self._handle, at - 1), rows))
        return found

    def _view(self, last: int | None, rows: int) -> Rows:
        """Returns the rows that end at an address; llama.cpp stores them one after another."""
        if not last:
            raise EngineError(f"llama.cpp returned no logits: {last_complaint()}")
        n_vocab = self._model.n_vocab
        buffer: Any = (ctypes.c_float * (n_vocab * rows)).from_address(last - 4 * n_vocab * (rows - 1))
        view = np.frombuffer(buffer, np.float32).reshape(rows, n_vocab)
        self._views[last, rows] = view
        return view

    def _failure(self, code: int, n: int) -> EngineError:
        held = sum(seq.held for seq in self._cells.sequences)
        if code == NO_CELLS:
            return NoRoomError(f"the KV cache has no room for {n} more tokens next to {held:,}: raise --ctx")
        if code == 2:
            return DecodeAbortedError("the evaluation was interrupted")
        kind = InvalidBatchError if code == WRONG_BATCH else FatalDecodeError
        return kind(f"llama.cpp failed with code {code} on {n} tokens: {last_complaint()}")
