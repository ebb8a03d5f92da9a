"""Write a tiny random Gemma 4 and an assistant for it, which reads the target's own cache.

As in `tiny_heads`, layers add little to the embedding of a token, and the assistant begins with that
embedding and knows the target's output matrix: some of its guesses are right and some are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny_gguf as tiny
import tiny_heads
from gguf import GGUFWriter
from numpy.typing import NDArray

D, D_HEAD, FFN, N_HEAD, N_KV, HEAD_DIM = tiny_heads.D, 96, 128, 4, 2, 16
WINDOW = 32
Changes = Mapping[str, NDArray[np.float32] | None]


def write_gemma(
    path: Path, *, layers: int = 4, n_vocab: int = 512, depth: float = 0.5, seed: int = 0
) -> Path:
    """Write a random Gemma 4: every second layer sees the last WINDOW tokens, the others see all."""
    writer, weights = GGUFWriter(path, "gemma4"), tiny.RandomWeights(seed, 0.0, 1)
    writer.add_name("tiny random gemma4")
    _add_shape(writer, "gemma4", layers, D, n_vocab)
    made = tiny.ends_of(weights, n_vocab, D, 2.0, "output_norm.weight")
    for il in range(layers):
        kv = N_KV * HEAD_DIM
        made |= _block(weights, il, D, depth) | tiny.head_norms(il, HEAD_DIM)
        made |= {
            f"blk.{il}.attn_k.weight": weights.draw(kv, D),
            f"blk.{il}.attn_v.weight": weights.draw(kv, D),
        }
    made["token_embd.weight"] *= np.float32(D**-0.5)  # the graph multiplies by that much
    tiny_heads.finish(writer, made, None)
    return path


def write_assistant(
    path: Path,
    *,
    layers: int = 2,
    n_vocab: int = 512,
    depth: float = 0.2,
    seed: int = 0,
    pattern: Sequence[bool] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tensors: Changes | None = None,
) -> Path:
    """Write an assistant for the target of `write_gemma` of the same seed."""
    arch, weights = "gemma4-assistant", tiny.RandomWeights(seed + 100, 0.0, 1)
    writer = GGUFWriter(path, arch)
    writer.add_name("tiny random gemma4 assistant")
    _add_shape(writer, arch, layers, D_HEAD, n_vocab, pattern)
    writer.add_uint32(f"{arch}.embedding_length_out", D)
    writer.add_uint32(f"{arch}.nextn_predict_layers", layers)
    tiny.add_metadata(writer, metadata or {})
    target = tiny.ends_of(tiny.RandomWeights(seed, 0.0, 1), n_vocab, D, 2.0, "output_norm.weight")
    embedding = np.zeros((n_vocab, D_HEAD), np.float32)
    embedding[:, :D] = target["output.weight"]
    pre = np.zeros((D_HEAD, 2 * D), np.float32)
    pre[:D, :D] = np.eye(D)
    pre[:, D:] = weights.draw(D_HEAD, D) * np.float32(0.1)
    made = {
        "token_embd.weight": embedding,
        "output_norm.weight": np.ones(D_HEAD, np.float32),
        "nextn.pre_projection.weight": pre,
        "nextn.post_projection.weight": np.eye(D, D_HEAD, dtype=np.float32),
    }
    for il in range(layers):
        made |= _block(weights, il, D_HEAD, depth)
        made[f"blk.{il}.layer_output_scale.weight"] = np.ones(1, np.float32)
    tiny_heads.finish(writer, made, tensors)
    return path


def _add_shape(
    writer: GGUFWriter, arch: str, layers: int, d: int, n_vocab: int, pattern: Sequence[bool] | None = None
) -> None:
    tiny.add_sizes(writer, n_vocab, d, layers, FFN, 512, 1e-6)
    tiny.add_attention(writer, N_HEAD, N_KV, HEAD_DIM, 1_000_000.0)
    for key, number in {
        "attention.key_length_swa": HEAD_DIM, "attention.value_length_swa": HEAD_DIM,
        "attention.sliding_window": WINDOW, "attention.shared_kv_layers": 0,
        "rope.dimension_count_swa": HEAD_DIM, "embedding_length_per_layer_input": 0,
    }.items():  # fmt: skip
        writer.add_uint32(f"{arch}.{key}", number)
    writer.add_float32(f"{arch}.rope.freq_base_swa", 10_000.0)
    writer.add_array(
        f"{arch}.attention.sliding_window_pattern", list(pattern or [True, False] * (layers // 2))
    )
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), tiny.CHAT_TEMPLATE)


def _block(weights: tiny.RandomWeights, il: int, d: int, depth: float) -> tiny_heads.Tensors:
    p, q = f"blk.{il}.", N_HEAD * HEAD_DIM
    scaled = ("post_attention_norm", "post_ffw_norm")
    return {
        **{f"{p}{name}.weight": np.full(d, depth, np.float32) for name in scaled},
        f"{p}attn_norm.weight": np.ones(d, np.float32),
        f"{p}attn_q.weight": weights.draw(q, d),
        f"{p}attn_q_norm.weight": np.ones(HEAD_DIM, np.float32),
        f"{p}attn_output.weight": weights.draw(d, q),
        **tiny.ffn_of(weights, il, d, FFN),
    } | ({"rope_freqs.weight": np.ones(HEAD_DIM // 2, np.float32)} if il == 1 else {})
