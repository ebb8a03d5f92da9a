"""A file with the saved state of a text, or a piece of one: written whole, and checked before it is used.

A file's name is its key: a hash of all tokens up to its end, and of what the state depends on (the root). So
a key says everything about a state, and equal beginnings of texts have equal keys.
"""

import hashlib
import mmap
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgespec.llama.saved import Saved
from edgespec_models.kept_file import replacing

ENDING = ".state"
BLOCK = 2**20  # bytes that are checked at once
_MAGIC = b"EDGEKV01"
# magic, parent, tokens before it, least, the state's checksum; bytes of tokens, `written`, row and state
_HEAD = struct.Struct("<8s32sIIIIIIQ")
_SUM = struct.Struct("<I")
_NOTHING = np.empty(0, np.uint8)


def key_of(parent: bytes, tokens: bytes) -> bytes:
    """Returns the key of a state. parent: the key of the state before it, or the root."""
    return hashlib.sha256(parent + tokens).digest()


@dataclass(frozen=True, slots=True)
class StateFile:
    """What the head of a file says."""

    path: Path
    parent: bytes
    before: int  # tokens
    saved: Saved  # without its state
    n_state: int  # bytes
    checksum: int  # of the state
    start: int  # of the state in the file

    @property
    def key(self) -> bytes:
        return key_of(self.parent, self.saved.tokens)


def write_state(folder: Path, parent: bytes, before: int, saved: Saved) -> StateFile:
    """Writes a state whole or not at all. Raises OSError."""
    row = b"" if saved.row is None else saved.row.tobytes()
    lengths = len(saved.tokens), len(saved.written), len(row)
    checksum = zlib.crc32(saved.state.data)
    head = _HEAD.pack(_MAGIC, parent, before, saved.least, checksum, *lengths, saved.state.nbytes)
    head += saved.tokens + saved.written + row
    head += _SUM.pack(zlib.crc32(head))
    path = folder / (key_of(parent, saved.tokens).hex() + ENDING)
    with replacing(path, private=True, sync=False) as aside, aside.open("wb", buffering=0) as file:
        for part in (memoryview(head), saved.state.data):
            while part:  # one call may write less than all
                part = part[file.write(part) :]
    said = replace(saved, state=_NOTHING)
    return StateFile(path, parent, before, said, saved.state.nbytes, checksum, len(head))


def read_head(path: Path) -> StateFile | None:
    """Returns what a file says of itself; None for what is not whole, or none of ours. Raises OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        magic, parent, before, least, checksum, n_tokens, n_written, n_row, n_state = _HEAD.unpack(head)
        size = path.stat().st_size
        start = _HEAD.size + n_tokens + n_written + n_row + _SUM.size
        if magic != _MAGIC or size != start + n_state:
            return None
        rest = file.read(start - _HEAD.size)
    texts, sum_ = rest[: -_SUM.size], rest[-_SUM.size :]
    if len(rest) != start - _HEAD.size or _SUM.pack(zlib.crc32(head + texts)) != sum_:
        return None
    row = np.frombuffer(texts, np.float32, n_row // 4, n_tokens + n_written) if n_row else None
    written = texts[n_tokens : n_tokens + n_written]
    saved = Saved(texts[:n_tokens], _NOTHING, least, row, written)
    found = StateFile(path, parent, before, saved, n_state, checksum, start)
    return found if path.name == found.key.hex() + ENDING else None


def read_state(kept: StateFile) -> Saved | None:
    """Returns a state as the system's file cache holds it, without a copy; None if it is damaged.

    Raises OSError.
    """
    with kept.path.open("rb", buffering=0) as file:
        view = memoryview(bytearray(BLOCK))
        file.seek(kept.start)
        left, found = kept.n_state, 0
        while left and (n := file.readinto(view[: min(left, BLOCK)])):
            found = zlib.crc32(view[:n], found)
            left -= n
        if left or found != kept.checksum:
            return None
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return replace(kept.saved, state=np.frombuffer(mapped, np.uint8, kept.n_state, kept.start))
