"""Reads a GGUF file up to its weights: metadata and the list of tensors, from disk or from afar.

Nothing says where a header ends, so it is read in blocks, each when it is needed: of a file on the hub only
the first megabytes are fetched. The gguf package reads whole local files and makes an array of every token:
seconds for a large vocabulary. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Invariant: nothing in the file is trusted before it was compared with what is possible (sizes, types, counts),
so a damaged or hostile file ends in HeaderError, quickly and in bounded memory.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from edgespec_models.gguf.limits import MOST_KEYS, MOST_TENSORS, MOST_TEXTS, bad_number, bad_tensor

BLOCK = 1 << 20  # bytes asked for at a time
LONGEST = 64_000_000  # bytes; Llama 3's and Qwen 2.5's headers have 8 and 6 million
DEFAULT_ALIGNMENT = 32
MOST_DIMENSIONS = 4
MOST_PARTS = 999  # files of one model

BOOL, STRING, ARRAY = 7, 8, 9  # GGUF's numbers of types
_CODES = {kind: code for kind, code in enumerate("BbHhIif?  Qqd") if code != " "}

Scalar = bool | int | float | str
Value = Scalar | list[bytes] | array  # type: ignore[type-arg] # strings in arrays stay bytes: tokens need not be UTF-8


class HeaderError(Exception):
    """The file is not a GGUF that EdgeSpec can read; the message is one sentence for a user."""


class ByteSource(Protocol):
    """Bytes that can be read at any offset."""

    name: str  # for messages
    size: int | None  # bytes of the whole file; None if unknown

    def read(self, offset: int, n: int) -> bytes:
        """Returns up to n bytes from offset; fewer only at the end."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's place and type."""

    name: str
    shape: tuple[int, ...]  # as in GGUF: the dimension that varies fastest comes first
    type: int  # ggml's number of the type
    offset: int  # bytes from the first weight
    n_bytes: int | None  # up to the next tensor, padding included; None if unknown


@dataclass(frozen=True, slots=True)
class Header:
    """All of a GGUF file before its weights."""

    name: str
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    raw: bytes = field(repr=False)  # the unparsed header, up to the first weight
    file_size: int | None

    def text(self, key: str, default: str = "") -> str:
        """Returns a string of the metadata; `default` if there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default

    def number(self, key: str, default: int | None = None) -> int | None:
        """Returns a whole number of the metadata, of an array its largest; `default` if there is none."""
        value = self.metadata.get(key)
        if isinstance(value, array) and value and value.typecode not in "fd":
            return int(max(value))
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def flag(self, key: str) -> bool | None:
        """Returns a truth value of the metadata; None if there is none."""
        value = self.metadata.get(key)
        return value if isinstance(value, bool) else None

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def of_architecture(self, key: str, default: int | None = None) -> int | None:
        """Returns the whole number under `<architecture>.<key>`."""
        return self.number(f"{self.architecture}.{key}", default)


class _FileSource:
    """A file on this machine, to be read in a `with`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = str(path)
        try:
            if Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir()):
                raise HeaderError(f"{path} is not an ordinary file: name a .gguf file")
            self._file = open(path, "rb")
            self.size: int | None = os.fstat(self._file.fileno()).st_size
        except FileNotFoundError:
            raise HeaderError(f"there is no file {path}: check the path") from None
        except IsADirectoryError:
            raise HeaderError(f"{path} is a folder: name the .gguf file in it") from None
        except OSError as error:
            raise HeaderError(f"{path} cannot be read: {error.strerror}") from None

    def read(self, offset: int, n: int) -> bytes:
        """Returns up to n bytes from offset."""
        try:
            self._file.seek(offset)
            return self._file.read(n)
        except OSError as error:
            raise HeaderError(f"{self.name} cannot be read: {error.strerror}") from None

    def close(self) -> None:
        self._file.close()


def read_file(path: str | os.PathLike[str]) -> Header:
    """Returns the header of a file on this machine; callers must not change it. Raises HeaderError.

    Reading a vocabulary takes 0.1 to 0.3 s, and loading a pair asks for it several times: the last headers
    are kept for as long as their files stay as they are.
    """
    try:
        now = os.stat(path)
    except (OSError, ValueError):
        return _read(path)  # raises, with the reason
    return _kept(os.fspath(path), (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns))


@lru_cache(maxsize=4)
def _kept(path: str, _of: tuple[int, ...]) -> Header:
    return _read(path)


def _read(path: str | os.PathLike[str]) -> Header:
    with closing(_FileSource(path)) as source:
        return read_header(source)


def check_beginning(path: str | os.PathLike[str]) -> None:
    """Raises HeaderError for what its first bytes show to be no GGUF file of this byte order."""
    with closing(_FileSource(path)) as source:
        _Cursor(source, LONGEST).begin()


def read_header(source: ByteSource, *, longest: int = LONGEST) -> Header:
    """Returns the header of any source, read in blocks. Raises HeaderError, and the source's errors."""
    cursor = _Cursor(source, longest)
    cursor.begin()
    n_tensors, n_keys = cursor.number("Q"), cursor.number("Q")
    if n_tensors > MOST_TENSORS or n_keys > MOST_KEYS:
        raise HeaderError(f"{source.name} is damaged: it claims {n_tensors:,} tensors and {n_keys:,} keys")
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.number("I"))
    found = [cursor.tensor() for _ in range(n_tensors)]
    if wrong := bad_number(metadata):
        raise HeaderError(f"{source.name} is damaged: {wrong}")
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    assert isinstance(alignment, int)
    start = -(-cursor.at // alignment) * alignment if found else cursor.at
    cursor.reaches(start)  # only padding may be missing
    raw = cursor.held[:start].ljust(start, b"\0")
    tensors = _with_sizes(source, found, None if source.size is None else source.size - start)
    for tensor in tensors:
        if wrong := bad_tensor(tensor.name, tensor.shape, tensor.type, tensor.n_bytes):
            raise HeaderError(f"{source.name} is cut short or damaged: {wrong}; download it again")
    return Header(source.name, metadata, tensors, raw, source.size)


def _with_sizes(source: ByteSource, found: list[Tensor], room: int | None) -> tuple[Tensor, ...]:
    """Adds each tensor's size, which is where the next one begins. room: bytes of all weights."""
    begins = sorted({tensor.offset for tensor in found})
    ends = dict(zip(begins, [*begins[1:], room], strict=False))
    if room is not None and begins and begins[-1] >= room:
        raise HeaderError(
            f"{source.name} is cut short: it ends before its last tensor begins; download it again"
        )
    return tuple(
        replace(t, n_bytes=None if (end := ends[t.offset]) is None else end - t.offset) for t in found
    )


class _Cursor:
    """Reads values one after the other, and fetches their blocks."""

    def __init__(self, source: ByteSource, longest: int) -> None:
        self.source, self.longest = source, longest
        self.held = b""
        self.at = 0
        self.n_texts = 0  # in lists

    def reaches(self, end: int) -> bool:
        """Fetches bytes up to `end`; False if the file ends before."""
        while len(self.held) < end:
            n = min(max(BLOCK, end - len(self.held)), self.longest - len(self.held))
            if n <= 0:
                raise HeaderError(f"{self.source.name} has no end of its header in {self.longest:,} bytes")
            block = self.source.read(len(self.held), n)
            self.held += block
            if not block:
                return False
        return True

    def need(self, n: int) -> int:
        """Skips n required bytes; returns where they begin."""
        begin, self.at = self.at, self.at + n
        if self.at > len(self.held):
            if self.source.size is not None and self.at > self.source.size or not self.reaches(self.at):
                raise HeaderError(
                    f"{self.source.name} is cut short in its header, or damaged: download it again"
                )
        return begin

    def number(self, code: str) -> Any:
        begin = self.need(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self.held, begin)[0]

    def string(self) -> bytes:
        length = self.number("Q")
        begin = self.need(length)
        return self.held[begin : begin + length]

    def text(self) -> str:
        return self.string().decode("utf-8", "replace")

    def begin(self) -> None:
        name = self.source.name
        if not self.reaches(8) or self.held[:4] != b"GGUF":
            what = "is not a GGUF file" if self.held else "is empty"
            raise HeaderError(f"{name} {what}: EdgeSpec runs models in GGUF format")
        self.at = 4
        version = self.number("I")
        if version and version & 0xFFFF == 0:
            raise HeaderError(f"{name} is a big-endian GGUF: convert it, or download one for this machine")
        if version not in (2, 3):
            raise HeaderError(f"{name} is a GGUF of version {version}: versions 2 and 3 can be read here")

    def tensor(self) -> Tensor:
        name, n_dimensions = self.text(), self.number("I")
        if n_dimensions > MOST_DIMENSIONS:
            raise HeaderError(f"{self.source.name} is damaged: tensor {name} has {n_dimensions} dimensions")
        shape = tuple(self.number("Q") for _ in range(n_dimensions))
        return Tensor(name, shape, type=self.number("I"), offset=self.number("Q"), n_bytes=None)

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        if kind not in _CODES:
            raise HeaderError(f"{self.source.name} is damaged: it holds a value of the unknown type {kind}")
        return self.number(_CODES[kind])  # type: ignore[no-any-return]

    def array(self) -> Value:
        kind, length = self.number("I"), self.number("Q")
        if kind == STRING:
            return self.strings(length)
        if kind not in _CODES:
            raise HeaderError(f"{self.source.name} has an array of type {kind}, which is not known here")
        begin = self.need(length * struct.calcsize(f"<{_CODES[kind]}"))
        code = "B" if kind == BOOL else _CODES[kind]
        return array(code, self.held[begin : self.at])  # in this machine's order: little-endian

    def strings(self, length: int) -> list[bytes]:
        self.n_texts += length
        if self.n_texts > MOST_TEXTS:
            raise HeaderError(f"{self.source.name} is damaged: it claims a list of {length:,} strings")
        found, unpack = [], struct.Struct("<Q").unpack_from
        for _ in range(length):
            at = self.at
            if at + 8 > len(self.held):
                self.need(8)
                self.at = at
            (n,) = unpack(self.held, at)
            self.at = at + 8
            if at + 8 + n > len(self.held):
                self.need(n)
            found.append(self.held[at + 8 : at + 8 + n])
            self.at = at + 8 + n
        return found


_PART = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)


def split_names(name: str) -> list[str]:
    """Returns the names of all parts of the model that file `name` belongs to: [name] if it is not split."""
    match = _PART.match(name)
    count = int(match["count"]) if match else 0
    if not match or not 1 <= count <= MOST_PARTS:
        return [name]
    return [f"{match['stem']}-{no:05d}-of-{count:05d}{name[-5:]}" for no in range(1, count + 1)]
