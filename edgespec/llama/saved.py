"""Saved sequences in host memory: states of target and draft, by their tokens.

A prefix that is no longer in a slot need not be evaluated again: its state is copied back. Where a model
cannot go back in its text, checkpoints lie with the prefixes: the part of a state that cannot be cut, as it
was at some places of a text. The store has a budget of bytes for both. What spares the fewest tokens for its
bytes goes first, among equals the least recently used. It knows nothing of llama.cpp.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import ModelName

LARGEST = 4  # a checkpoint takes no more than this part of the budget


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of one sequence of one context."""

    tokens: bytes  # int32 each
    state: NDArray[np.uint8]  # llama.cpp's own bytes
    least: int  # restored, it can be cut to no fewer tokens: all of them for recurrent state
    row: NDArray[np.float32] | None = None  # the hidden row of the last token, if a head reads them
    written: bytes = b""  # the same text in the tokens of a draft with another vocabulary, guesses included

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) // 4

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


@dataclass(slots=True, eq=False)
class _Kept:
    """A prefix, or a checkpoint of one context, and what it is worth."""

    states: Prefix
    spares: int  # tokens that would be evaluated again without it
    used: float  # the store's clock when it was used last

    @property
    def n_bytes(self) -> int:
        return sum(saved.n_bytes for saved in self.states.values())

    @property
    def worth(self) -> float:
        return self.used + self.spares / self.n_bytes


class PrefixStore:
    """Keeps prefixes and checkpoints, as many as `budget` bytes hold.

    Its clock is the worth of what was dropped last (GreedyDual-Size, Cao and Irani 1997): so even what spares
    much goes if it is not used for long.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.n_bytes = budget, 0
        self._prefixes: list[_Kept] = []  # the last used at the end
        self._checkpoints: dict[ModelName, list[_Kept]] = {"target": [], "draft": []}
        self._clock = 0.0

    def __len__(self) -> int:
        return len(self._prefixes)

    def holds(self, tokens: bytes) -> bool:
        """Returns whether all of this is the beginning of a saved prefix, which then counts as used."""
        for kept in reversed(self._prefixes):
            if kept.states["target"].serves(tokens):
                self.use(kept.states)
                return True
        return False

    def put(self, prefix: Prefix) -> None:
        """Saves a prefix; its own beginnings go, and what is worth least if it must."""
        new = prefix["target"]
        for old in [kept for kept in self._prefixes if new.serves(kept.states["target"].tokens)]:
            self._drop(old, self._prefixes)
        self._put(_Kept(prefix, new.n_tokens, self._clock), self._prefixes)

    def best(self, tokens: bytes) -> tuple[Prefix | None, int]:
        """Returns the prefix that spares most of a prompt's tokens, and how many."""
        best, most = None, 0
        for kept in self._prefixes:
            n = self._useful(kept.states["target"], tokens)
            if n > most:
                best, most = kept.states, n
        return best, most

    def _useful(self, saved: Saved, tokens: bytes) -> int:
        if n := saved.useful(tokens):
            return n
        checkpoint = self.checkpoint("target", saved.tokens, same_beginning(saved.tokens, tokens[:-4]))
        return checkpoint.n_tokens if checkpoint else 0

    def use(self, prefix: Prefix) -> None:
        """Counts a prefix as used now, if it is still there."""
        for kept in self._prefixes:
            if kept.states is prefix:
                kept.used = self._clock
                self._prefixes.remove(kept)
                self._prefixes.append(kept)
                return

    # ---- checkpoints -------------------------------------------------------------------------------------

    def takes(self, n_bytes: int) -> bool:
        """Returns whether a checkpoint of so many bytes is kept."""
        return LARGEST * n_bytes <= self.budget

    def checkpoint(self, name: ModelName, tokens: bytes | bytearray, n: int) -> Saved | None:
        """Returns the last checkpoint that lies within the first n of these tokens; it counts as used."""
        best = None
        for kept in self._checkpoints[name]:
            at = kept.states[name].n_tokens
            if (best is None or at > best.states[name].n_tokens) and at <= n:
                best = kept if tokens.startswith(kept.states[name].tokens) else best
        if best is None:
            return None
        best.used = self._clock
        return best.states[name]

    def checkpoints(self, name: ModelName, tokens: bytes) -> list[Saved]:
        """Returns all checkpoints of a text."""
        return [
            one for kept in self._checkpoints[name] if tokens.startswith((one := kept.states[name]).tokens)
        ]

    def put_checkpoint(self, name: ModelName, saved: Saved) -> None:
        """Keeps a checkpoint; it spares what lies between it and the one before."""
        before = self.checkpoint(name, saved.tokens, saved.n_tokens)
        n_before = before.n_tokens if before else 0
        if n_before < saved.n_tokens:
            new = _Kept({name: saved}, saved.n_tokens - n_before, self._clock)
            self._put(new, self._checkpoints[name])

    def _put(self, new: _Kept, among: list[_Kept]) -> None:
        """Adds one, unless it is a checkpoint and worth less than what would have to go."""
        if new.n_bytes > self.budget:
            return
        while self.n_bytes + new.n_bytes > self.budget:
            lists = [self._prefixes, *self._checkpoints.values()]
            every = ((kept, kepts) for kepts in lists for kept in kepts)
            least, where = min(every, key=lambda one: one[0].worth)
            if among is not self._prefixes and new.worth < least.worth:
                self._clock = max(self._clock, new.worth)
                return
            self._clock = max(self._clock, least.worth)
            self._drop(least, where)
        among.append(new)
        self.n_bytes += new.n_bytes

    def _drop(self, old: _Kept, among: list[_Kept]) -> None:
        among.remove(old)
        self.n_bytes -= old.n_bytes
        if among is self._prefixes:
            return
        ((name, gone),) = old.states.items()
        behind = [kept for kept in among if kept.states[name].tokens.startswith(gone.tokens)]
        for kept in behind:  # each spares what this one spared as well, if none lies between them
            if kept.states[name].n_tokens - kept.spares == gone.n_tokens:
                kept.spares += old.spares
