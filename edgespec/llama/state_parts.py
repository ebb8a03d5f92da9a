"""The state of some tokens of a sequence by itself, by way of a sequence that holds nothing else.

llama.cpp saves and restores whole sequences. Cells can be shared, though: the spare sequence gets those of
some tokens, and is saved; or it is restored, and its cells go to the sequence that ends where they begin.
"""

import ctypes
from typing import Any, Protocol

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.llama.saved import Saved


class _Whole(Protocol):
    @property
    def handle(self) -> Any: ...
    def held(self, seq: int = 0) -> NDArray[np.int32]: ...
    def state(self, s: int) -> NDArray[np.uint8]: ...
    def position(self, s: int, n: int) -> int: ...
    def lengthen(self, s: int, tokens: bytes) -> None: ...
    def give_back_cells(self) -> bool: ...


class StateParts:
    """The parts of a context's sequences, all of one attention cache."""

    def __init__(self, context: _Whole, spare: int) -> None:
        """spare: a sequence that nobody else uses."""
        self._context, self._spare = context, spare

    def save(self, s: int, start: int, end: int) -> Saved:
        """Returns a copy of what a sequence holds from token `start` to `end`. Raises EngineError."""
        memory = C.llama_get_memory(self._context.handle)
        first, behind = self._context.position(s, start), self._context.position(s, end)
        C.llama_memory_seq_cp(memory, s, self._spare, first, behind)
        try:
            state = self._context.state(self._spare)
        finally:
            C.llama_memory_seq_rm(memory, self._spare, -1, -1)
        return Saved(self._context.held(s)[start:end].tobytes(), state, 0)

    def add(self, s: int, saved: Saved) -> bool:
        """Puts a part behind what a sequence holds; False if cells have run out."""
        memory, state = C.llama_get_memory(self._context.handle), saved.state
        data = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data(self._context.handle, data, state.size, self._spare):
            C.llama_memory_seq_rm(memory, self._spare, -1, -1)
            return self._context.give_back_cells() and self.add(s, saved)
        C.llama_memory_seq_cp(memory, self._spare, s, -1, -1)
        C.llama_memory_seq_rm(memory, self._spare, -1, -1)
        self._context.lengthen(s, saved.tokens)
        return True
