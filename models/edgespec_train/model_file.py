"""Trained networks as GGUF files that llama.cpp loads without conversion.

Source of every key and tensor name: gguf-py `constants.py` of llama.cpp. The one trap is rotary positions:
llama.cpp's "llama" architecture turns the pairs (2i, 2i+1) while `network.py` turns (i, i + R/2), so the rows
of Wq and Wk are interleaved here, head by head.
"""

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from edgespec_models.gguf.written import write_gguf
from edgespec_train.network import Llama, NetworkBlock, Shape
from edgespec_train.target_file import BLOCK, TargetFile

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class About:
    """Say in the file's metadata what it is."""

    name: str
    description: str
    size_label: str
    version: str


def interleave(weight: Array, heads: int, head_dim: int) -> Array:
    """Reorder the rows of each head from (a0 a1 .. b0 b1 ..) to (a0 b0 a1 b1 ..)."""
    rows = weight.reshape(heads, 2, head_dim // 2, weight.shape[1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(weight.shape))


def array(weight: Tensor) -> Array:
    return weight.detach().float().cpu().numpy()


def tensors(model: Llama) -> dict[str, Array]:
    """Name every weight as llama.cpp does; matrices are (out, in), norms are vectors."""
    out = {"token_embd.weight": array(model.embed.weight), "output_norm.weight": array(model.norm.weight)}
    for i, block in enumerate(model.layers()):
        out |= {f"blk.{i}.{name}.weight": weight for name, weight in of_block(block).items()}
    return out


def of_block(block: NetworkBlock, *, interleaved: bool = True) -> dict[str, Array]:
    """Name a block's weights as llama.cpp does, without its number; `interleaved`: rows of Wq and Wk are."""
    s, found = block.shape, {theirs: array(getattr(block, ours).weight) for ours, theirs in BLOCK.items()}
    if interleaved:
        found["attn_q"] = interleave(found["attn_q"], s.heads, s.head_dim)
        found["attn_k"] = interleave(found["attn_k"], s.kv_heads, s.head_dim)
    return found


def add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    """Write the numbers of the architecture."""
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(shape.vocab)


def open_writer(kind: str, about: About, licence: str = "", *, matrices: str = "Q8_0") -> gguf.GGUFWriter:
    """Start a file of an architecture; `matrices`: the format of most of them."""
    writer = gguf.GGUFWriter(None, kind)
    writer.add_name(about.name)
    writer.add_description(about.description)
    writer.add_size_label(about.size_label)
    writer.add_version(about.version)
    if licence:
        writer.add_license(licence)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if matrices == "F32" else f"MOSTLY_{matrices}"])
    return writer


def copy_vocabulary(writer: gguf.GGUFWriter, reader: gguf.GGUFReader) -> None:
    """Copy everything that defines the tokenizer."""
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)


def finish(
    writer: gguf.GGUFWriter, tensors: dict[str, Array], matrices: str, path: Path, output: str | None = None
) -> None:
    """Write the tensors, matrices in a format by its name (`output` may differ), whole or not at all."""
    formats = {"output.weight": output or matrices}
    for name, weight in tensors.items():
        wanted = gguf.GGMLQuantizationType[formats.get(name, matrices) if weight.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(weight), wanted), raw_dtype=wanted)
    write_gguf(writer, path)


def write_draft(network: Llama, target: TargetFile, path: Path, about: About) -> None:
    """Write a small draft with the vocabulary of a target."""
    writer = open_writer("llama", about)
    add_shape(writer, network.shape)
    copy_vocabulary(writer, target.reader)
    finish(writer, tensors(network), "Q8_0", path)
