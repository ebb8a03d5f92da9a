"""What one sequence of a cache holds, and what of it a request has in common."""

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.media import positions


@dataclass(slots=True)
class HeldSequence:
    """What one sequence of the cache holds, and how far it can go back."""

    tokens: bytearray = field(default_factory=bytearray)  # int32 each
    snapshots: int = 0  # how many last tokens can be rolled back now
    checkpoint: tuple[int, NDArray[np.uint8] | None] = field(
        default=(0, None)
    )  # (tokens held then, state blob)
    media: bool = False  # there may be cells of pictures among the tokens
    shared: int = 0  # first tokens whose cells are another's as well

    @property
    def held(self) -> int:
        return len(self.tokens) // 4

    def keep(self, n: int) -> None:
        """Notes that only the first n tokens are held."""
        del self.tokens[4 * n :]
        self.media = self.media and n > 0
        self.shared = min(self.shared, n)

    def add(self, tokens: bytes) -> None:
        """Notes that further tokens are held, which may be cells of media."""
        self.tokens += tokens
        self.media = self.media or min(memoryview(tokens).cast("i"), default=0) < 0

    def position(self, n: int) -> int:
        """Returns the position after the first n tokens."""
        return positions(np.frombuffer(self.tokens, np.int32, n)) if self.media and n else n


def bytes_of(want: Want, start: int) -> bytes:
    """Returns tokens + tail from place `start` on."""
    tokens = want.tokens[start:].astype(np.int32, copy=False).tobytes()
    tail = want.tail[max(0, start - want.tokens.size) :]
    return tokens + array("i", tail).tobytes() if tail else tokens


def shared(held: bytearray, want: Want) -> int:
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
