"""A file with the saved state of a text, or a piece of one: written whole, and checked before it is used.

It begins as llama.cpp's own file of a sequence does (tokens and state), so llama-server can read a slot's;
behind that it says what the state depends on, with checksums of all. A kept prompt's file is named by its
key: a hash of all tokens up to its end, and of what the state depends on (the root). So a key says everything
about a state, and equal beginnings of texts have equal keys.
"""

import hashlib
import mmap
import os
import stat
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edgespec.llama.saved import Saved
from edgespec_models.kept_file import replacing

BLOCK = 2**20  # bytes that are checked at once
_HEAD = struct.Struct("<III")  # llama.cpp's magic, its version, words of tokens
_MAGIC, _VERSION = 0x67677371, 3  # LLAMA_STATE_SEQ_MAGIC, LLAMA_STATE_SEQ_VERSION
_PACKED = struct.Struct("<iII")  # before tokens, in llama-server's files: no token, version, tokens
_FIRST = _HEAD.size + _PACKED.size  # where tokens begin
_END = 4  # behind tokens: no pictures
# behind the state, `written` and row: ours, bytes of these two, tokens before it, least, the checksum of
# tokens and state, parent, the checksum of all before that: a wrong parent is another text's, or model's
_TAIL = struct.Struct("<8sIIIII32sI")
_SUMMED = _TAIL.size - 36
_OURS = b"EDGEKV02"
_NOTHING = np.empty(0, np.uint8)


class NotAStateError(Exception):
    """A file is no saved state, or a damaged one; says why in a clause."""


def key_of(parent: bytes, tokens: bytes) -> bytes:
    """Returns the key of a state. parent: the key of the state before it, or the root."""
    return hashlib.sha256(parent + tokens).digest()


@dataclass(frozen=True, slots=True)
class StateFile:
    """What a file has besides its state."""

    path: Path
    parent: bytes
    before: int  # tokens
    saved: Saved  # without its state
    n_state: int  # bytes
    checksum: int  # of what llama.cpp's own file has: tokens and state
    size: int  # bytes of the file

    @property
    def key(self) -> bytes:
        return key_of(self.parent, self.saved.tokens)

    @property
    def start(self) -> int:
        """Where the state begins."""
        return _FIRST + len(self.saved.tokens) + _END


def write_state(path: Path, parent: bytes, before: int, saved: Saved) -> StateFile:
    """Writes a state whole or not at all. Raises OSError."""
    row = b"" if saved.row is None else saved.row.tobytes()
    words = (_PACKED.size + len(saved.tokens) + _END) // 4
    head = _HEAD.pack(_MAGIC, _VERSION, words) + _PACKED.pack(-1, 1, len(saved.tokens) // 4)
    head += saved.tokens + bytes(_END)
    checksum = zlib.crc32(saved.state.data, zlib.crc32(head))
    fields = _OURS, len(saved.written), len(row), before, saved.least, checksum, parent
    tail_sum = zlib.crc32(saved.written + row + _TAIL.pack(*fields, 0)[:_SUMMED])
    tail = saved.written + row + _TAIL.pack(*fields, tail_sum)
    with replacing(path, private=True, sync=False) as aside, aside.open("wb", buffering=0) as file:
        for part in (memoryview(head), saved.state.data, memoryview(tail)):
            while part:  # one call may write less than all
                part = part[file.write(part) :]
    size = len(head) + saved.state.nbytes + len(tail)
    return StateFile(path, parent, before, replace(saved, state=_NOTHING), saved.state.nbytes, checksum, size)


def read_head(path: Path) -> StateFile:
    """Returns what a file says of itself. Raises NotAStateError and OSError."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
        raise NotAStateError("it is no slot's file")
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _FIRST + _END + _TAIL.size:
            raise NotAStateError("it is no slot's file")
        magic, version, n_words = _HEAD.unpack(file.read(_HEAD.size))
        no_token, _, n = _PACKED.unpack(file.read(_PACKED.size))
        file.seek(size - _TAIL.size)
        fields = file.read(_TAIL.size)
        ours, n_written, n_row, before, least, checksum, parent, tail_sum = _TAIL.unpack(fields)
        n_state = size - _FIRST - 4 * n - _END - n_written - n_row - _TAIL.size
        right = n_words == _PACKED.size // 4 + n + _END // 4 and n_state >= 0 and n_row % 4 == 0
        if (magic, version, no_token, ours) != (_MAGIC, _VERSION, -1, _OURS) or not right:
            raise NotAStateError("it is not one that EdgeSpec has saved, or it is damaged")
        file.seek(_FIRST)
        tokens = file.read(4 * n)
        file.seek(size - _TAIL.size - n_written - n_row)
        texts = file.read(n_written + n_row)
    if zlib.crc32(texts + fields[:_SUMMED]) != tail_sum:
        raise NotAStateError("it is damaged")
    row = np.frombuffer(texts, np.float32, n_row // 4, n_written) if n_row else None
    saved = Saved(tokens, _NOTHING, least, row, texts[:n_written])
    return StateFile(path, parent, before, saved, n_state, checksum, size)


def read_state(kept: StateFile, *, copied: bool = False) -> Saved:
    """Returns a state as the system's file cache holds it, without a copy. copied: others may write the file.

    Raises NotAStateError and OSError.
    """
    with kept.path.open("rb", buffering=0) as file:
        head = _read(file, kept.start)
        right = head[_FIRST : kept.start - _END] == kept.saved.tokens
        if copied:
            state = np.frombuffer(_read(file, kept.n_state), np.uint8)
            found = zlib.crc32(state.data, zlib.crc32(head))
        else:
            found, left, view = zlib.crc32(head), kept.n_state, memoryview(bytearray(BLOCK))
            while left and (n := file.readinto(view[: min(left, BLOCK)])):
                found = zlib.crc32(view[:n], found)
                left -= n
            right = right and not left
        if not right or found != kept.checksum:
            raise NotAStateError("it is damaged")
        if not copied:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            state = np.frombuffer(mapped, np.uint8, kept.n_state, kept.start)
    return replace(kept.saved, state=state)


def _read(file: BinaryIO, n: int) -> bytes:
    """Returns n bytes, or fewer at the end of the file."""
    found = bytearray()
    while len(found) < n and (more := file.read(n - len(found))):
        found += more
    return bytes(found)
