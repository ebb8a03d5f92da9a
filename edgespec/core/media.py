"""Pictures and sounds in a list of tokens: what stands for their cells, and what that says.

A medium takes as many cells of a cache as it has embeddings, and each cell is a negative number in the list.
Its bits are of the content's hash, so equal beginnings of lists are equal beginnings of what was read, media
included, and everything that compares token ids works as before. Two bits say where a medium begins, and
which cells take no position: with M-RoPE a picture of 15 cells may take 5. So positions follow from the list.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
_MEDIUM, _BEGINS, _NO_POSITION = 1 << 30, 1 << 29, 1 << 28  # bits of ~id; those below are of the hash


def cells(content: bytes, n: int, n_positions: int) -> Tokens:
    """Returns what stands for the n cells of a medium. content: what tells it from all others."""
    drawn = np.frombuffer(hashlib.shake_128(content).digest(4 * n), np.int32) & (_NO_POSITION - 1)
    bits = drawn | _MEDIUM
    bits[0] |= _BEGINS
    bits[n_positions:] |= _NO_POSITION
    return ~bits


def is_cell(token: int) -> bool:
    """Returns whether a number stands for a cell of a medium."""
    return token < 0 and bool(~token & _MEDIUM)


def cuts(tokens: Tokens, n: int) -> bool:
    """Returns whether the first n tokens end within a medium."""
    if not 0 < n < tokens.size:
        return False
    token = tokens.item(n)
    return token < 0 and not ~token & _BEGINS


def whole_before(tokens: Tokens, n: int) -> int:
    """Returns how many of the first n tokens end no later than with a whole medium."""
    if not cuts(tokens, n):
        return n
    return int(np.flatnonzero((tokens[:n] < 0) & (~tokens[:n] & _BEGINS > 0))[-1])


def whole_after(tokens: Tokens, n: int) -> int:
    """Returns where a medium ends that the first n tokens cut; n if they cut none."""
    while cuts(tokens, n):
        n += 1
    return n


def positions(tokens: Tokens) -> int:
    """Returns the position after these tokens."""
    return tokens.size - int(np.count_nonzero((tokens < 0) & (~tokens & _NO_POSITION > 0)))


def begun(tokens: Tokens) -> int:
    """Returns how many media begin among these tokens."""
    return int(np.count_nonzero((tokens < 0) & (~tokens & _BEGINS > 0)))


def text_of(tokens: Tokens) -> Tokens:
    """Returns the tokens without media."""
    return tokens[tokens >= 0]


def end_of_media(tokens: Tokens) -> int:
    """Returns how many first tokens end with the last medium; 0 if there is none."""
    found = np.flatnonzero(tokens < 0)
    return int(found[-1]) + 1 if found.size else 0


def runs(tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of each stretch of text and of each medium."""
    media = tokens < 0
    begins = np.flatnonzero(media & (~tokens & _BEGINS > 0) | np.diff(media, prepend=media[:1]))
    edges = sorted({0, *begins.tolist(), tokens.size})
    yield from zip(edges, edges[1:], strict=False)
