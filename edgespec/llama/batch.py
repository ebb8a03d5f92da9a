"""What llama.cpp evaluates at once: a llama_batch over arrays that are made once.

Tokens come and go as bytes, four to a token. Between two evaluations everything that Python touches is
cold, because the weights passed through the caches; copying bytes touches the least.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp as C
import numpy as np

Part = tuple[int, bytes, int, int]  # sequence, tokens, rows wanted at the end, position of the first token


class Batch:
    """Holds up to `size` tokens of any sequences, at positions below `n_ctx`."""

    def __init__(self, size: int, n_ctx: int) -> None:
        ints, pointer = ctypes.c_int32 * size, ctypes.POINTER(ctypes.c_int32)
        token, pos = ints(), ints()
        self._token, self._pos = memoryview(token).cast("B"), memoryview(pos).cast("B")
        self._positions = np.arange(n_ctx, dtype=np.int32).data.cast("B")
        self._n_seq_id = ints(*[1] * size)
        self._seq_id = np.zeros(size, np.int32)
        self._seq_pointers = self._seq_id.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self._logits = np.zeros(size, np.int8)
        struct: Any = C.llama_batch()
        struct.token, struct.pos = ctypes.cast(token, pointer), ctypes.cast(pos, pointer)
        struct.n_seq_id = ctypes.cast(self._n_seq_id, pointer)
        struct.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(pointer))
        struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.struct = struct
        self._shape: list[tuple[int, int, int]] = []  # (sequence, bytes, rows) of the parts held now

    @property
    def n_tokens(self) -> int:
        return int(self.struct.n_tokens)

    def fill(self, parts: Sequence[Part]) -> int:
        """Replaces the tokens by those of the next evaluation; returns their number."""
        at, shape = 0, []
        for seq, tokens, rows, position in parts:
            end = at + len(tokens)
            self._token[at:end] = tokens
            self._pos[at:end] = self._positions[4 * position : 4 * position + len(tokens)]
            shape.append((seq, len(tokens), rows))
            at = end
        n_tokens = self.struct.n_tokens = at // 4
        if shape != self._shape:
            self._mark(shape)
        return n_tokens

    def _mark(self, shape: list[tuple[int, int, int]]) -> None:
        """Marks each token's sequence, and which tokens want logits: the same in one round after another."""
        at = 0
        for seq, size, rows in shape:
            end = at + size // 4
            self._seq_id[at:end] = seq
            self._logits[at:end] = 0
            self._logits[end - rows : end] = 1
            at = end
        self._shape = shape
