"""Write tiny random-weight heads for tests: targets with MTP blocks, and heads in files of their own.

`write_mtp` makes a MiMo 2 (attention alone), `write_hybrid_mtp` a Qwen 3.5 (delta nets and attention),
`write_experts_mtp` a GLM 4 mixture of experts, each with MTP blocks; `write_eagle` a head for a target of
`tiny_gguf.write_llama`. Their layers add little to the embedding of a token (`depth`), and a head begins with
that embedding, so some of its guesses are right and some are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny_gguf as tiny
from gguf import GGUFWriter
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]
N_HEAD, N_KV, HEAD_DIM = 4, 2, 16
D = N_HEAD * HEAD_DIM


def write_mtp(
    path: Path,
    *,
    blocks: int = 1,
    layers: int = 2,
    n_vocab: int = 512,
    depth: float = 0.5,
    context_length: int = 512,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """Write a random MiMo 2 with `blocks` MTP blocks and return `path`.

    `metadata` adds or replaces keys; `tensors` adds, replaces or, given None, leaves out.
    """
    writer, ffn = GGUFWriter(path, "mimo2"), 2 * D
    writer.add_name("tiny random mimo2")
    tiny.add_sizes(writer, n_vocab, D, layers + blocks, ffn, context_length, 1e-5)
    tiny.add_attention(writer, N_HEAD, N_KV, HEAD_DIM, 10_000.0)
    writer.add_uint32("mimo2.expert_feed_forward_length", 0)
    writer.add_uint32("mimo2.attention.sliding_window", context_length)
    writer.add_float32("mimo2.rope.freq_base_swa", 10_000.0)
    writer.add_array(
        "mimo2.attention.sliding_window_pattern", [True] + [False] * (layers - 1) + [True] * blocks
    )
    writer.add_uint32("mimo2.nextn_predict_layers", blocks)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), tiny.CHAT_TEMPLATE)
    tiny.add_metadata(writer, metadata or {})
    weights = tiny.RandomWeights(seed, 0.0, 1)
    made = tiny.ends_of(weights, n_vocab, D, 2.0, "output_norm.weight")
    for il in range(layers + blocks):
        made |= _block(weights, il, ffn, depth, fused=il >= layers)
        if il >= layers:
            made |= _nextn(weights, il)
    finish(writer, made, tensors)
    return path


def write_hybrid_mtp(
    path: Path,
    *,
    layers: int = 4,
    n_vocab: int = 512,
    depth: float = 0.5,
    context_length: int = 512,
    seed: int = 0,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """Write a random Qwen 3.5 with one MTP block: every second layer attends, the others are delta nets."""
    writer, arch, ffn, heads, head_dim = GGUFWriter(path, "qwen35"), "qwen35", 2 * D, 2, 64
    state, groups, rank = 16, 2, 4
    writer.add_name("tiny random qwen35")
    tiny.add_sizes(writer, n_vocab, D, layers + 1, ffn, context_length, 1e-5)
    tiny.add_attention(writer, heads, heads, head_dim, 10_000.0)
    del writer.kv_data[0][f"{arch}.rope.dimension_count"]
    writer.add_rope_dimension_count(head_dim // 2)
    writer.add_array(f"{arch}.rope.dimension_sections", [4, 6, 6, 0])
    for key, value in {
        "ssm.conv_kernel": 4, "ssm.inner_size": state * rank, "ssm.state_size": state,
        "ssm.time_step_rank": rank, "ssm.group_count": groups, "full_attention_interval": 2,
        "nextn_predict_layers": 1,
    }.items():  # fmt: skip
        writer.add_uint32(f"{arch}.{key}", value)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), tiny.CHAT_TEMPLATE)
    weights = tiny.RandomWeights(seed, 0.0, 1)
    made = tiny.ends_of(weights, n_vocab, D, 2.0, "output_norm.weight")
    keys, values = state * groups, state * rank
    for il in range(layers + 1):
        p, ones = f"blk.{il}.", ("attn_norm", "post_attention_norm")
        made |= {f"{p}{name}.weight": np.ones(D, np.float32) for name in ones} | _ffn(weights, il, ffn, depth)
        del made[f"{p}ffn_norm.weight"]
        if il == layers or il % 2:
            made |= {
                f"{p}attn_q.weight": weights.draw(2 * heads * head_dim, D),
                f"{p}attn_k.weight": weights.draw(heads * head_dim, D),
                f"{p}attn_v.weight": weights.draw(heads * head_dim, D),
                f"{p}attn_output.weight": weights.draw(D, heads * head_dim) * np.float32(depth),
                **tiny.head_norms(il, head_dim),
            }
        else:
            made |= {
                f"{p}attn_qkv.weight": weights.draw(2 * keys + values, D),
                f"{p}attn_gate.weight": weights.draw(values, D),
                f"{p}ssm_conv1d.weight": weights.draw(2 * keys + values, 4),
                f"{p}ssm_dt.bias": weights.draw(rank, std=0.1),
                f"{p}ssm_a": -np.abs(weights.draw(rank, std=1.0)),
                f"{p}ssm_beta.weight": weights.draw(rank, D),
                f"{p}ssm_alpha.weight": weights.draw(rank, D),
                f"{p}ssm_norm.weight": np.ones(state, np.float32),
                f"{p}ssm_out.weight": weights.draw(D, values) * np.float32(depth),
            }
    made |= _nextn(weights, layers) | {f"blk.{layers}.nextn.shared_head_norm.weight": np.ones(D, np.float32)}
    finish(writer, made, tensors)
    return path


def write_experts_mtp(
    path: Path, *, layers: int = 2, n_vocab: int = 512, depth: float = 0.5, seed: int = 0
) -> Path:
    """Write a random GLM 4 mixture of four experts with one MTP block; its first layer has none."""
    writer, arch, ffn, experts, small = GGUFWriter(path, "glm4moe"), "glm4moe", 2 * D, 4, 32
    writer.add_name("tiny random glm4moe")
    tiny.add_sizes(writer, n_vocab, D, layers + 1, ffn, 512, 1e-5)
    tiny.add_attention(writer, N_HEAD, N_KV, HEAD_DIM, 10_000.0)
    for key, value in {
        "expert_feed_forward_length": small, "expert_count": experts, "expert_used_count": 2,
        "expert_shared_count": 1, "leading_dense_block_count": 1, "nextn_predict_layers": 1,
    }.items():  # fmt: skip
        writer.add_uint32(f"{arch}.{key}", value)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), tiny.CHAT_TEMPLATE)
    weights = tiny.RandomWeights(seed, 0.0, 1)
    made = tiny.ends_of(weights, n_vocab, D, 2.0, "output_norm.weight")
    for il in range(layers + 1):
        p = f"blk.{il}."
        block = _block(weights, il, ffn, depth, fused=False)
        del block[f"{p}ffn_norm.weight"]
        made |= block | {f"{p}post_attention_norm.weight": np.ones(D, np.float32)}
        if il:
            for name in ("gate", "up", "down"):
                del made[f"{p}ffn_{name}.weight"]
            made |= {
                f"{p}ffn_gate_inp.weight": weights.draw(experts, D),
                f"{p}exp_probs_b.bias": np.zeros(experts, np.float32),
                f"{p}ffn_gate_exps.weight": weights.draw(experts, small, D),
                f"{p}ffn_up_exps.weight": weights.draw(experts, small, D),
                f"{p}ffn_down_exps.weight": weights.draw(experts, D, small) * np.float32(depth),
                f"{p}ffn_gate_shexp.weight": weights.draw(small, D),
                f"{p}ffn_up_shexp.weight": weights.draw(small, D),
                f"{p}ffn_down_shexp.weight": weights.draw(D, small) * np.float32(depth),
            }
    made |= _nextn(weights, layers) | {f"blk.{layers}.nextn.shared_head_norm.weight": np.ones(D, np.float32)}
    finish(writer, made, None)
    return path


def write_eagle(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1, 2),
    target_d: int = 64,
    n_vocab: int = 512,
    d2t: Sequence[int] | None = None,
    context_length: int = 512,
    seed: int = 5,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """Write an EAGLE-3 head that attends nearly to the last token alone, and has its embedding pass.

    `d2t`: the target's ids of its own, smaller vocabulary.
    """
    writer, ffn, p = GGUFWriter(path, "eagle3"), 2 * D, "blk.0."
    writer.add_name("tiny random eagle3")
    tiny.add_sizes(writer, n_vocab, D, 1, ffn, context_length, 1e-5)
    tiny.add_attention(writer, N_HEAD, N_HEAD, HEAD_DIM, 10_000.0)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", target_d)
    writer.add_bool("eagle3.norm_before_residual", False)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), None)
    tiny.add_metadata(writer, metadata or {})
    weights = tiny.RandomWeights(seed, 0.0, 1)
    made = {
        "fc.weight": weights.draw(D, len(layers) * target_d) * np.float32(0.3),
        "output_norm.weight": np.ones(D, np.float32),
        f"{p}attn_norm.weight": np.ones(D, np.float32),
        f"{p}attn_norm_2.weight": np.ones(D, np.float32),
        f"{p}attn_q.weight": _of_token(weights),
        f"{p}attn_k.weight": _of_token(weights),
        f"{p}attn_v.weight": _of_token(weights),
        f"{p}attn_output.weight": np.eye(D, dtype=np.float32) * np.float32(3),
        **_ffn(weights, 0, ffn, 0.2),
    }
    if d2t is not None:
        made["output.weight"] = weights.draw(len(d2t), D)
    changed = {name: tensor for name, tensor in (made | dict(tensors or {})).items() if tensor is not None}
    if d2t is not None:
        writer.add_tensor("d2t", np.array(d2t, np.int64))
    tiny.finish(writer, changed, "F32")
    return path


def _of_token(weights: tiny.RandomWeights) -> NDArray[np.float32]:
    """Make a matrix that reads the token's embedding, and a little of the row beside it."""
    return np.concatenate([np.eye(D, dtype=np.float32), weights.draw(D, D) * np.float32(0.2)], 1)


def _block(weights: tiny.RandomWeights, il: int, ffn: int, depth: float, *, fused: bool) -> Tensors:
    p, kv = f"blk.{il}.", N_KV * HEAD_DIM
    made = {
        f"{p}attn_norm.weight": np.ones(D, np.float32),
        f"{p}attn_output.weight": weights.draw(D, D) * np.float32(depth),
        **_ffn(weights, il, ffn, depth),
    }
    if fused:
        return made | {f"{p}attn_qkv.weight": weights.draw(D + 2 * kv, D)}
    return made | {
        f"{p}attn_q.weight": weights.draw(D, D),
        f"{p}attn_k.weight": weights.draw(kv, D),
        f"{p}attn_v.weight": weights.draw(kv, D),
    }


def _ffn(weights: tiny.RandomWeights, il: int, ffn: int, depth: float) -> Tensors:
    made = tiny.ffn_of(weights, il, D, ffn)
    made[f"blk.{il}.ffn_down.weight"] *= np.float32(depth / 2)
    return made


def _nextn(weights: tiny.RandomWeights, il: int) -> Tensors:
    """Make what joins token and hidden row: nearly the token alone, and something of the row."""
    joined = np.concatenate([np.eye(D, dtype=np.float32), weights.draw(D, D) * np.float32(0.5)], 1)
    return {
        f"blk.{il}.nextn.eh_proj.weight": joined,
        f"blk.{il}.nextn.enorm.weight": np.ones(D, np.float32),
        f"blk.{il}.nextn.hnorm.weight": np.ones(D, np.float32),
    }


def finish(
    writer: GGUFWriter, made: Tensors, changes: Mapping[str, NDArray[np.float32] | None] | None
) -> None:
    changed = made | dict(changes or {})
    tiny.finish(writer, {name: tensor for name, tensor in changed.items() if tensor is not None}, "F32")


def write_dflash(
    path: Path,
    *,
    layers: Sequence[int] = (0, 1),
    n_layers: int = 2,
    n_vocab: int = 512,
    block: int = 8,
    follows: int = 0,
    candidates: int = 0,
    context_length: int = 512,
    seed: int = 3,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
) -> Path:
    """Write a random DFlash head; `follows` > 0 makes a DSpark head, with tables of that rank.

    `candidates` > 0 makes a DFlash2 head, with that many for each place.
    """
    writer, arch, ffn = GGUFWriter(path, "dflash"), "dflash", 2 * D
    writer.add_name("tiny random dflash")
    tiny.add_sizes(writer, n_vocab, D, n_layers, ffn, context_length, 1e-5)
    tiny.add_attention(writer, N_HEAD, N_KV, HEAD_DIM, 10_000.0)
    writer.add_array(f"{arch}.target_layers", list(layers))
    writer.add_uint32(f"{arch}.block_size", block)
    writer.add_uint32("tokenizer.ggml.mask_token_id", 37)
    rank, kernel, group = 8, 3, 16
    if candidates:
        for key, number in {
            "selector_top_k": candidates, "selector_rank": rank, "conv_kernel_size": kernel,
            "conv_group_size": group,
        }.items():  # fmt: skip
            writer.add_uint32(f"{arch}.{key}", number)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), None)
    tiny.add_metadata(writer, metadata or {})
    weights, kv = tiny.RandomWeights(seed, 0.0, 1), N_KV * HEAD_DIM
    made = {
        "fc.weight": weights.draw(D, len(layers) * D),
        "enc.output_norm.weight": np.ones(D, np.float32),
        "output_norm.weight": np.ones(D, np.float32),
    }
    for il in range(n_layers):
        p = f"blk.{il}."
        made |= {
            f"{p}attn_norm.weight": np.ones(D, np.float32),
            f"{p}attn_q.weight": weights.draw(D, D),
            f"{p}attn_k.weight": weights.draw(kv, D),
            f"{p}attn_v.weight": weights.draw(kv, D),
            f"{p}attn_output.weight": weights.draw(D, D),
            **tiny.head_norms(il, HEAD_DIM),
            **_ffn(weights, il, ffn, 1.0),
        }
    if candidates:
        made |= {
            f"selector_{name}.weight": weights.draw(n_vocab, rank, std=0.6)
            for name in ("predecessor", "successor")
        }
        made["selector_hidden.weight"] = weights.draw(rank, D)
        for il, part in ((il, part) for il in range(n_layers) for part in ("attn", "ffn")):
            base = weights.draw(2, kernel, D, std=0.1)
            base[:, 0] += 1  # each place mostly itself
            made[f"blk.{il}.{part}_conv_base"] = base
            made[f"blk.{il}.{part}_conv_proj.weight"] = weights.draw(2 * kernel * D // group, D)
    if follows:
        made |= {
            "markov_w1.weight": weights.draw(n_vocab, follows),
            "markov_w2.weight": weights.draw(n_vocab, follows),
            "conf_proj.weight": weights.draw(1, D + follows),
        }
    finish(writer, made, tensors)
    return path
