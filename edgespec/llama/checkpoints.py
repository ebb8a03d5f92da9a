"""Checkpoints of a context: what of its state cannot be cut, as it was at some places of a text.

A recurrent state cannot go back, nor a sliding window whose older cells are gone. Attention's other cells
can: so at places where later texts may differ, only the rest is copied to host memory, and put back when a
text goes on from there. A checkpoint belongs to its tokens, not to a sequence: branches and slots share it.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import ModelName
from edgespec.errors import EngineError
from edgespec.llama.saved import PrefixStore, Saved


class _Whole(Protocol):
    def held(self, seq: int = 0) -> NDArray[np.int32]: ...
    def uncut_state(self, s: int) -> Saved: ...
    def uncut_bytes(self, s: int) -> int: ...


class Checkpoints:
    """When checkpoints of a context's sequences are due, and where they are."""

    def __init__(self, context: _Whole, n_seq: int) -> None:
        self._context = context
        self._store: PrefixStore | None = None
        self._name: ModelName = "target"
        self._borders: list[tuple[int, ...] | None] = [None] * n_seq

    def keep_in(self, store: PrefixStore | None, name: ModelName) -> None:
        """Sets where they are kept from now on; None: nowhere. name: of the context."""
        self._store, self._name = store, name
        self._borders = [()] * len(self._borders)

    def expect(self, s: int, borders: tuple[int, ...] | None) -> None:
        """Has checkpoints made where a sequence comes to so many tokens; None: nor are any used for it."""
        self._borders[s] = borders

    def ahead(self, s: int, held: int) -> int:
        """Returns how many tokens are read until the next is due, for a sequence that holds so many."""
        borders = self._borders[s] if self._store is not None else ()
        return next((border - held for border in borders or () if border > held), 1 << 30)

    def take(self, s: int, held: int) -> None:
        """Makes one if it is due, for a sequence that holds so many tokens."""
        store = self._store
        if store is None or held == 0 or held not in (self._borders[s] or ()):
            return
        known = store.checkpoint(self._name, self._context.held(s).tobytes(), held)
        if known is None or known.n_tokens < held:
            try:
                if store.takes(self._context.uncut_bytes(s)):
                    store.put_checkpoint(self._name, self._context.uncut_state(s))
            except (EngineError, MemoryError):  # then it is evaluated again some day
                return

    def within(self, tokens: bytes) -> list[Saved]:
        """Returns those of a text."""
        return self._store.checkpoints(self._name, tokens) if self._store is not None else []

    def before(self, s: int, tokens: bytearray, n: int) -> Saved | None:
        """Returns the last within the first n tokens of a sequence."""
        if self._store is None or self._borders[s] is None or n == 0:
            return None
        return self._store.checkpoint(self._name, tokens, n)
