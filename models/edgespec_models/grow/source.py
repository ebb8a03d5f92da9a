"""Open the GGUF to be grown, and refuse it unless all of it is understood.

Invariant: what is opened is a plain llama model, or one re-expressed as `mimo2`, with MTP blocks after its
layers. A key or tensor beyond that could change what the model
computes in a way that growing does not preserve, so it is named and refused rather than carried along.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.gguf_reader import ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from edgespec_models.gguf.header import HeaderError, read_file

SHAPE_KEYS = {
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "vocab_size",
}
KEPT_KEYS = {"context_length", "rope.freq_base"}
MIMO_KEYS = {
    "nextn_predict_layers",
    "expert_feed_forward_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base_swa",
}


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
    """Open a GGUF and make sure all of it is understood: what is not could change the function."""
    try:
        read_file(path)  # refuses numbers that the reader below would trust
    except HeaderError as error:
        raise GrowError(str(error)) from None
    try:
        reader = GGUFReader(path)
    except FileNotFoundError:
        raise GrowError(f"there is no file {path} to grow; check the path") from None
    except (OSError, ValueError, KeyError, IndexError, OverflowError, TypeError, struct.error) as error:
        raise GrowError(f"{path} cannot be read as a GGUF file ({error}); is it complete?") from None
    architecture = value_of(reader, "general.architecture")
    if architecture not in ("llama", "mimo2"):
        raise GrowError(
            f"{path} has the architecture {architecture!r}, and only 'llama' and a dense 'mimo2' can be grown"
        )
    _check_keys(path, reader, architecture)
    blocks = _blocks_of(path, reader) if architecture == "mimo2" else 0
    shape = _shape_of(path, reader, architecture, blocks)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    _check_tensors(path, reader, shape, tied, blocks)
    eps = float(value_of(reader, f"{architecture}.attention.layer_norm_rms_epsilon", 0.0))
    return Source(path, reader, shape, eps, tied, architecture, blocks)


def _blocks_of(path: Path, reader: GGUFReader) -> int:
    """Returns how many MTP blocks a mimo2 has, whose windows must see all of its context and mean nothing."""
    window, context = (
        value_of(reader, f"mimo2.{key}", 0) for key in ("attention.sliding_window", "context_length")
    )
    bases = {value_of(reader, f"mimo2.rope.{key}") for key in ("freq_base", "freq_base_swa")}
    if window < context or len(bases) > 1:
        raise GrowError(f"{path} has layers that see a window of {window} tokens: they cannot be grown")
    blocks = value_of(reader, "mimo2.nextn_predict_layers", 0)
    if not 0 <= blocks < value_of(reader, "mimo2.block_count", 0):
        raise GrowError(f"{path} has {blocks} MTP blocks, and no layers before them: no mimo2 has that")
    return int(blocks)


def _check_keys(path: Path, reader: GGUFReader, architecture: str) -> None:
    harmless = {"rope.scaling.type": "none", "expert_count": 0, "expert_used_count": 0}
    harmless |= {"expert_feed_forward_length": 0}
    harmless = {f"{architecture}.{key}": value for key, value in harmless.items()}
    known = SHAPE_KEYS | KEPT_KEYS | (MIMO_KEYS if architecture == "mimo2" else set())
    known = {f"{architecture}.{key}" for key in known} - harmless.keys()
    for key in reader.fields:
        if (
            not key.startswith(f"{architecture}.")
            or key in known
            or value_of(reader, key) == harmless.get(key, "")
        ):
            continue
        raise GrowError(
            f"{path} sets {key} = {value_of(reader, key)!r}, which growing does not know how to preserve; "
            "choose a plain llama model without RoPE scaling, experts or other extras"
        )


def _shape_of(path: Path, reader: GGUFReader, architecture: str, blocks: int) -> ModelShape:
    def number(key: str, default: int | None = None) -> int:
        value = value_of(reader, f"{architecture}.{key}", default)
        if not isinstance(value, int) or value < 1:
            raise GrowError(
                f"{path} has {architecture}.{key} = {value!r} where growing needs one positive number"
            )
        return value

    d, n_head = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", d // n_head)
    for key in ("attention.value_length", "rope.dimension_count"):
        if number(key, head_dim) != head_dim:
            raise GrowError(
                f"{path} has {architecture}.{key} = {number(key)} but heads of {head_dim}; they must be equal"
            )
    vocabulary = next((tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"), None)
    if vocabulary is None or len(vocabulary.shape) != 2:
        raise GrowError(f"{path} lacks the matrix token_embd.weight; choose a complete model")
    shape = ModelShape(
        n_vocab=int(vocabulary.shape[1]),
        d=d,
        layers=number("block_count") - blocks,
        n_head=n_head,
        n_kv=number("attention.head_count_kv", n_head),
        head_dim=head_dim,
        ffn=number("feed_forward_length"),
    )
    if shape.n_head % shape.n_kv or shape.head_dim % 2:
        raise GrowError(f"{path} has {shape.n_head} heads of {head_dim} over {shape.n_kv}: no llama has that")
    return shape


def _check_tensors(path: Path, reader: GGUFReader, shape: ModelShape, tied: bool, blocks: int) -> None:
    expected = _tensors_of(shape, tied)
    for il in range(shape.layers, shape.layers + blocks):
        expected |= {f"blk.{il}.{part}.weight": dims for part, dims in block_parts(shape).items()}
    found = {tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in reader.tensors}
    for name in [name for name in expected if name.endswith("shared_head_norm.weight")]:
        if name not in found:  # without one the target's last norm takes its place
            del expected[name]
    for name in found.keys() - expected.keys():
        raise GrowError(f"{path} holds the tensor {name}, which growing does not know how to preserve")
    for name, wanted in expected.items():
        if found.get(name) != wanted:
            raise GrowError(f"{path} should hold {name} of shape {wanted}, but has {found.get(name)}")


def _tensors_of(shape: ModelShape, tied: bool) -> dict[str, tuple[int, ...]]:
    """Name every tensor of a plain llama model with its shape, rows (outputs) first."""
    vocabulary = (shape.n_vocab, shape.d)
    expected: dict[str, tuple[int, ...]] = {"token_embd.weight": vocabulary, "output_norm.weight": (shape.d,)}
    if not tied:
        expected["output.weight"] = vocabulary
    for il in range(shape.layers):
        expected |= {f"blk.{il}.{part}.weight": dims for part, dims in layer_parts(shape).items()}
    return expected


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


def block_parts(s: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name every tensor of an MTP block of a mimo2 with its shape, rows (outputs) first."""
    parts = layer_parts(s)
    rows = [parts.pop(f"attn_{name}")[0] for name in "qkv"]
    norms = {f"nextn.{name}": (s.d,) for name in ("enorm", "hnorm", "shared_head_norm")}
    return {"nextn.eh_proj": (s.d, 2 * s.d), **norms, "attn_qkv": (sum(rows), s.d), **parts}


def digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_of(reader: GGUFReader, key: str, default: Any = None) -> Any:
    """Return a GGUF's value for `key`; `default` if there is none."""
    field = reader.get_field(key)
    return default if field is None else field.contents()
