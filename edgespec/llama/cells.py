"""The cells of a context: what its sequences hold, how they go back, and how they are saved and shared.

Models with recurrent state cannot forget their last tokens at will; what they can do is probed when the
context is made:

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

import ctypes
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.media import whole_before
from edgespec.errors import EngineError
from edgespec.llama.checkpoints import Checkpoints
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.log import last_complaint
from edgespec.llama.model import Model
from edgespec.llama.saved import Saved, same_beginning
from edgespec.llama.sequence import HeldSequence, shared
from edgespec.llama.settings import ContextSettings, has_parts, keeps_order
from edgespec.llama.state_parts import StateParts

CHECKPOINT_FLAGS = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: recurrent state and windows, kept in host memory


class Cells:
    """The sequences of a context. hidden: their rows for a head, if one wants them."""

    def __init__(self, model: Model, settings: ContextSettings, handle: Any) -> None:
        """handle: the llama_context."""
        self._model, self.handle = model, handle
        self.memory: Any = C.llama_get_memory(handle)
        self.sequences = [HeldSequence() for _ in range(settings.n_seq)]
        ordered, uncut = keeps_order(model, settings), model.has_recurrent_state or model.window
        self._keeper = settings.n_seq if ordered else None  # see `keep_cells`
        self.parts = StateParts(self, settings.n_seq + ordered) if has_parts(model, settings) else None
        self.checkpoints = Checkpoints(self, settings.n_seq) if uncut else None
        self.hidden: HiddenRows | None = None
        self.rereads = False  # the last token that stays, if a head wants its row and it is gone
        self._keeping = self._kept = False

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence holds."""
        return np.frombuffer(bytes(self.sequences[seq].tokens), np.int32)

    def holds(self, seq: int, tokens: bytes) -> int:
        """Returns how many of a sequence's first tokens are those given, int32 each."""
        return same_beginning(self.sequences[seq].tokens, tokens)

    def position(self, s: int, n: int) -> int:
        """Returns the position after the first n tokens of a sequence."""
        return self.sequences[s].position(n)

    def lengthen(self, s: int, tokens: bytes) -> None:
        """Records that a sequence holds further tokens, whose cells it has been given."""
        self.sequences[s].add(tokens)

    def staying(self, want: Want) -> int:
        """Returns how many first tokens stay.

        The last of them is read again if a head wants its hidden row and that is no longer kept; a medium
        stays whole or not at all.
        """
        keep = shared(self.sequences[want.seq].tokens, want)
        if self.rereads and self.hidden and keep:
            keep -= self.hidden.row(want.seq, keep - 1) is None
        return whole_before(want.tokens, keep) if self.sequences[want.seq].media else keep

    def _window_is_whole(self, s: int, keep: int) -> bool:
        """Returns whether all cells are there that the token after the first `keep` of a sequence sees."""
        if keep == 0 or not self._model.window:
            return True
        first, end = C.llama_memory_seq_pos_min(self.memory, s), self.sequences[s].position(keep)
        return bool(0 <= first <= max(0, end + 1 - self._model.window))

    def _near(self, seq: HeldSequence) -> int:
        """Returns how many last tokens can be rolled back. What others did to its window is unknown."""
        return 0 if self._model.window and len(self.sequences) > 1 else seq.snapshots

    def reached(self, s: int, keep: int) -> int:
        """Returns how many tokens stay if all after the first `keep` must go."""
        seq = self.sequences[s]
        if keep == seq.held:
            return keep
        at, state = seq.checkpoint
        if not self._model.has_recurrent_state:
            if self._window_is_whole(s, keep):
                return keep
        elif 0 < seq.held - keep <= self._near(seq):
            return keep
        kept = self._kept_before(s, keep)
        return max(at if state is not None and at <= keep else 0, kept.n_tokens if kept else 0)

    def _kept_before(self, s: int, n: int) -> Saved | None:
        """Returns the last checkpoint within the first n tokens of a sequence."""
        return self.checkpoints.before(s, self.sequences[s].tokens, n) if self.checkpoints else None

    def rewind(self, s: int, keep: int) -> None:
        """Makes the sequence hold its first `keep` tokens, or fewer if the model cannot go back there."""
        seq = self.sequences[s]
        if self._model.has_recurrent_state:
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
                if self.hidden and kept.row is not None:
                    self.hidden.put(s, kept.n_tokens - 1, kept.row[None])
                return
        elif at and state is not None and self._put_back(s, at, state):
            return
        self.clear(s)

    def _put_back(self, s: int, n: int, state: NDArray[np.uint8]) -> bool:
        """Makes a sequence hold its first n tokens. state: what of it cannot be cut. False if it fails."""
        # this first removal may be refused while the old recurrent state is there; the second counts
        position = self.sequences[s].position(n)
        C.llama_memory_seq_rm(self.memory, s, position, -1)
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data_ext(self.handle, data, state.size, s, CHECKPOINT_FLAGS):
            return self.give_back_cells() and self._put_back(s, n, state)
        C.llama_memory_seq_rm(self.memory, s, position, -1)
        self._keep(s, n)
        return True

    def _keep(self, s: int, n: int) -> None:
        """Records that a sequence holds its first n tokens alone."""
        self.sequences[s].keep(n)
        if self.hidden:
            self.hidden.cut(s, n)

    def _remove(self, s: int, keep: int) -> bool:
        position = self.sequences[s].position(keep)
        if self._keeping and self.sequences[s].held > keep:
            C.llama_memory_seq_cp(self.memory, s, self._keeper, position, -1)
            self._kept = True
        return bool(C.llama_memory_seq_rm(self.memory, s, position, -1))

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
            C.llama_memory_seq_rm(self.memory, self._keeper, -1, -1)
        return kept

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        self._remove(s, 0)
        self._keep(s, 0)
        seq = self.sequences[s]
        seq.snapshots, seq.checkpoint = 0, (0, None)

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds after its first n tokens, or more if it cannot go back there."""
        if n < self.sequences[s].held:
            self.rewind(s, whole_before(self.held(s), n) if self.sequences[s].media else n)

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence holds, in host memory."""
        held = self.sequences[s].held
        least = 0
        if self._model.has_recurrent_state:
            least = held
        elif self._model.window and held > self._model.window:  # cells before the window are left out
            least = held - 1
        row = self.hidden.row(s, held - 1) if self.hidden else None
        return Saved(bytes(self.sequences[s].tokens), self.state(s, 0), least, row)

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False (and nothing is held) if cells have run out."""
        self.clear(s)
        state = saved.state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data(self.handle, state, saved.state.size, s):
            self.clear(s)
            return self.give_back_cells() and self.restore(s, saved)
        self.sequences[s].add(saved.tokens)
        if self.hidden and saved.row is not None:
            self.hidden.put(s, self.sequences[s].held - 1, saved.row[None])
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another, in the same cells; False if it cannot."""
        from_ = self.sequences[source]
        if n > from_.held:
            return False
        n, kept = whole_before(self.held(source), n) if from_.media else n, None
        if self._model.has_recurrent_state or not self._window_is_whole(source, n):
            kept = self._kept_before(source, n)
            if kept is None or kept.n_tokens != n:
                return False
        self.clear(s)
        C.llama_memory_seq_cp(self.memory, source, s, 0, from_.position(n))
        self.sequences[s].tokens += from_.tokens[: 4 * n]
        self.sequences[s].media, self.sequences[s].shared = from_.media, n
        if kept and not self._put_back(s, n, kept.state):
            self.clear(s)
            return False
        if self.hidden:
            self.hidden.share(source, s, n)
            if kept and kept.row is not None:
                self.hidden.put(s, n - 1, kept.row[None])
        return True

    def state(self, s: int, flags: int = 0) -> NDArray[np.uint8]:
        """Returns llama.cpp's own bytes of a sequence. Raises EngineError."""
        state = np.empty(C.llama_state_seq_get_size_ext(self.handle, s, flags), np.uint8)
        into = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_get_data_ext(self.handle, into, state.size, s, flags) != state.size:
            raise EngineError(f"the state of {self._model.path.name} cannot be saved: {last_complaint()}")
        return state

    def uncut_bytes(self, s: int) -> int:
        """Returns the size of what of a sequence's state cannot be cut."""
        return int(C.llama_state_seq_get_size_ext(self.handle, s, CHECKPOINT_FLAGS))

    def uncut_state(self, s: int) -> Saved:
        """Returns a copy of what of a sequence's state cannot be cut. Raises EngineError."""
        held = self.sequences[s].held
        row = self.hidden.row(s, held - 1) if self.hidden else None
        return Saved(bytes(self.sequences[s].tokens), self.state(s, CHECKPOINT_FLAGS), held, row)

    def save_checkpoint(self, s: int) -> None:
        seq = self.sequences[s]
        if seq.checkpoint[0] == seq.held and seq.checkpoint[1] is not None or seq.held == 0:
            return
        try:
            seq.checkpoint = (seq.held, self.state(s, CHECKPOINT_FLAGS))
        except EngineError:  # then all is evaluated again if a guess is rejected
            seq.checkpoint = (0, None)

    def resync(self, s: int) -> None:
        """After a failure in the middle: trusts the cache, not the plan."""
        seq = self.sequences[s]
        reached = C.llama_memory_seq_pos_max(self.memory, s) + 1
        if self._model.has_recurrent_state or seq.media or not 0 < reached <= seq.held:
            self.clear(s)
        else:
            C.llama_memory_seq_rm(self.memory, s, reached, -1)
            self._keep(s, reached)
