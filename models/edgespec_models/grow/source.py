"""Open the GGUF to be grown: one of our own, a plain llama model or the same re-expressed as `mimo2`.

Users do not choose what is grown, so a file is not searched for all that growing could not preserve; but a
tensor that has no place in a grown model is named and refused.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from edgespec_models.gguf.header import HeaderError, read_file

SHAPE_KEYS = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "vocab_size",
)  # fmt: skip


class GrowError(Exception):
    """Growing was refused or could not be finished; the message is one sentence for a user."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model, without its MTP blocks."""

    n_vocab: int
    d: int  # embedding length
    layers: int
    n_head: int
    n_kv: int
    head_dim: int
    ffn: int

    @property
    def parameters(self) -> int:
        """Count the weights, with tied embeddings and without the norms."""
        attention = 2 * self.d * self.head_dim * (self.n_head + self.n_kv)
        return self.n_vocab * self.d + self.layers * (attention + 3 * self.d * self.ffn)


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF that can be grown."""

    path: Path
    reader: GGUFReader
    shape: ModelShape
    eps: float  # of every RMSNorm
    tied: bool  # one matrix is both embedding and output
    architecture: str = "llama"  # or "mimo2", whose positions rotate other pairs of dimensions
    blocks: int = 0  # MTP blocks behind the layers

    def tensor(self, name: str) -> ReaderTensor:
        """Return a tensor as the file holds it."""
        return next(tensor for tensor in self.reader.tensors if tensor.name == name)

    def load(self, name: str, scale: float | NDArray[np.float32] = 1.0) -> NDArray[np.float32]:
        """Read a tensor as float32, (rows, columns); a vector is one row. scale: of all, or of each row."""
        tensor = self.tensor(name)
        try:
            weights: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise GrowError(
                f"{self.path} holds {name} as {tensor.tensor_type.name}, which cannot be unpacked here; "
                "choose a file of type F16 or Q8_0"
            ) from None
        scaled: NDArray[np.float32] = np.atleast_2d(weights) * np.asarray(scale, np.float32)
        return scaled


def open_source(path: Path) -> Source:
    """Open a GGUF. Raises GrowError if it cannot be read or is no model that grows."""
    try:
        read_file(path)  # refuses numbers that the reader below would trust
        reader = GGUFReader(path)
    except (HeaderError, OSError) as error:
        raise GrowError(f"{path} cannot be grown: {error}") from None
    architecture = value_of(reader, "general.architecture")
    if architecture not in ("llama", "mimo2"):
        raise GrowError(f"{path} has the architecture {architecture!r}, and only 'llama' and 'mimo2' grow")

    def number(key: str, default: int = 0) -> int:
        return int(value_of(reader, f"{architecture}.{key}", default))

    blocks, n_head = number("nextn_predict_layers"), number("attention.head_count")
    shapes = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    shape = ModelShape(
        n_vocab=shapes.get("token_embd.weight", (0,))[0],
        d=number("embedding_length"),
        layers=number("block_count") - blocks,
        n_head=n_head,
        n_kv=number("attention.head_count_kv", n_head),
        head_dim=number("attention.key_length", number("embedding_length") // n_head),
        ffn=number("feed_forward_length"),
    )
    expected = {
        f"blk.{il}.{part}.weight": of for il in range(shape.layers) for part, of in layer_parts(shape).items()
    }
    expected |= {"token_embd.weight": (shape.n_vocab, shape.d), "output_norm.weight": (shape.d,)}
    behind = tuple(f"blk.{il}." for il in range(shape.layers, shape.layers + blocks))
    odd = [name for name, of in expected.items() if shapes.get(name) != of]
    odd += [n for n in shapes.keys() - expected.keys() if n != "output.weight" and not n.startswith(behind)]
    if odd:
        raise GrowError(f"{path} cannot be grown: its tensor {odd[0]} is not that of a plain llama")
    eps = float(value_of(reader, f"{architecture}.attention.layer_norm_rms_epsilon", 0.0))
    return Source(path, reader, shape, eps, "output.weight" not in shapes, architecture, blocks)


def layer_parts(s: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name every tensor of one layer with its shape, rows (outputs) first."""
    q, kv = s.n_head * s.head_dim, s.n_kv * s.head_dim
    return {
        "attn_norm": (s.d,),
        "attn_q": (q, s.d),
        "attn_k": (kv, s.d),
        "attn_v": (kv, s.d),
        "attn_output": (s.d, q),
        "ffn_norm": (s.d,),
        "ffn_gate": (s.ffn, s.d),
        "ffn_up": (s.ffn, s.d),
        "ffn_down": (s.d, s.ffn),
    }


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_of(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """Return a GGUF's value for `key`; `default` if there is none."""
    field = reader.get_field(key)
    return default if field is None else field.contents()
