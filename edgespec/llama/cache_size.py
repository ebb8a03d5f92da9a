"""How much memory a KV cache takes, known before llama.cpp is asked for it.

llama.cpp clears a cache when it makes it, so one that is too large ends the process instead of failing.
Hybrid models attend in some of their layers only; which ones is an array in the GGUF, and llama.cpp shows
single values alone, so arrays are read from the file.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import psutil

from edgespec.errors import SettingError
from edgespec.llama.model import Model
from edgespec.pairs.settings import KvType

BYTES: dict[str, float] = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}  # of one number

_STRING, _ARRAY = 8, 9  # GGUF's value types; the others have a fixed size
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def kv_bytes(model: Model, n_tokens: int, kv_type: KvType) -> int:
    """Returns about how many bytes a KV cache of `n_tokens` takes, an upper bound at worst."""
    meta, prefix = model.metadata, f"{model.architecture}."
    n_head = max([1, *_per_layer(model, "head_count")])
    head = int(meta.get(prefix + "embedding_length", 0)) // n_head
    width = sum(int(meta.get(f"{prefix}attention.{name}_length", head)) for name in ("key", "value"))
    return int(n_tokens * sum(_kv_heads(model)) * width * BYTES[kv_type])


def check_memory(model: Model, n_tokens: int, kv_type: KvType) -> None:
    """Refuses a cache larger than the free memory: llama.cpp would be killed by the system, not fail."""
    if model.on_gpu:  # the cache goes to its memory, and llama.cpp says by itself where that is too small
        return
    wanted, free = kv_bytes(model, n_tokens, kv_type), psutil.virtual_memory().available
    if wanted > free:
        raise SettingError(
            f"a context of {n_tokens:,} tokens takes about {wanted / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB of memory are free: ask for fewer with --ctx"
        )


def _kv_heads(model: Model) -> list[int]:
    """Returns for each layer how many heads have keys and values in the cache."""
    heads = _per_layer(model, "head_count_kv") or _per_layer(model, "head_count")
    interval = int(model.metadata.get(f"{model.architecture}.full_attention_interval", 1))
    return [n if (i + 1) % max(1, interval) == 0 else 0 for i, n in enumerate(heads)]


def _per_layer(model: Model, name: str) -> list[int]:
    """Returns a number of heads for every layer, as the file has it: one for all, or one for each."""
    key, layers = f"{model.architecture}.attention.{name}", f"{model.architecture}.block_count"
    if key in model.metadata:
        return [int(model.metadata[key])] * int(model.metadata[layers])
    return [int(value) for value in gguf_array(model.path, key)]


def gguf_array(path: Path, key: str) -> tuple[float, ...]:
    """Returns the numbers of an array in the head of a GGUF that was found sound; () if there is none."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _, _, _, n_pairs = struct.unpack_from("<IIQQ", data)
        at = 24
        for _ in range(n_pairs):
            size = struct.unpack_from("<Q", data, at)[0]
            name, kind = data[at + 8 : at + 8 + size], struct.unpack_from("<I", data, at + 8 + size)[0]
            at += 12 + size
            if kind == _ARRAY:
                of, n = struct.unpack_from("<IQ", data, at)
                if name == key.encode():
                    return struct.unpack_from(f"<{n}{_FORMATS[of]}", data, at + 12)
            at = _end(data, at, kind)
    return ()


def _end(data: mmap.mmap, at: int, kind: int) -> int:
    """Returns where a value ends that begins at `at`."""
    if kind == _STRING:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    if kind != _ARRAY:
        return at + struct.calcsize(_FORMATS[kind])
    of, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if of in _FORMATS:
        return at + int(n) * struct.calcsize("<" + _FORMATS[of])
    for _ in range(n):
        at = _end(data, at, of)
    return at
