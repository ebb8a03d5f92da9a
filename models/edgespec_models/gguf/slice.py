"""A few layers of a model, with random weights, as a GGUF file: enough to learn what a layer costs.

Made from the header alone, so nothing has to be downloaded. The first layers keep their places, because
a layer's kind may depend on its number (attention or recurrence, dense or experts, window or not); their
number formats are taken evenly from all layers of the same shape, because quantisers give the first and last
ones more bits. Vocabulary, embeddings and output stay whole: they cost the same whatever the depth.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgespec_models.gguf.header import Header, Tensor
from edgespec_models.gguf.number_formats import n_bytes
from edgespec_models.gguf.random_blocks import random_bytes

ALIGNMENT, PAGE = 32, 4096
FILLER = b"edgespec.filler"
VOCABULARY = ("output.weight", "token_embd.weight")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_INTEGERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}


@dataclass(frozen=True, slots=True)
class Layers:
    """A model's tensors by layer. used: the share of its experts that one token needs."""

    header: Header
    layers: tuple[tuple[Tensor, ...], ...]
    others: tuple[Tensor, ...]  # embeddings, output, norms: in no layer
    used: float
    blocks: tuple[tuple[Tensor, ...], ...] = ()  # layers after those, which only guess further tokens

    @property
    def rhythm(self) -> tuple[int, int]:
        """Returns (lead, period): how many first layers are like none after them, and after how many layers
        shapes repeat from there on. (0, all) if they never do."""
        numbers: dict[frozenset[tuple[str, tuple[int, ...]]], int] = {}  # which are quick to compare
        kinds = [numbers.setdefault(_kind(layer), len(numbers)) for layer in self.layers]
        n = len(kinds)
        for both in range(1, n):
            for period in range(1, both + 1):
                lead = both - period
                if lead + 2 * period <= n and kinds[lead : n - period] == kinds[lead + period :]:
                    return lead, period
        return 0, n

    def read(self, layers: Sequence[Sequence[Tensor]]) -> int:
        """Returns the bytes that evaluating one token reads in these layers."""
        return sum(self._read(tensor) for layer in layers for tensor in layer)

    def stored(self, layers: Sequence[Sequence[Tensor]]) -> int:
        """Returns the bytes of these layers."""
        return sum(n_bytes(t.shape, t.type, t.name) for layer in layers for t in layer)

    def _read(self, tensor: Tensor) -> int:
        size = n_bytes(tensor.shape, tensor.type, tensor.name)
        return int(size * self.used) if "_exps." in tensor.name else size

    @property
    def size(self) -> int:
        """Bytes of all weights."""
        return self.stored((self.others, *self.layers))

    @property
    def output(self) -> int:
        """Bytes of the rows that make logits: the embedding's, if these are tied; 0 in a head without any."""
        sizes = {tensor.name: self._read(tensor) for tensor in self.others if tensor.name in VOCABULARY}
        return next((sizes[name] for name in VOCABULARY if name in sizes), 0)

    def slice(self, n: int) -> tuple[tuple[Tensor, ...], ...]:
        """Returns n first layers, with the number formats of layers taken evenly from all of their kind."""
        kinds = [_kind(layer) for layer in self.layers]
        found = []
        for kind in dict.fromkeys(kinds[:n]):
            members = [i for i, other in enumerate(kinds) if other == kind]
            places = [i for i in range(n) if kinds[i] == kind]
            step = len(members) / len(places)
            for k, place in enumerate(places):
                source = self.layers[members[int((k + 0.5) * step)]]
                found.append((place, tuple(_renamed(tensor, place) for tensor in source)))
        return tuple(layer for _, layer in sorted(found, key=lambda entry: entry[0]))


def layers_of(headers: Sequence[Header]) -> Layers:
    """Returns a model's tensors by layer. headers: of all its parts, the first with the metadata."""
    head = headers[0]
    extra = head.of_architecture("nextn_predict_layers", 0) or 0  # layers that only guess further tokens
    n = (head.of_architecture("block_count", 0) or 0) - extra
    layers: list[list[Tensor]] = [[] for _ in range(n + extra)]
    others = []
    for tensor in (tensor for header in headers for tensor in header.tensors):
        match = _BLOCK.match(tensor.name)
        if match is None:
            others.append(tensor)
        elif int(match[1]) < n + extra:
            layers[int(match[1])].append(tensor)
    experts = head.of_architecture("expert_count", 0) or 0
    used = head.of_architecture("expert_used_count", 0) or 0
    share = min(1.0, used / experts) if experts else 1.0
    made = tuple(map(tuple, layers))
    return Layers(head, made[:n], tuple(others), share, made[n:])


def write_slice(path: Path, model: Layers, n: int) -> None:
    """Writes the model with its first n layers and random weights. Raises UnknownFormatError, OSError."""
    layers = [tensor for layer in model.slice(n) for tensor in layer]
    _write(path, [*model.others, *layers], list(_metadata(model, n)), model.header)


def _write(path: Path, tensors: Sequence[Tensor], pairs: list[bytes], header: Header) -> None:
    """Writes tensors with random weights after such metadata, as long as that of `header`."""
    rng = np.random.default_rng(0)
    infos, at = [], 0
    for tensor in tensors:
        name = tensor.name.encode()
        infos.append(
            struct.pack("<Q", len(name))
            + name
            + struct.pack("<I", len(tensor.shape))
            + struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape)
            + struct.pack("<IQ", tensor.type, at)
        )
        at += _padded(n_bytes(tensor.shape, tensor.type, tensor.name))
    pairs.append(_filler(24 + sum(map(len, [*pairs, *infos])), len(header.raw)))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(infos)
    with open(path, "wb") as file:
        file.write(head)
        for tensor in tensors:
            begin = file.tell()
            for piece in random_bytes(tensor.shape, tensor.type, tensor.name, rng):
                file.write(piece)
            file.write(b"\0" * (_padded(file.tell() - begin) - (file.tell() - begin)))


def _filler(length: int, wanted: int) -> bytes:
    """Returns a pair with which a header of `length` bytes is as long as `wanted`, except for whole pages.

    Weights then have the model's alignment: if a file is mapped into memory, evaluations of 2 to 6 tokens
    of Q8_0 took a quarter longer with weights at multiples of 64 bytes than 32 beside them.
    """
    length += 8 + len(FILLER) + 4 + 8
    n = (wanted - length) % PAGE
    return struct.pack("<Q", len(FILLER)) + FILLER + struct.pack("<IQ", _STRING, n) + b" " * n


def _kind(layer: Sequence[Tensor]) -> frozenset[tuple[str, tuple[int, ...]]]:
    """Returns what makes two layers of one kind: the same parts of the same shapes."""
    return frozenset((_part(tensor), tensor.shape) for tensor in layer)


def _part(tensor: Tensor) -> str:
    match = _BLOCK.match(tensor.name)
    return match[2] if match else tensor.name


def _renamed(tensor: Tensor, layer: int) -> Tensor:
    return Tensor(f"blk.{layer}.{_part(tensor)}", tensor.shape, tensor.type, 0, None)


def _padded(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


def _metadata(model: Layers, n: int) -> Iterator[bytes]:
    """Yields the metadata in the file's format, with the number of layers and the lists of them cut to n."""
    head = model.header
    prefix = f"{head.architecture}.".encode()
    whole = head.of_architecture("block_count", 0) or 0
    for key, kind, value in _walk(head.raw):
        if key.startswith(b"split.") or key in (b"general.alignment", FILLER):
            continue
        if key in (prefix + b"block_count", prefix + b"nextn_predict_layers"):
            value = struct.pack(f"<{_INTEGERS[kind]}", n * key.endswith(b"block_count"))
        elif kind == _ARRAY and key.startswith(prefix):
            value = _cut(value, whole, n)
        yield struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def _cut(value: bytes, whole: int, n: int) -> bytes:
    """Returns an array of one number for each layer cut to n of them; others whole."""
    of, length = struct.unpack_from("<IQ", value)
    if length != whole or not whole or of not in _SIZES:
        return value
    numbers, size = value[12:] * -(-n // whole), _SIZES[of]  # deeper than the original: repeated
    return struct.pack("<IQ", of, n) + numbers[: n * size]


def _walk(raw: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields (key, type, unparsed value) of a header that was read before, and so is sound."""
    (n_pairs,) = struct.unpack_from("<Q", raw, 16)
    at = 24
    for _ in range(n_pairs):
        (size,) = struct.unpack_from("<Q", raw, at)
        key = raw[at + 8 : at + 8 + size]
        (kind,) = struct.unpack_from("<I", raw, at + 8 + size)
        begin = at + 12 + size
        at = _end(raw, begin, kind)
        yield key, kind, raw[begin:at]


def _end(raw: bytes, at: int, kind: int) -> int:
    """Returns the end of a value that begins at `at`."""
    if kind == _STRING:
        return at + 8 + int(struct.unpack_from("<Q", raw, at)[0])
    if kind != _ARRAY:
        return at + _SIZES[kind]
    of, n = struct.unpack_from("<IQ", raw, at)
    at += 12
    if of in _SIZES:
        return at + int(n) * _SIZES[of]
    for _ in range(n):
        at = _end(raw, at, of)
    return at
