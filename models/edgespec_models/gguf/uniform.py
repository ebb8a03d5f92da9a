"""A llama model of one number format with random weights, to learn what evaluations cost on a machine."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from edgespec_models.gguf.number_formats import n_bytes
from edgespec_models.gguf.random_blocks import random_bytes
from edgespec_models.gguf.written import write_gguf

HEAD = 128  # dimensions of a head
EXPERTS = 8  # of a mixture, each half as wide as the model; a token needs all, so that each has all rows
VOCABULARY = 512
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def shapes(width: int, layers: int, *, mixed: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns the tensors, columns first; all widths are multiples of 256, as K-quants want.

    mixed: the same weights as a mixture of experts.
    """
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, VOCABULARY),
        "output_norm.weight": (width,),
    }
    of_expert = width // 2
    ffn: dict[str, tuple[int, ...]] = {
        "ffn_gate": (width, 4 * width), "ffn_up": (width, 4 * width), "ffn_down": (4 * width, width),
    } if not mixed else {
        "ffn_gate_inp": (width, EXPERTS), "ffn_gate_exps": (width, of_expert, EXPERTS),
        "ffn_up_exps": (width, of_expert, EXPERTS), "ffn_down_exps": (of_expert, width, EXPERTS),
    }  # fmt: skip
    for il in range(layers):
        for name, shape in {
            "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width),
            "attn_v": (width, width), "attn_output": (width, width), **ffn,
        }.items():  # fmt: skip
            found[f"blk.{il}.{name}.weight"] = shape
    return found


def write_uniform(path: Path, type_: int, width: int, layers: int, *, mixed: bool = False) -> None:
    """Writes a model whose matrices all have one format. Raises UnknownFormatError, OSError."""
    writer, rng = GGUFWriter(None, "llama"), np.random.default_rng(0)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(width // 2 if mixed else 4 * width)
    writer.add_head_count(width // HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    if mixed:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *BYTES, *(f"t{i}" for i in range(VOCABULARY - 259))])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    writer.add_token_scores([0.0] * VOCABULARY)
    for name, shape in shapes(width, layers, mixed=mixed).items():
        own = type_ if len(shape) > 1 and "gate_inp" not in name else 0
        data = np.frombuffer(b"".join(random_bytes(shape, own, name, rng)), np.uint8)
        rows = data.reshape(*shape[:0:-1], n_bytes((shape[0],), own)) if own else data.view("f4")
        rows = rows if own else rows.reshape(shape[::-1])
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType(own))
    write_gguf(writer, path)
