"""What every head's cache can do besides guessing: keep, forget, be saved, restored and shared."""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.errors import EngineError, FatalDecodeError, NoRoomError
from edgespec.llama.context import Context
from edgespec.llama.heads.head_settings import as_target, new_head_context
from edgespec.llama.heads.hidden_rows import HiddenRow
from edgespec.llama.log import complaints, last_complaint
from edgespec.llama.model import Model
from edgespec.llama.saved import Saved
from edgespec.llama.settings import ContextSettings
from edgespec.llama.thread_count import Threads
from edgespec.system.closing import Closing
from edgespec_models.gguf.heads import Head

NO_CELLS = 1  # code of llama_decode


@dataclass(slots=True)
class Held:
    """What one sequence of the head's cache holds."""

    tokens: bytearray = field(default_factory=bytearray)  # int32 each, from position 0 on
    start: int = 0  # first position that has a cell
    read: int = 0  # positions before it were read in the target's rows
    made: list[HiddenRow] = field(default_factory=list)  # rows that the head itself made, the newest last

    @property
    def end(self) -> int:
        return len(self.tokens) // 4


class NoCache(Closing):
    """What a head has of a cache that keeps nothing from one evaluation to the next."""

    batches = True
    fills = False  # it reads what the target has made, and nothing else
    parts = None  # it is saved as a whole
    checkpoints = None  # it begins behind what it cannot go back to

    def close(self) -> None:
        """Has nothing to free."""

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns no tokens."""
        return np.empty(0, np.int32)

    def clear(self, s: int = 0) -> None:
        """Has nothing to forget."""

    def cut(self, s: int, n: int) -> None:
        """Has nothing to forget."""

    def save(self, s: int) -> Saved:
        """Returns nothing: its state is the target's."""
        return Saved(b"", np.empty(0, np.uint8), 0)

    def restore(self, s: int, saved: Saved) -> bool:
        """Has nothing to restore."""
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        """Has nothing to share."""
        return True

    def keep_cells(self, on: bool) -> None:
        """Does nothing: the order in which a head sums changes no text."""

    def give_back_cells(self) -> bool:
        """Returns False: none are kept."""
        return False


class HeadCache(NoCache):
    """The sequences of a head's context, with a `Context`'s counters. Close it before the target's."""

    def __init__(self, model: Model, target: Context, settings: ContextSettings, head: Head) -> None:
        settings = as_target(model, settings, target.settings)
        self.model, self.settings, self.kind = model, settings, head.kind
        self.n_ctx, self.n_vocab = settings.n_ctx, model.n_vocab
        self.seconds, self.calls, self.evaluated, self.first_s = 0.0, 0, 0, 0.0
        self._target = target
        self._handle: Any = new_head_context(model, settings, head, target.handle)
        self._threads = Threads(self._handle, settings.threads, fixed=model.on_gpu)
        self._memory: Any = C.llama_get_memory(self._handle)
        self._held = [Held() for _ in range(settings.n_seq)]

    def close(self) -> None:
        """Frees the cache."""
        if self._handle:
            C.llama_free(self._handle)
            self._handle = None

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (1, n_vocab): the head's logits after its tokens + tail.

        Raises NoRoomError if cells have run out and FatalDecodeError if llama.cpp fails. Whatever is raised,
        Ctrl+C included, the head then holds nothing of these sequences.
        """
        try:
            return self._scored(wants)
        except BaseException:
            for want in wants:
                self.clear(want.seq)
            raise

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        raise NotImplementedError

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence has read, with those before its first cell."""
        return np.frombuffer(bytes(self._held[seq].tokens), np.int32)

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        C.llama_memory_seq_rm(self._memory, s, 0, -1)
        self._held[s] = Held()

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds after its first n tokens."""
        held = self._held[s]
        if n <= held.start:
            self.clear(s)
        elif n < held.end:
            C.llama_memory_seq_rm(self._memory, s, n, -1)
            del held.tokens[4 * n :]
            held.read, held.made = min(held.read, n), []

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence has read in the target's rows, in host memory."""
        self.cut(s, self._held[s].read)
        state = np.empty(C.llama_state_seq_get_size(self._handle, s), np.uint8)
        into = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_get_data(self._handle, into, state.size, s) != state.size:
            raise EngineError(f"the state of a head cannot be saved: {last_complaint()}")
        return Saved(bytes(self._held[s].tokens), state, 0)

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False (and nothing is held) if cells have run out."""
        self.clear(s)
        state = saved.state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data(self._handle, state, saved.state.size, s):
            self.clear(s)
            return False
        start = max(0, int(C.llama_memory_seq_pos_min(self._memory, s)))
        self._held[s] = Held(bytearray(saved.tokens), start, len(saved.tokens) // 4)
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another, in the same cells; False if it cannot."""
        from_ = self._held[source]
        if not from_.start < n <= from_.read:
            return False
        self.clear(s)
        C.llama_memory_seq_cp(self._memory, source, s, 0, n)
        self._held[s] = Held(from_.tokens[: 4 * n], from_.start, n)
        return True

    @property
    def tried(self) -> float:
        """Returns the seconds that evaluations took longer because another number of threads was tried."""
        return self._threads.tried

    def _settled(self, want: Want) -> tuple[bytes, int]:
        """Returns the settled tokens from position 0 on, and for how many the target's rows may be used."""
        tokens = want.tokens.tobytes()
        if want.before:
            before = self._target.held(want.seq)[: want.before].tobytes()
            tokens = before.ljust(4 * want.before, b"\0") + tokens
        return tokens, self._target.holds(want.seq, tokens)

    def rehearse(self, n: int) -> None:
        """Evaluates what reading n tokens takes; the first sequence is empty then."""
        raise NotImplementedError

    def _warm_up(self) -> None:
        """Evaluates twice, and keeps the second time: from then on a head is as fast, its weights read."""
        self.rehearse(2)
        self.seconds = 0.0
        self.rehearse(2)
        self.first_s = self.seconds
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0

    def _run(self, struct: Any) -> None:
        """Evaluates a batch. Raises NoRoomError or FatalDecodeError."""
        self._threads.choose(struct.n_tokens)
        complaints.clear()
        started = time.perf_counter()
        code = C.llama_decode(self._handle, struct)
        if code == 0:
            C.llama_synchronize(self._handle)
        seconds = time.perf_counter() - started
        if code == 0:
            self._threads.note(struct.n_tokens, seconds)
        self.seconds += seconds
        self.calls += 1
        if code == NO_CELLS:
            raise NoRoomError("the head's cache has no room for more tokens: raise --ctx")
        if code != 0:
            raise FatalDecodeError(f"llama.cpp failed with code {code} on a head: {last_complaint()}")

    def _logits(self, i: int) -> Rows:
        """Returns the logits after a row of the last evaluation: a view (1, n_vocab)."""
        return self._row(C.llama_get_logits_ith(self._handle, i), self.model.n_vocab)[None]

    def _own_row(self, i: int, width: int) -> HiddenRow:
        """Returns the head's own row for a row of the last evaluation."""
        from llama_cpp import llama_cpp_ext

        return self._row(llama_cpp_ext.llama_get_embeddings_nextn_ith(self._handle, i), width).copy()

    def _row(self, pointer: Any, width: int) -> NDArray[np.float32]:
        """Returns a view of one row, valid until the next evaluation."""
        if not pointer:
            raise EngineError(f"llama.cpp returned nothing for a head: {last_complaint()}")
        return np.ctypeslib.as_array(pointer, shape=(width,))
