"""A target's GGUF file, read for its weights and numbers."""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec_models.distill.head import HeadShape


def number(reader: gguf.GGUFReader, key: str) -> float:
    """Return a number of the metadata."""
    field = reader.get_field(key)
    if field is None:
        raise KeyError(f"{key} is not in the file's metadata")
    return float(field.contents())


def separate(weight: NDArray[np.float32], heads: int, head_dim: int) -> NDArray[np.float32]:
    """Reorder the rows of each head from (a0 b0 a1 b1 ..) to (a0 a1 .. b0 b1 ..); undoes `interleave`."""
    rows = weight.reshape(heads, head_dim // 2, 2, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


@dataclass(frozen=True, slots=True)
class TargetFile:
    """Hold a llama-architecture GGUF file with a tied embedding, its weights as float32."""

    reader: gguf.GGUFReader

    def whole(self, key: str) -> int:
        return int(number(self.reader, f"llama.{key}"))

    def text(self, key: str) -> str:
        """Return an entry of the metadata as text."""
        field = self.reader.get_field(key)
        if field is None:
            raise KeyError(f"{key} is not in the metadata of {self.reader.data.filename}")
        return str(field.contents())

    def weight(self, name: str) -> NDArray[np.float32]:
        """Return a tensor by its name without `.weight`; query and key rows in the order of `model.py`."""
        found = next(t for t in self.reader.tensors if t.name == f"{name}.weight")
        weight = np.array(gguf.quants.dequantize(found.data, found.tensor_type), np.float32)
        if name.endswith(("attn_q", "attn_k")):
            heads = self.whole("attention.head_count" + ("_kv" if name.endswith("attn_k") else ""))
            weight = separate(weight, heads, weight.shape[0] // heads)
        return weight

    def shape(self, kind: str, vocab: int) -> HeadShape:
        """Return the shape of a head with the widths of one of the target's blocks."""
        heads, width = self.whole("attention.head_count"), self.whole("embedding_length")
        return HeadShape(
            kind=kind,
            width=width,
            heads=heads,
            kv_heads=self.whole("attention.head_count_kv"),
            head_dim=width // heads,
            ffn=self.whole("feed_forward_length"),
            vocab=vocab,
            rope_theta=number(self.reader, "llama.rope.freq_base"),
            eps=number(self.reader, "llama.attention.layer_norm_rms_epsilon"),
        )


def open_target(path: Path) -> TargetFile:
    """Open a target's file."""
    return TargetFile(gguf.GGUFReader(path))
