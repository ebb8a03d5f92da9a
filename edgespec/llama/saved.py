"""Saved sequences in host memory: states of target and draft, by their tokens.

A prefix that is no longer in a slot need not be evaluated again: its state is copied back. The store has
a budget of bytes; the least recently used goes first. It knows nothing of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import ModelName


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of one sequence of one context."""

    tokens: bytes  # int32 each
    state: NDArray[np.uint8]  # llama.cpp's own bytes
    least: int  # restored, it can be cut to no fewer tokens: all of them for recurrent state
    row: NDArray[np.float32] | None = None  # the hidden row of the last token, if a head reads them
    written: bytes = b""  # the same text in the tokens of a draft with another vocabulary, guesses included

    @property
    def n_bytes(self) -> int:
        return len(self.tokens) + len(self.written) + int(self.state.nbytes)

    def useful(self, tokens: bytes) -> int:
        """Returns how many tokens of a prompt this spares: all but the last one at most."""
        n = same_beginning(self.tokens, tokens[:-4])
        return n if n >= self.least else 0

    def serves(self, tokens: bytes) -> bool:
        """Returns whether it can be restored and cut to exactly these tokens."""
        return self.tokens.startswith(tokens) and len(tokens) >= 4 * self.least


Prefix = Mapping[ModelName, Saved]  # of target and, if it is worth it, draft


def same_beginning(one: bytes | bytearray, other: bytes | bytearray | memoryview) -> int:
    """Returns how many first tokens two lists share."""
    end = min(len(one), len(other)) // 4 * 4
    if one.startswith(memoryview(other)[:end]):  # the usual case, at the speed of memory
        return end // 4
    differs = np.frombuffer(one, np.int32, end // 4) != np.frombuffer(other, np.int32, end // 4)
    return int(differs.argmax())


class PrefixStore:
    """Keeps prefixes, as many as `budget` bytes hold."""

    def __init__(self, budget: int) -> None:
        self.budget, self.n_bytes = budget, 0
        self._prefixes: list[Prefix] = []  # the last used at the end

    def __len__(self) -> int:
        return len(self._prefixes)

    def holds(self, tokens: bytes) -> bool:
        """Returns whether all of this is the beginning of a saved prefix, which then counts as used."""
        for prefix in reversed(self._prefixes):
            if prefix["target"].serves(tokens):
                self.use(prefix)
                return True
        return False

    def put(self, prefix: Prefix) -> None:
        """Saves a prefix; its own beginnings go, and the least recently used if it must."""
        new = prefix["target"]
        for old in [p for p in self._prefixes if new.serves(p["target"].tokens)]:
            self._drop(old)
        size = _n_bytes(prefix)
        if size > self.budget:
            return
        while self.n_bytes + size > self.budget:
            self._drop(self._prefixes[0])
        self._prefixes.append(prefix)
        self.n_bytes += size

    def best(self, tokens: bytes) -> tuple[Prefix | None, int]:
        """Returns the prefix that spares most of a prompt's tokens, and how many."""
        best, most = None, 0
        for prefix in self._prefixes:
            n = prefix["target"].useful(tokens)
            if n > most:
                best, most = prefix, n
        return best, most

    def use(self, prefix: Prefix) -> None:
        """Counts a prefix as used now, if it is still there."""
        others = [kept for kept in self._prefixes if kept is not prefix]
        if len(others) < len(self._prefixes):
            self._prefixes = [*others, prefix]

    def _drop(self, prefix: Prefix) -> None:
        self._prefixes = [kept for kept in self._prefixes if kept is not prefix]
        self.n_bytes -= _n_bytes(prefix)


def _n_bytes(prefix: Prefix) -> int:
    return sum(saved.n_bytes for saved in prefix.values())
