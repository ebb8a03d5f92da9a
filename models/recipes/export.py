"""Write a trained network as a GGUF file that llama.cpp loads without conversion.

Source of every key and tensor name: gguf-py `constants.py` of llama.cpp. The one trap is rotary
positions: llama.cpp's "llama" architecture turns the pairs (2i, 2i+1) while `model.py` turns (i, i + R/2),
so the rows of Wq and Wk are interleaved here, head by head.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from recipes import marks, template
from recipes import tokenizer as tok
from recipes.model import Llama, Shape

Array = NDArray[np.float32]
FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}


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


def tensors(model: Llama) -> dict[str, Array]:
    """Name every weight as llama.cpp does; matrices are (out, in), norms are vectors."""

    def array(t: Tensor) -> Array:
        return t.detach().float().cpu().numpy()

    s = model.shape
    out = {"token_embd.weight": array(model.embed.weight), "output_norm.weight": array(model.norm.weight)}
    for i, block in enumerate(model.layers()):
        out |= {
            f"blk.{i}.attn_norm.weight": array(block.attn_norm.weight),
            f"blk.{i}.attn_q.weight": interleave(array(block.wq.weight), s.heads, s.head_dim),
            f"blk.{i}.attn_k.weight": interleave(array(block.wk.weight), s.kv_heads, s.head_dim),
            f"blk.{i}.attn_v.weight": array(block.wv.weight),
            f"blk.{i}.attn_output.weight": array(block.wo.weight),
            f"blk.{i}.ffn_norm.weight": array(block.ffn_norm.weight),
            f"blk.{i}.ffn_gate.weight": array(block.gate.weight),
            f"blk.{i}.ffn_up.weight": array(block.up.weight),
            f"blk.{i}.ffn_down.weight": array(block.down.weight),
        }
    return out


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


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Write pieces, merges, kinds, and the roles of the control tokens.

    No start token is ever added (`add_bos_token` false): training text has none, a chat begins with
    `<|im_start|>` itself. llama.cpp wants an id all the same, and end-of-text serves.
    """
    pieces = [str(tokenizer.id_to_token(i)) for i in range(tokenizer.get_vocab_size())]
    if len(set(pieces)) != len(pieces):
        raise ValueError("two pieces of the vocabulary have the same text")
    kinds = dict.fromkeys(marks.CONTROL, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(marks.USER_DEFINED, gguf.TokenType.USER_DEFINED)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(tok.PRE)
    writer.add_token_list(pieces)
    writer.add_token_types([kinds.get(p, gguf.TokenType.NORMAL) for p in pieces])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(tok.token_id(tokenizer, marks.END_OF_TEXT))
    writer.add_pad_token_id(tok.token_id(tokenizer, marks.END_OF_TEXT))
    writer.add_eos_token_id(tok.token_id(tokenizer, marks.TURN_END))
    writer.add_eot_token_id(tok.token_id(tokenizer, marks.TURN_END))
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_PRE_ID, tok.token_id(tokenizer, marks.FIM_PREFIX))
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_SUF_ID, tok.token_id(tokenizer, marks.FIM_SUFFIX))
    writer.add_uint32(gguf.Keys.Tokenizer.FIM_MID_ID, tok.token_id(tokenizer, marks.FIM_MIDDLE))
    writer.add_chat_template(template.SOURCE)


def export(model: Llama, tokenizer: Tokenizer, path: Path, kind: str, about: About) -> None:
    """Write `path` at once: a reader sees the old file or the whole new one. `kind` is a FILE_TYPES key."""
    aside = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(aside, "llama")
    writer.add_name(about.name)
    writer.add_description(about.description)
    writer.add_size_label(about.size_label)
    writer.add_version(about.version)
    writer.add_license("PSF-2.0")
    writer.add_file_type(FILE_TYPES[kind])
    add_shape(writer, model.shape)
    add_vocabulary(writer, tokenizer)
    matrices = gguf.GGMLQuantizationType.__members__[kind]
    for name, weight in tensors(model).items():
        wanted = matrices if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(weight, wanted)
        writer.add_tensor(name, data, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(aside, path)
