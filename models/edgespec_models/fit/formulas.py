"""A model's memory by its header alone: an estimate, for when llama.cpp cannot be asked.

It knows keys and values by their heads, recurrent states by their sizes, and assumes a usual value for the
buffers of an evaluation. Used for architectures that this build of llama.cpp does not know, and to see at
once that a small model fits. `edgespec.memory` asks llama.cpp itself.
"""

from collections.abc import Sequence

import psutil

from edgespec_models.fit.need import RAM, Need, Parts
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import heads_in_cache

KV_BYTES = {  # of one number
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
SNAPSHOTS = 8  # of a recurrent state, besides the state itself
CHUNK = 128  # tokens of a prompt in one evaluation without flash attention: it is read as fast as in 512
SCORES = 1 / 32  # share of the memory that scores of attention may take
LEAST_SCORES = 64 << 20  # bytes that they may take in any case


def score_bytes(heads: int, cells: int, rows: int) -> int:
    """Returns the bytes of a layer's scores, where attention is evaluated without flash attention.

    A float32 for each head, and one of the mask.
    """
    return 4 * cells * rows * (heads + 1)


def score_room() -> int:
    """Returns how many bytes scores may take on this machine."""
    return max(LEAST_SCORES, int(SCORES * psutil.virtual_memory().total))


def formula_need(
    headers: Sequence[Header], *, cells: int, n_rows: int, kv_type: str = "f16", n_seq: int = 1
) -> Need:
    """Returns about what a model takes. headers: of all its parts, the first with the metadata.

    cells: tokens that its cache holds. n_rows: logits rows that one evaluation may return.
    """
    head = headers[0]
    n_vocab, d = _vocabulary(head), head.of_architecture("embedding_length", 0) or 0
    ffn = head.of_architecture("feed_forward_length", 4 * d) or 4 * d
    logits, numbers = n_rows * n_vocab * 4, _numbers_a_token(head)
    heads = head.of_architecture("attention.head_count", 0) or 0
    scores = min(score_bytes(heads, cells, CHUNK), score_room()) if numbers else 0
    parts = Parts(
        weights=sum(tensor.n_bytes or 0 for header in headers for tensor in header.tensors),
        cache=cache_bytes(head, cells, kv_type),
        state=_state(head) * n_seq * (1 + SNAPSHOTS),
        output=logits,
        compute=CHUNK * 4 * (4 * d + 2 * ffn) + scores + logits,
    )
    return Need({RAM: parts}, n_layers(head), "formula")


def cache_bytes(header: Header, cells: int, kv_type: str = "f16") -> int:
    """Returns about how many bytes a KV cache of that many tokens takes, an upper bound at worst."""
    return int(cells * _numbers_a_token(header) * KV_BYTES[kv_type])


def n_layers(header: Header) -> int:
    """Returns how many layers can be put on a graphics card, the output layer included."""
    return (header.of_architecture("block_count", 0) or 0) + 1


def _vocabulary(header: Header) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, list) else header.of_architecture("vocab_size", 0) or 0


def _numbers_a_token(header: Header) -> int:
    """Returns how many numbers the cache keeps of one token, over all layers."""
    n_head = header.of_architecture("attention.head_count", 1) or 1
    size = (header.of_architecture("embedding_length", 0) or 0) // n_head
    key = header.of_architecture("attention.key_length", size) or size
    value = header.of_architecture("attention.value_length", size) or size
    if latent := header.of_architecture("attention.kv_lora_rank"):  # one compressed head for all
        rotated = header.of_architecture("rope.dimension_count", 0) or 0
        return (latent + rotated) * (header.of_architecture("block_count", 0) or 0)
    return sum(heads_in_cache(header)) * (key + value)


def _state(header: Header) -> int:
    """Returns the bytes of the recurrent state of one sequence."""
    of = header.of_architecture
    attending = sum(1 for heads in heads_in_cache(header) if heads)
    recurrent = (of("block_count", 0) or 0) - (attending if of("attention.head_count") else 0)
    inner, size, groups = of("ssm.inner_size", 0) or 0, of("ssm.state_size", 0) or 0, of("ssm.group_count", 0)
    kernel = of("ssm.conv_kernel", 0) or of("shortconv.l_cache", 0) or 0
    width = inner + 2 * (groups or 0) * size if inner else of("embedding_length", 0) or 0
    return 4 * max(0, recurrent) * (max(0, kernel - 1) * width + inner * size) if kernel else 0
