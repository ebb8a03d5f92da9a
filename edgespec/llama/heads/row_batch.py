"""One evaluation of a head: hidden rows, each with a token or alone."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

_INTS = ctypes.POINTER(ctypes.c_int32)


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows of one sequence, at consecutive positions."""

    seq: int
    position: int  # of the first cell
    rows: NDArray[np.float32]  # (n, width)
    tokens: bytes | None = None  # int32 each; None: the rows stand alone
    places: NDArray[np.int32] | None = (
        None  # (sections, n) positions; None: one after another, in all sections
    )

    @property
    def size(self) -> int:
        return len(self.rows)


class RowBatch:
    """A llama_batch over arrays that are made once, for up to `size` rows of `width` floats."""

    def __init__(self, size: int, width: int, *, sections: int = 1) -> None:
        """sections: numbers that make a position of a row without a token: 4 for M-RoPE's positions."""
        self.size, self._sections = size, sections
        self._token = np.zeros(size, np.int32)
        self._rows = np.zeros((size, width), np.float32)
        self._pos = np.zeros(size * sections, np.int32)
        self._n_seq_id = np.ones(size, np.int32)
        self._seq_id = np.zeros(size, np.int32)
        self._seq_pointers = self._seq_id.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self._logits = np.zeros(size, np.int8)
        struct: Any = C.llama_batch()
        struct.embd = self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        struct.pos, struct.n_seq_id = self._pos.ctypes.data_as(_INTS), self._n_seq_id.ctypes.data_as(_INTS)
        struct.seq_id = self._seq_pointers.ctypes.data_as(ctypes.POINTER(_INTS))
        struct.logits = self._logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self.struct = struct

    def fill(self, parts: Sequence[RowPart], *, outputs: int | None) -> None:
        """Replaces the rows by those of the next evaluation: all with tokens, or all without.

        outputs: rows at the end of each part that want logits; None: all.
        """
        at = 0
        for part in parts:
            end = at + part.size
            self._rows[at:end] = part.rows
            self._pos[at:end] = np.arange(part.position, part.position + part.size)
            self._seq_id[at:end] = part.seq
            self._logits[at:end] = outputs is None
            self._logits[end - (outputs or 0) : end] = 1
            if part.tokens is not None:
                self._token[at:end] = np.frombuffer(part.tokens, np.int32)
            at = end
        self.struct.n_tokens = at
        with_tokens = parts[0].tokens is not None
        self.struct.token = self._token.ctypes.data_as(_INTS) if with_tokens else _INTS()
        if parts[0].places is not None:  # a medium's, alone in its batch
            self._pos[: at * self._sections] = parts[0].places.ravel()
        elif not with_tokens and self._sections > 1:  # time, height, width, none: one array after another
            places = self._pos[:at].copy()
            self._pos[: at * self._sections] = np.concatenate([np.tile(places, 3), np.zeros(at, np.int32)])
