"""A model's working state: KV caches that are synced to token lists, and the one operation that does it.

`score` finds what a sequence already holds, removes the rest, decodes what is missing and returns logits.
Rewinding after a rejection, edits, cancellation and new turns are all this operation. Models with recurrent
state cannot forget their last tokens at will; what they can do is probed when the context is made:

- attention only: any tail can be removed;
- snapshots (`n_rs_seq`, some hybrid architectures): tokens of the last evaluation can be rolled back,
  once, as far as snapshots were written, never its first. llama.cpp does not check how many there are and
  silently continues from a wrong state, so the limit is kept here;
- otherwise: the state is checkpointed before tokens that may be withdrawn are decoded, and restored.

Sliding-window layers keep all cells (`swa_full`), but llama.cpp saves none that the window masks, and gives
such cells to other sequences. So before a sequence goes back, llama.cpp is asked where its cells begin.
Where a state or a window cannot go back, it does so by the last checkpoint made while it was read
(`checkpoints.py`), or all is evaluated again.
"""

from __future__ import annotations

import ctypes
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import NO_ROWS, Rows, Want
from edgespec.core.media import begun, end_of_media, positions, runs, whole_before
from edgespec.errors import (
    DecodeAbortedError,
    EdgeSpecError,
    EngineError,
    FatalDecodeError,
    InvalidBatchError,
    ModelUnsupportedError,
    NoRoomError,
    SettingError,
)
from edgespec.llama.attention import with_attention
from edgespec.llama.batch import Batch
from edgespec.llama.checkpoints import Checkpoints
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.heads.row_batch import RowBatch, RowPart
from edgespec.llama.heads.taps import Switch, Tap
from edgespec.llama.log import complaints, last_complaint
from edgespec.llama.medium import Medium, check_known, medium_at
from edgespec.llama.model import Model
from edgespec.llama.saved import Saved, same_beginning
from edgespec.llama.settings import ContextSettings, has_parts, keeps_order, new_context, sequences
from edgespec.llama.state_parts import StateParts
from edgespec.llama.thread_count import Threads
from edgespec.pairs.adapters import Scales
from edgespec.pairs.settings import whole

__all__ = ["Context", "ContextSettings"]

CHECKPOINT_FLAGS = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: recurrent state and windows, kept in host memory
NO_CELLS = 1  # code of llama_decode
# cells up to which flash attention splits no row over the threads, by whose number it would round
UNSPLIT = 256
# llama.cpp's graphs that give the logits of a batch's first tokens, whichever are asked for
FIRST_ROWS = ("cogvlm",)
WRONG_BATCH = -1  # code for positions, too, that do not follow those in the cache
_Part = tuple[int, bytes, int]  # what is evaluated of a sequence: its number, tokens, rows wanted of the last
_address_of = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)(
    ctypes.cast(C.llama_get_logits_ith, ctypes.c_void_p).value or 0
)  # returns a number; llama_cpp's own function makes a pointer object, which costs more than the call


@dataclass(slots=True)
class _Sequence:
    """What one sequence of the cache holds, and how far it can go back."""

    tokens: bytearray = field(default_factory=bytearray)  # int32 each
    snapshots: int = 0  # how many last tokens can be rolled back now
    checkpoint: tuple[int, NDArray[np.uint8] | None] = field(
        default=(0, None)
    )  # (tokens held then, state blob)
    media: bool = False  # there may be cells of pictures among the tokens

    @property
    def held(self) -> int:
        return len(self.tokens) // 4

    def keep(self, n: int) -> None:
        del self.tokens[4 * n :]
        self.media = self.media and n > 0

    def position(self, n: int) -> int:
        """Returns the position after the first n tokens."""
        return positions(np.frombuffer(self.tokens, np.int32, n)) if self.media and n else n


class Context:
    """Evaluates tokens of one model. Logits it returns are views, valid until the next `score`.

    `seconds` counts the time spent inside llama.cpp, `calls` its decode calls, `evaluated` the tokens that
    it evaluated. `first_s` is what the first two tokens took, with weights still to be read.
    Not thread-safe. Close it before its model, or use it in a `with`.
    """

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Raises SettingError or ModelUnsupportedError with a reason instead of letting llama.cpp abort."""
        self.model = model
        self.settings = settings = with_attention(model, settings)
        self.n_ctx, self.adapters = settings.n_ctx, Scales()
        self.seconds, self.calls, self.evaluated, self.first_s = 0.0, 0, 0, 0.0
        self._handle: Any = new_context(model, settings)
        self._memory: Any = C.llama_get_memory(self._handle)
        self._chunk = min(settings.chunk, int(C.llama_n_batch(self._handle)))  # less in a small cache
        self._batch = Batch(self._chunk, settings.n_ctx)
        self._sequences = [_Sequence() for _ in range(settings.n_seq)]
        self._keeper = settings.n_seq if keeps_order(model, settings) else None  # see `keep_cells`
        spare = settings.n_seq + keeps_order(model, settings)
        self.parts = StateParts(self, spare) if has_parts(model, settings) else None
        uncut = model.has_recurrent_state or model.window
        self.checkpoints = Checkpoints(self, settings.n_seq) if uncut else None
        self._companion = sequences(model, settings) - 1 if settings.identical else None  # see `_decode`
        self._keeping = self._kept = False
        self._splits = bool(settings.flash_attention) and not model.on_gpu
        self._threads = Threads(self._handle, settings.threads, fixed=model.on_gpu)
        self._views: dict[tuple[int, int], Rows] = {}  # (address, rows) -> the logits there
        self.media: Mapping[int, Medium] = {}  # what may be among the tokens, by its first cell
        self._row_batch: RowBatch | None = None  # for media
        self._hidden: HiddenRows | None = None
        self._tap: Tap | None = None
        self._switch: Switch | None = None
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
        self._decode([(0, bytes(8), 1)])
        if not self.model.has_recurrent_state and not C.llama_memory_seq_rm(self._memory, 0, 1, -1):
            raise ModelUnsupportedError(
                f"{self.model.path.name} cannot take back evaluated tokens (llama_memory_seq_rm refused), "
                "so guesses cannot be withdrawn from it"
            )
        self.clear(0)
        self.first_s = self.seconds
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0

    @property
    def handle(self) -> Any:
        """The llama_context pointer."""
        return self._handle

    @property
    def tried(self) -> float:
        """Returns the seconds that evaluations took longer because another number of threads was tried."""
        return self._threads.tried

    @property
    def n_vocab(self) -> int:
        """Vocabulary size of its rows."""
        return self.model.n_vocab

    def keep_hidden(
        self, tap: Tap, width: int, *, switch: Switch | None = None, kept: int | None = None
    ) -> HiddenRows:
        """Keeps the rows of a tap from now on, for a head. Returns where.

        switch: of a tap that costs the logits of all tokens: it is on where these are wanted anyway.
        """
        self._tap, self._switch = tap, switch
        self._hidden = HiddenRows(width, self.settings.n_seq, kept)
        return self._hidden

    @property
    def batches(self) -> bool:
        """False if several sequences are evaluated one after another."""
        return not self.model.has_recurrent_state

    @property
    def fills(self) -> bool:
        """Returns whether tokens that nobody wanted leave its memory again for nothing."""
        alone = len(self._sequences) == 1 or not self.model.window  # no other takes cells behind a window
        return alone and not self.model.has_recurrent_state and self.model.architecture not in FIRST_ROWS

    def adapt(self, scales: Scales) -> None:
        """Evaluates with the adapters in these scales from now on; what is held stays as it was read."""
        if scales != self.adapters:
            n = len(self.model.adapters)
            assert len(scales) == n
            pointers, factors = (
                (C.llama_adapter_lora_p_ctypes * n)(*(loaded for _, loaded in self.model.adapters)),
                (ctypes.c_float * n)(*scales),
            )
            C.llama_set_adapters_lora(self._handle, pointers, n, factors)
            self.adapters = scales

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence holds."""
        return np.frombuffer(bytes(self._sequences[seq].tokens), np.int32)

    def holds(self, seq: int, tokens: bytes) -> int:
        """Returns how many of a sequence's first tokens are those given, int32 each."""
        return same_beginning(self._sequences[seq].tokens, tokens)

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this, with the cache as it is."""
        n = want.tokens.size + len(want.tail)
        return n - self._reached(want.seq, self._staying(want))

    def _staying(self, want: Want) -> int:
        """Returns how many first tokens stay.

        The last of them is read again if a head wants its hidden row and that is no longer kept; a medium
        stays whole or not at all.
        """
        keep = _shared(self._sequences[want.seq].tokens, want)
        if self._hidden and keep and not self._switch and not self.model.has_recurrent_state:
            keep -= self._hidden.row(want.seq, keep - 1) is None
        return whole_before(want.tokens, keep) if self._sequences[want.seq].media else keep

    def _window_is_whole(self, s: int, keep: int) -> bool:
        """Returns whether all cells are there that the token after the first `keep` of a sequence sees."""
        if keep == 0 or not self.model.window:
            return True
        first, end = C.llama_memory_seq_pos_min(self._memory, s), self._sequences[s].position(keep)
        return bool(0 <= first <= max(0, end + 1 - self.model.window))

    def _near(self, seq: _Sequence) -> int:
        """Returns how many last tokens can be rolled back. What others did to its window is unknown."""
        return 0 if self.model.window and len(self._sequences) > 1 else seq.snapshots

    def _reached(self, s: int, keep: int) -> int:
        """Returns how many tokens stay if all after the first `keep` must go."""
        seq = self._sequences[s]
        if keep == seq.held:
            return keep
        at, state = seq.checkpoint
        if not self.model.has_recurrent_state:
            if self._window_is_whole(s, keep):
                return keep
        elif 0 < seq.held - keep <= self._near(seq):
            return keep
        kept = self._kept_before(s, keep)
        return max(at if state is not None and at <= keep else 0, kept.n_tokens if kept else 0)

    def _kept_before(self, s: int, n: int) -> Saved | None:
        """Returns the last checkpoint within the first n tokens of a sequence."""
        return self.checkpoints.before(s, self._sequences[s].tokens, n) if self.checkpoints else None

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Makes each sequence hold its tokens + tail; returns the last `rows` logits rows of each.

        Rows are float32 (rows, n_vocab), views into llama.cpp's buffer, valid until the next call.
        Raises SettingError for what llama.cpp would abort on and EngineError for its failures; the record
        of what is held stays true in either case.
        """
        self._check(wants)
        try:
            return self._scored(wants)
        except EdgeSpecError:
            raise
        except BaseException:  # Ctrl+C anywhere in it: what the cache holds is unknown
            for want in wants:
                self.clear(want.seq)
            raise

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        if len(wants) > 1 and not self.batches:  # unequal lengths in one batch would split it
            return [self.score([want])[0].copy() for want in wants]
        if any(want.filling for want in wants):
            return self._filled(wants)
        parts = [(want.seq, self._sync(want), want.rows) for want in wants]
        if not all(
            [tokens for _, tokens, _ in parts]
        ):  # a chunk that ends with a medium: nobody needs its row
            parts = [part for part in parts if part[1]]
            found = iter(self._decode(parts) if parts else ())
            reading = {part[0] for part in parts}
            return [next(found) if want.seq in reading else NO_ROWS for want in wants]
        if sum([len(tokens) for _, tokens, _ in parts]) > 4 * self._chunk:
            parts = self._ends_of(parts)
        return self._decode(parts)

    def _filled(self, wants: Sequence[Want]) -> list[Rows]:
        """Evaluates further tokens behind some, which the next call removes like rejected guesses.

        None where the context ends before them.
        """
        longer = []
        for want in wants:
            end = want.tokens.size + len(want.tail) + want.filling
            tail = want.tail + (int(want.tokens[-1]),) * (want.filling if end <= self.n_ctx else 0)
            longer.append(want._replace(tail=tail, rows=want.rows + len(tail) - len(want.tail), filling=0))
        return [rows[: want.rows] for want, rows in zip(wants, self._scored(longer), strict=True)]

    def _ends_of(self, parts: Sequence[_Part]) -> list[_Part]:
        """Evaluates all but what fits the last, common evaluation; returns what is left."""
        share = (self._chunk - sum(rows for _, _, rows in parts)) // len(parts)
        left = []
        for s, tokens, rows in parts:
            n_unread = max(0, len(tokens) // 4 - rows - share)
            self._decode_unread(s, tokens[: 4 * n_unread])
            left.append((s, tokens[4 * n_unread :], rows))
        return left

    def _check(self, wants: Sequence[Want]) -> None:
        if not self._handle:
            raise SettingError("this context has been closed: make a new one")
        rows, settings = 0, self.settings
        for want in wants:
            n = want.tokens.size + len(want.tail)
            if not (0 <= want.seq < settings.n_seq and 0 < n <= self.n_ctx and 0 < want.rows <= n):
                whole("the sequence", want.seq, 0, settings.n_seq - 1)
                whole("the number of tokens", n, 1, self.n_ctx)
                whole("the number of rows", want.rows, 1, n)
            rows += want.rows + want.filling
        if not 0 < rows <= settings.n_rows:
            whole("the number of rows", rows, 1, settings.n_rows)
        if len(wants) > 1 and len({want.seq for want in wants}) != len(wants):
            raise SettingError("a sequence was asked for twice in one evaluation")

    def _sync(self, want: Want) -> bytes:
        """Rewinds the sequence to what it shares with `want`; returns the tokens still to be decoded."""
        seq = self._sequences[want.seq]
        keep = self._staying(want)
        missing = _bytes_of(want, keep)
        fresh = memoryview(missing).cast("i")
        if media := min(fresh) < 0:
            wrong = check_known(self.media, np.frombuffer(missing, np.int32))
        if max(fresh) >= self.model.n_vocab or media and wrong is not None:
            wrong = max(fresh) if max(fresh) >= self.model.n_vocab else wrong
            raise SettingError(f"token {wrong} does not exist: the model has {self.model.n_vocab:,} tokens")
        if 4 * keep < len(seq.tokens):
            self._rewind(want.seq, keep)
        if media or seq.held < keep:  # it went back further
            self._read_media(want)
        if self.checkpoints:
            self._read_to_border(want)
        if self.model.has_recurrent_state and len(want.tail) > self._n_rs_seq:
            settled = min(want.tokens.size, want.tokens.size + len(want.tail) - want.rows)
            if seq.held <= settled:
                self._decode_unread(want.seq, _bytes_of(want, seq.held)[: 4 * (settled - seq.held)])
                self._save_checkpoint(want.seq)
        if self.model.architecture in FIRST_ROWS:  # all that is evaluated together is asked for
            self._decode_unread(want.seq, _bytes_of(want, seq.held)[: -4 * want.rows])
        return missing if seq.held == keep else _bytes_of(want, seq.held)

    def _read_to_border(self, want: Want) -> None:
        """Evaluates what a sequence lacks of its want up to the last place where a checkpoint is due."""
        assert self.checkpoints
        held = at = self._sequences[want.seq].held
        settled = min(want.tokens.size, want.tokens.size + len(want.tail) - want.rows)
        while (ahead := self.checkpoints.ahead(want.seq, at)) <= settled - at:
            at += ahead
        self._decode_unread(want.seq, _bytes_of(want, held)[: 4 * (at - held)])

    def _read_media(self, want: Want) -> None:
        """Evaluates what a sequence lacks of its want up to the last medium: none is read with others."""
        tokens = np.frombuffer(_bytes_of(want, self._sequences[want.seq].held), np.int32)
        for first, end in runs(tokens[: end_of_media(tokens)]):
            if tokens.item(first) < 0:
                self._decode_medium(want.seq, medium_at(self.media, tokens[first:end]))
            else:
                self._decode_unread(want.seq, tokens[first:end].tobytes())

    def _rewind(self, s: int, keep: int) -> None:
        """Makes the sequence hold its first `keep` tokens, or fewer if the model cannot go back there."""
        seq = self._sequences[s]
        if self.model.has_recurrent_state:
            near = seq.held - keep <= self._near(seq)
        else:
            near = self._window_is_whole(s, keep)
        seq.snapshots = 0  # whatever follows, they are used up
        if near and keep > 0:
            if self._remove(s, keep):
                self._keep(s, keep)
                return
        at, state = seq.checkpoint
        at = at if state is not None and at <= keep else 0
        kept = self._kept_before(s, keep)
        if kept and kept.n_tokens > at:
            if self._put_back(s, kept.n_tokens, kept.state):
                if self._hidden and kept.row is not None:
                    self._hidden.put(s, kept.n_tokens - 1, kept.row[None])
                return
        elif at and state is not None and self._put_back(s, at, state):
            return
        self.clear(s)

    def _put_back(self, s: int, n: int, state: NDArray[np.uint8]) -> bool:
        """Makes a sequence hold its first n tokens. state: what of it cannot be cut. False if it fails."""
        # this first removal may be refused while the old recurrent state is there; the second counts
        position = self._sequences[s].position(n)
        C.llama_memory_seq_rm(self._memory, s, position, -1)
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data_ext(self._handle, data, state.size, s, CHECKPOINT_FLAGS):
            return self.give_back_cells() and self._put_back(s, n, state)
        C.llama_memory_seq_rm(self._memory, s, position, -1)
        self._keep(s, n)
        return True

    def _keep(self, s: int, n: int) -> None:
        """Records that a sequence holds its first n tokens alone."""
        self._sequences[s].keep(n)
        if self._hidden:
            self._hidden.cut(s, n)

    def _remove(self, s: int, keep: int) -> bool:
        position = self._sequences[s].position(keep)
        if self._keeping and self._sequences[s].held > keep:
            C.llama_memory_seq_cp(self._memory, s, self._keeper, position, -1)
            self._kept = True
        return bool(C.llama_memory_seq_rm(self._memory, s, position, -1))

    def keep_cells(self, on: bool) -> None:
        """on: cells of removed tokens stay occupied, until `give_back_cells` or cells run out.

        For while several sequences are written in turn. Else their next tokens would take such cells, before
        older ones of their own; attention sums in the order of cells, and would round differently than alone.
        """
        self._keeping = on and self._keeper is not None

    def give_back_cells(self) -> bool:
        """Frees the cells that were kept; False if there were none."""
        kept, self._kept = self._kept, False
        if kept:
            C.llama_memory_seq_rm(self._memory, self._keeper, -1, -1)
        return kept

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        self._remove(s, 0)
        self._keep(s, 0)
        seq = self._sequences[s]
        seq.snapshots, seq.checkpoint = 0, (0, None)

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds after its first n tokens, or more if it cannot go back there."""
        if n < self._sequences[s].held:
            self._rewind(s, whole_before(self.held(s), n) if self._sequences[s].media else n)

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence holds, in host memory."""
        held = self._sequences[s].held
        least = 0
        if self.model.has_recurrent_state:
            least = held
        elif self.model.window and held > self.model.window:  # cells before the window are left out
            least = held - 1
        row = self._hidden.row(s, held - 1) if self._hidden else None
        return Saved(bytes(self._sequences[s].tokens), self.state(s, 0), least, row)

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False (and nothing is held) if cells have run out."""
        self.clear(s)
        state = saved.state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data(self._handle, state, saved.state.size, s):
            self.clear(s)
            return self.give_back_cells() and self.restore(s, saved)
        self._sequences[s].tokens += saved.tokens
        self._sequences[s].media = min(memoryview(saved.tokens).cast("i"), default=0) < 0
        if self._hidden and saved.row is not None:
            self._hidden.put(s, self._sequences[s].held - 1, saved.row[None])
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another, in the same cells; False if it cannot."""
        from_ = self._sequences[source]
        if n > from_.held:
            return False
        n, kept = whole_before(self.held(source), n) if from_.media else n, None
        if self.model.has_recurrent_state or not self._window_is_whole(source, n):
            kept = self._kept_before(source, n)
            if kept is None or kept.n_tokens != n:
                return False
        self.clear(s)
        C.llama_memory_seq_cp(self._memory, source, s, 0, from_.position(n))
        self._sequences[s].tokens += from_.tokens[: 4 * n]
        self._sequences[s].media = from_.media
        if kept and not self._put_back(s, n, kept.state):
            self.clear(s)
            return False
        if self._hidden:
            self._hidden.share(source, s, n)
            if kept and kept.row is not None:
                self._hidden.put(s, n - 1, kept.row[None])
        return True

    def lengthen(self, s: int, tokens: bytes) -> None:
        """Records that a sequence holds further tokens, whose cells it has been given."""
        seq = self._sequences[s]
        seq.tokens += tokens
        seq.media = seq.media or min(memoryview(tokens).cast("i"), default=0) < 0

    def position(self, s: int, n: int) -> int:
        """Returns the position after the first n tokens of a sequence."""
        return self._sequences[s].position(n)

    def state(self, s: int, flags: int = 0) -> NDArray[np.uint8]:
        """Returns llama.cpp's own bytes of a sequence. Raises EngineError."""
        state = np.empty(C.llama_state_seq_get_size_ext(self._handle, s, flags), np.uint8)
        into = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_get_data_ext(self._handle, into, state.size, s, flags) != state.size:
            raise EngineError(f"the state of {self.model.path.name} cannot be saved: {last_complaint()}")
        return state

    def uncut_bytes(self, s: int) -> int:
        """Returns the size of what of a sequence's state cannot be cut."""
        return int(C.llama_state_seq_get_size_ext(self._handle, s, CHECKPOINT_FLAGS))

    def uncut_state(self, s: int) -> Saved:
        """Returns a copy of what of a sequence's state cannot be cut. Raises EngineError."""
        held = self._sequences[s].held
        row = self._hidden.row(s, held - 1) if self._hidden else None
        return Saved(bytes(self._sequences[s].tokens), self.state(s, CHECKPOINT_FLAGS), held, row)

    def _save_checkpoint(self, s: int) -> None:
        seq = self._sequences[s]
        if seq.checkpoint[0] == seq.held and seq.checkpoint[1] is not None or seq.held == 0:
            return
        try:
            seq.checkpoint = (seq.held, self.state(s, CHECKPOINT_FLAGS))
        except EngineError:  # then all is evaluated again if a guess is rejected
            seq.checkpoint = (0, None)

    def _decode_unread(self, s: int, tokens: bytes) -> None:
        """Evaluates, in pieces, tokens that need no logits; makes the checkpoints that are due."""
        while tokens:
            size = self._chunk
            if self.checkpoints:
                self.checkpoints.take(s, self._sequences[s].held)
                size = min(size, self.checkpoints.ahead(s, self._sequences[s].held))
            self._decode([(s, tokens[: 4 * size], 0)])
            tokens = tokens[4 * size :]
        if self.checkpoints:
            self.checkpoints.take(s, self._sequences[s].held)

    def _decode(self, parts: Sequence[_Part]) -> list[Rows]:
        """Evaluates parts in one llama_decode and keeps the record true.

        A single row goes through other kernels than two and more, and so does the only one that is asked
        for, behind the last layer's attention. Where that must not show, each has another one for company:
        the row before it, or one in a sequence of its own; both are thrown away.
        """
        seqs = self._sequences
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
            C.llama_memory_seq_rm(self._memory, self._companion, -1, -1)

    def _decode_medium(self, s: int, medium: Medium) -> None:
        """Evaluates a medium, at once if all of it sees all of it."""
        if self._row_batch is None:
            size, width = max(self.settings.chunk, self.settings.medium), medium.rows.shape[1]
            self._row_batch = RowBatch(size, width, sections=len(medium.places))
        seq, n = self._sequences[s], medium.cells.size
        before = begun(np.frombuffer(seq.tokens, np.int32, seq.held))
        places = medium.positions(seq.position(seq.held), before)
        seq.media = True
        C.llama_set_causal_attn(self._handle, medium.causal)
        try:
            size = self._chunk if medium.causal else n
            size -= n % size == 1 and self.settings.identical  # no row alone
            for at in range(0, n, size):
                part = slice(at, min(at + size, n))
                self._row_batch.fill([RowPart(s, 0, medium.rows[part], None, places[:, part])], outputs=0)
                self._evaluate(
                    self._row_batch.struct, [(s, medium.cells[part].tobytes(), 0)], part.stop - part.start
                )
        finally:
            C.llama_set_causal_attn(self._handle, True)

    def _evaluate(self, struct: Any, parts: Sequence[_Part], n: int) -> list[Rows]:
        """Evaluates a batch of n tokens that is ready."""
        if not (self._splits and sum(seq.held for seq in self._sequences) > UNSPLIT):
            self._threads.choose(n)
        tapped = self._hidden is not None
        if self._switch:
            tapped = all([len(tokens) == 4 * rows for _, tokens, rows in parts])
            self._switch(tapped)
        complaints.clear()
        started = time.perf_counter()
        code = C.llama_decode(self._handle, struct)
        if code == NO_CELLS and self.give_back_cells():
            code = C.llama_decode(self._handle, struct)
        ends = self._ends(parts) if code == 0 else ()
        seconds = time.perf_counter() - started
        self.seconds += seconds
        self.calls += 1
        if code == WRONG_BATCH:  # the cache holds something else than was thought
            for s, _, _ in parts:
                self.clear(s)
        if code in (NO_CELLS, WRONG_BATCH):
            raise self._failure(code, n)
        if code == 0:
            self._threads.note(n, seconds)
            if tapped:
                self._take_hidden(parts, n)
        self.evaluated += n
        for s, tokens, _ in parts:
            seq = self._sequences[s]
            if self.model.has_recurrent_state:
                self._note_state(seq, len(tokens) // 4)
            seq.tokens += tokens
        if code != 0:
            for s, _, _ in parts:
                self._resync(s)
            raise self._failure(code, n)
        return [self._views[end] if end in self._views else self._view(*end) for end in ends]

    def _take_hidden(self, parts: Sequence[_Part], n_tokens: int) -> None:
        """Keeps the hidden rows of an evaluation for the head."""
        assert self._hidden and self._tap
        rows, at = self._tap(n_tokens), 0
        for s, tokens, _ in parts:
            n = len(tokens) // 4
            self._hidden.put(s, self._sequences[s].held, rows[at : at + n])
            at += n

    def _note_state(self, seq: _Sequence, n: int) -> None:
        """Records what the evaluation of n tokens does to a recurrent state."""
        if seq.checkpoint[0] > seq.held:
            seq.checkpoint = (0, None)
        seq.snapshots = min(n - 1, self._n_rs_seq)

    def _ends(self, parts: Sequence[_Part]) -> list[tuple[int, int]]:
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
        n_vocab = self.model.n_vocab
        buffer: Any = (ctypes.c_float * (n_vocab * rows)).from_address(last - 4 * n_vocab * (rows - 1))
        view = np.frombuffer(buffer, np.float32).reshape(rows, n_vocab)
        self._views[last, rows] = view
        return view

    def _resync(self, s: int) -> None:
        """After a failure in the middle: trusts the cache, not the plan."""
        seq = self._sequences[s]
        reached = C.llama_memory_seq_pos_max(self._memory, s) + 1
        if self.model.has_recurrent_state or seq.media or not 0 < reached <= seq.held:
            self.clear(s)
        else:
            C.llama_memory_seq_rm(self._memory, s, reached, -1)
            self._keep(s, reached)

    def _failure(self, code: int, n: int) -> EngineError:
        held = sum(seq.held for seq in self._sequences)
        if code == NO_CELLS:
            return NoRoomError(f"the KV cache has no room for {n} more tokens next to {held:,}: raise --ctx")
        if code == 2:
            return DecodeAbortedError("the evaluation was interrupted")
        kind = InvalidBatchError if code == WRONG_BATCH else FatalDecodeError
        return kind(f"llama.cpp failed with code {code} on {n} tokens: {last_complaint()}")


def _bytes_of(want: Want, start: int) -> bytes:
    """Returns tokens + tail from place `start` on."""
    tokens = want.tokens[start:].astype(np.int32, copy=False).tobytes()
    tail = want.tail[max(0, start - want.tokens.size) :]
    return tokens + array("i", tail).tobytes() if tail else tokens


def _shared(held: bytearray, want: Want) -> int:
    """Returns how many first tokens of tokens + tail, but the last `rows`, are the held ones.

    Compares in place: a long text is not copied for each guess.
    """
    n = want.tokens.size
    end = min(len(held) // 4, n + len(want.tail) - want.rows)
    settled = min(end, n)
    tokens = want.tokens if want.tokens.dtype == np.int32 else want.tokens.astype(np.int32)
    if settled and not held.startswith(tokens.data[:settled].cast("B")):
        return int((np.frombuffer(held, np.int32, settled) != tokens[:settled]).argmax())
    if end > n:
        tail = np.array(want.tail[: end - n], np.int32)
        differs = np.frombuffer(held, np.int32, end - n, 4 * n) != tail
        if differs.any():
            return n + int(differs.argmax())
    return end
