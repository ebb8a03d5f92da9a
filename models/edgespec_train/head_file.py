"""Write heads as GGUF files, alone or together with their target.

`mimo2`: the embedded target's blocks are plain Llama blocks, and this architecture computes the same (rotary
pairs (i, i + R/2), one layer called sliding with a window as long as the context) and may carry an MTP block.
`eagle3`: a file of the head alone, which takes the embedding from the target at run time; `d2t` names the
target's token for each of its own. gguf-py knows neither all keys nor all names, so some are written here.
`medusa`: heads that numpy evaluates; llama.cpp knows no such architecture.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec_train.head import HeadNetwork
from edgespec_train.medusa import HEADS, MedusaNetwork
from edgespec_train.model_file import (
    About,
    Array,
    add_shape,
    array,
    copy_vocabulary,
    finish,
    of_block,
    open_writer,
)
from edgespec_train.target_file import BLOCK, TargetFile


def write_mtp(
    head: HeadNetwork, target: TargetFile, path: Path, about: About, matrices: str = "Q8_0"
) -> None:
    """Write the target with the head after its last block."""
    layers, s = target.whole("block_count"), head.shape
    writer = open_writer("mimo2", about, "PSF-2.0")
    add_shape(writer, replace(s, layers=layers + 1))
    writer.add_uint32("mimo2.expert_feed_forward_length", 0)
    writer.add_uint32("mimo2.attention.sliding_window", 2 * s.context)  # never reached
    writer.add_array("mimo2.attention.sliding_window_pattern", [True, *[False] * (layers - 1), True])
    writer.add_float32("mimo2.rope.freq_base_swa", s.rope_theta)
    writer.add_uint32("mimo2.nextn_predict_layers", 1)
    copy_vocabulary(writer, target.reader)
    embed = target.weight("token_embd")
    tensors = {"token_embd.weight": embed, "output.weight": embed}
    tensors["output_norm.weight"] = target.weight("output_norm")
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}.weight": target.weight(f"blk.{i}.{name}") for name in BLOCK.values()}
    tensors |= {f"blk.{layers}.{name}.weight": weight for name, weight in mtp_tensors(head).items()}
    finish(writer, tensors, matrices, path)


def mtp_tensors(head: HeadNetwork) -> dict[str, Array]:
    """Name an MTP block's weights as llama.cpp does, without the number of the block."""
    found = of_block(head, interleaved=False)
    return {
        "nextn.eh_proj": array(head.fuse.weight),
        "nextn.enorm": array(head.token_norm.weight),
        "nextn.hnorm": array(head.state_norm.weight),
        "nextn.shared_head_norm": array(head.norm.weight),
        "attn_qkv": np.concatenate([found.pop(name) for name in ("attn_q", "attn_k", "attn_v")]),
        **found,
    }


def write_eagle3(
    head: HeadNetwork,
    target: TargetFile,
    path: Path,
    about: About,
    taps: tuple[int, ...],
    kept: NDArray[np.int64],
    matrices: str = "Q8_0",
    output: str = "Q4_0",
) -> None:
    """Write the head alone; `taps` are the layers it reads, `kept` the target's tokens it may guess."""
    s = head.shape
    writer = open_writer("eagle3", about, "Apache-2.0")
    add_shape(writer, replace(s, layers=1, vocab=len(head.embed)))
    writer.add_array("eagle3.target_layers", [int(layer) for layer in taps])
    writer.add_uint32("eagle3.target_hidden_size", s.width)
    writer.add_bool("eagle3.norm_before_residual", False)
    copy_vocabulary(writer, target.reader)
    writer.add_tensor("d2t", np.asarray(kept, np.int64))
    tensors = {
        "fc.weight": array(head.fuse.weight),
        "output.weight": array(head.output.weight),
        "output_norm.weight": array(head.norm.weight),
    }
    tensors |= {f"blk.0.{name}.weight": weight for name, weight in of_block(head).items()}
    tensors["blk.0.attn_norm.weight"] = array(head.token_norm.weight)
    tensors["blk.0.attn_norm_2.weight"] = array(head.state_norm.weight)
    finish(writer, tensors, matrices, path, output)


def write_medusa(
    heads: MedusaNetwork, target: TargetFile, path: Path, about: About, kept: NDArray[np.int64] | None
) -> None:
    """Write Medusa heads; `kept` are the target's tokens that they may guess (all, if None)."""
    writer = open_writer("medusa", about, matrices="F32")
    writer.add_embedding_length(heads.shape.width)
    writer.add_uint32("medusa.head_count", HEADS)
    copy_vocabulary(writer, target.reader)
    if kept is not None:
        writer.add_tensor("d2t", np.asarray(kept, np.int64))
    tensors = {"output.weight": array(heads.output.weight)}
    for i, linear in enumerate(heads.linears()):
        tensors |= {f"head.{i}.weight": array(linear.weight), f"head.{i}.bias": array(linear.bias)}
    finish(writer, tensors, "F32", path)
