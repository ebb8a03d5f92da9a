"""A target's GGUF file, read for its weights and numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edgespec_train.network import Shape


def separate(weight: NDArray[np.float32], heads: int, head_dim: int) -> NDArray[np.float32]:
    """Reorder the rows of each head from (a0 b0 a1 b1 ..) to (a0 a1 .. b0 b1 ..); undoes `interleave`."""
    rows = weight.reshape(heads, head_dim // 2, 2, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


BLOCK = {  # names of a block's weights: in `network.py`, and llama.cpp's
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
INTERLEAVED = {"llama": True, "qwen3": False}  # architectures of plain blocks: is a rotary pair (2i, 2i+1)?


@dataclass(frozen=True, slots=True)
class TargetFile:
    """Hold a GGUF file whose blocks are Llama's, its weights as float32; parts of a split one in order."""

    readers: tuple[gguf.GGUFReader, ...]

    @property
    def reader(self) -> gguf.GGUFReader:
        """Return the part that says what the model is."""
        return self.readers[0]

    @property
    def architecture(self) -> str:
        return str(self.value("general.architecture"))

    def value(self, key: str) -> Any:
        """Return an entry of the metadata."""
        field = self.reader.get_field(key)
        if field is None:
            raise KeyError(f"{key} is not in the metadata of {self.reader.data.filename}")
        return field.contents()

    def whole(self, key: str) -> int:
        return int(self.value(f"{self.architecture}.{key}"))

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of this name without `.weight`."""
        return any(t.name == f"{name}.weight" for reader in self.readers for t in reader.tensors)

    @property
    def vocab(self) -> int:
        """Return how many tokens there are."""
        found = next(t for r in self.readers for t in r.tensors if t.name == "token_embd.weight")
        return int(found.shape[1])

    @property
    def block_is_plain(self) -> bool:
        """Return whether a head can start from the last block."""
        last = f"blk.{self.whole('block_count') - 1}"
        return self.architecture in INTERLEAVED and all(self.has(f"{last}.{name}") for name in BLOCK.values())

    def weight(self, name: str) -> NDArray[np.float32]:
        """Return a tensor by its name without `.weight`; query and key rows in the order of `network.py`."""
        found = next(t for r in self.readers for t in r.tensors if t.name == f"{name}.weight")
        weight = np.array(gguf.quants.dequantize(found.data, found.tensor_type), np.float32)
        if name.endswith(("attn_q", "attn_k")) and INTERLEAVED[self.architecture]:
            heads = self.whole("attention.head_count" + ("_kv" if name.endswith("attn_k") else ""))
            weight = separate(weight, heads, weight.shape[0] // heads)
        return weight

    def output(self) -> NDArray[np.float32]:
        """Return the rows that make logits: the embedding's, if these are tied."""
        return self.weight("output" if self.has("output") else "token_embd")

    def shape(self, vocab: int) -> Shape:
        """Return the numbers of the target's network, or of a head that guesses from so many tokens."""
        heads, width = self.whole("attention.head_count"), self.whole("embedding_length")
        given = self.reader.get_field(f"{self.architecture}.attention.key_length")
        return Shape(
            width=width,
            layers=self.whole("block_count"),
            heads=heads,
            kv_heads=self.whole("attention.head_count_kv"),
            head_dim=int(given.contents()) if given else width // heads,
            ffn=self.whole("feed_forward_length"),
            vocab=vocab,
            rope_theta=float(self.value(f"{self.architecture}.rope.freq_base")),
            eps=float(self.value(f"{self.architecture}.attention.layer_norm_rms_epsilon")),
        )


def open_target(*paths: Path) -> TargetFile:
    """Open a target's file, or all parts of a split one."""
    return TargetFile(tuple(gguf.GGUFReader(path) for path in paths))
