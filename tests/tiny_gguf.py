"""Write tiny random-weight GGUF models for tests, in milliseconds, with numpy and gguf alone.

`write_llama` makes a plain attention model, `write_sliding` a Gemma 3 (most layers see a window of the last
tokens), `write_experts` a Qwen 3 mixture of experts, `write_hybrid` an LFM2 (attention and short
convolutions: llama.cpp can roll its recurrent state back), `write_recurrent` a Mamba (it cannot). Weights are
random but scaled so that logits have a standard deviation of about `logit_scale`: no argmax is a tie, and the
text, though nonsense, depends on all that came before.

The vocabulary is a working byte-level BPE: ids 0 to 255 are the bytes, then words with their merges, then
filler that no text is tokenised into, and at the end the control tokens of CONTROL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

BOS, EOS, TURN = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
CONTROL = (BOS, TURN, EOS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = (
    "the of and to in is that for it with as was on be at by this have from or one had not but what all were "
    "when we there can an your which their said if do will each about how up out them then she many some so "
    "these would other into has more her two like him see time could no make than first been its who now "
    "people my made over did down only way find use may water long little very after words called just where "
    "def return import class self for while if else None True False print range len list str int yield"
).split()
NORMAL, TOKEN_CONTROL = 1, 3  # gguf token types


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary as GGUF metadata wants it."""

    texts: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    bos: int
    eos: int

    @property
    def n_words(self) -> int:
        """Count the tokens, from id 0, that text is tokenised into."""
        return 256 + len(self.merges)


def byte_letters() -> list[str]:
    """Return GPT-2's letter for each byte: printable bytes are themselves, others move above 255."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


FOREIGN = {i: f"other{i}" for i in range(5, 400)}  # texts of a vocabulary in which little can be said


@lru_cache(maxsize=8)
def make_vocabulary(n_vocab: int = 512) -> Vocabulary:
    """Make a vocabulary of exactly `n_vocab` tokens, at least 256 bytes and the control tokens."""
    letters = byte_letters()
    room = n_vocab - len(letters) - len(CONTROL)
    if room < 0:
        raise ValueError(f"n_vocab {n_vocab} is under {len(letters) + len(CONTROL)}")
    merges: dict[str, str] = {}  # token text -> its merge
    for word in (letters[32] + word for word in WORDS):
        for end in range(2, len(word) + 1):
            if len(merges) < room:
                merges.setdefault(word[:end], f"{word[: end - 1]} {word[end - 1]}")
    filler = [f"{letters[32]}w{i}" for i in range(room - len(merges))]
    texts = (*letters, *merges, *filler, *CONTROL)
    types = (NORMAL,) * (n_vocab - len(CONTROL)) + (TOKEN_CONTROL,) * len(CONTROL)
    return Vocabulary(texts, types, tuple(merges.values()), bos=texts.index(BOS), eos=texts.index(EOS))


def altered(
    vocabulary: Vocabulary, *, texts: Mapping[int, str] | None = None, eos: int | None = None
) -> Vocabulary:
    """Return the vocabulary with some token texts or the end token replaced, to make mismatched pairs."""
    new = list(vocabulary.texts)
    for id_, text in (texts or {}).items():
        new[id_] = text
    if len(set(new)) != len(new):
        raise ValueError("two tokens would have the same text, on which llama.cpp ends the process")
    return replace(vocabulary, texts=tuple(new), eos=vocabulary.eos if eos is None else eos)


class RandomWeights:
    """Draws matrices; with `noise` each is a mixture of two seeds', to make a related model."""

    def __init__(self, seed: int, noise: float, noise_seed: int) -> None:
        self.rng, self.other = np.random.default_rng(seed), np.random.default_rng(noise_seed)
        self.noise = noise

    def draw(self, *shape: int, std: float | None = None) -> NDArray[np.float32]:
        weights = self.rng.standard_normal(shape, np.float32)
        if self.noise:
            mixed = self.noise * self.other.standard_normal(shape, np.float32)
            weights = np.sqrt(1 - self.noise**2, dtype=np.float32) * weights + mixed
        return weights * np.float32(shape[-1] ** -0.5 if std is None else std)


def write_llama(
    path: Path,
    *,
    n_vocab: int = 512,
    d: int = 64,
    layers: int = 2,
    n_head: int = 4,
    n_kv: int | None = None,
    head_dim: int | None = None,
    ffn: int = 128,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    tied: bool = False,
    eps: float = 1e-5,
    rope_freq_base: float = 10_000.0,
    seed: int = 0,
    noise: float = 0.0,
    noise_seed: int = 1,
    vocab: Vocabulary | str = "bpe",
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
    arch: str = "llama",
) -> Path:
    """Write a random llama-architecture model, or another with the same tensors, and return `path`.

    `vocab` is "bpe", "none" (no vocabulary at all) or a Vocabulary, whose size then counts. `dtype` is that
    of the matrices ("F32", "F16", "Q8_0", "Q4_0", ...). `noise` between 0 and 1 makes a model related to the
    one of `noise=0`, for a target and its draft: with the defaults 0.05 agrees on 0.7 of the most likely next
    tokens, 0.1 on 0.4, 0.2 on 0.2 (tied: 0.85, 0.75, 0.6). `metadata` adds or replaces
    keys (str, int, float, bool or lists of them); `tensors` adds, replaces or, given None, leaves out.
    """
    vocabulary = make_vocabulary(n_vocab) if vocab == "bpe" else vocab
    n_vocab = len(vocabulary.texts) if isinstance(vocabulary, Vocabulary) else n_vocab
    n_kv, head_dim = n_kv or n_head, head_dim or d // n_head
    writer = GGUFWriter(path, arch)
    writer.add_name(f"tiny random {arch}")
    add_sizes(writer, n_vocab, d, layers, ffn, context_length, eps)
    add_attention(writer, n_head, n_kv, head_dim, rope_freq_base)
    if isinstance(vocabulary, Vocabulary):
        add_vocabulary(writer, vocabulary, chat_template)
    else:
        writer.add_tokenizer_model("none")
    add_metadata(writer, metadata or {})
    weights, q, kv = RandomWeights(seed, noise, noise_seed), n_head * head_dim, n_kv * head_dim
    made = ends_of(weights, n_vocab, d, logit_scale, "output_norm.weight")
    if tied:
        del made["output.weight"]
        made["output_norm.weight"] *= np.float32(logit_scale * d**-0.5)
    for il in range(layers):
        made |= {
            f"blk.{il}.attn_norm.weight": np.ones(d, np.float32),
            f"blk.{il}.attn_q.weight": weights.draw(q, d) * np.float32(2),  # sharp, so that rotation matters
            f"blk.{il}.attn_k.weight": weights.draw(kv, d),
            f"blk.{il}.attn_v.weight": weights.draw(kv, d),
            f"blk.{il}.attn_output.weight": weights.draw(d, q) * np.float32(2),
            **ffn_of(weights, il, d, ffn),
        }
    changed = made | dict(tensors or {})
    finish(writer, {name: tensor for name, tensor in changed.items() if tensor is not None}, dtype)
    return path


def write_hybrid(
    path: Path,
    *,
    n_vocab: int = 512,
    d: int = 64,
    attention: Sequence[bool] = (False, True, False),
    n_head: int = 4,
    n_kv: int = 2,
    ffn: int = 128,
    l_cache: int = 3,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    seed: int = 0,
    noise: float = 0.0,
    noise_seed: int = 1,
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random LFM2 model: layer i attends if attention[i], else it is a short convolution."""
    writer = GGUFWriter(path, "lfm2")
    writer.add_name("tiny random lfm2")
    add_sizes(writer, n_vocab, d, len(attention), ffn, context_length, 1e-5)
    head_dim = d // n_head
    add_attention(writer, n_head, [n_kv if attends else 0 for attends in attention], head_dim, 10_000.0)
    writer.add_shortconv_l_cache(l_cache)
    add_vocabulary(writer, make_vocabulary(n_vocab), chat_template)
    add_metadata(writer, metadata or {})
    weights, kv = RandomWeights(seed, noise, noise_seed), n_kv * head_dim
    tensors = ends_of(weights, n_vocab, d, logit_scale, "token_embd_norm.weight")
    for il, attends in enumerate(attention):
        tensors[f"blk.{il}.attn_norm.weight"] = np.ones(d, np.float32)
        if attends:
            tensors |= {
                f"blk.{il}.attn_q.weight": weights.draw(d, d),
                f"blk.{il}.attn_k.weight": weights.draw(kv, d),
                f"blk.{il}.attn_v.weight": weights.draw(kv, d),
                f"blk.{il}.attn_output.weight": weights.draw(d, d) * np.float32(2),
                f"blk.{il}.attn_q_norm.weight": np.ones(head_dim, np.float32),
                f"blk.{il}.attn_k_norm.weight": np.ones(head_dim, np.float32),
            }
        else:
            tensors |= {
                f"blk.{il}.shortconv.conv.weight": weights.draw(d, l_cache),
                f"blk.{il}.shortconv.in_proj.weight": weights.draw(3 * d, d),
                f"blk.{il}.shortconv.out_proj.weight": weights.draw(d, d) * np.float32(2),
            }
        tensors |= ffn_of(weights, il, d, ffn)
    finish(writer, tensors, dtype)
    return path


def write_recurrent(
    path: Path,
    *,
    n_vocab: int = 512,
    d: int = 32,
    layers: int = 2,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random Mamba model: purely recurrent, and without snapshots to roll back to (n_rs_seq)."""
    inner, state, rank, kernel = 2 * d, 8, 4, 4
    writer = GGUFWriter(path, "mamba")
    writer.add_name("tiny random mamba")
    add_sizes(writer, n_vocab, d, layers, 0, context_length, 1e-5)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    add_vocabulary(writer, make_vocabulary(n_vocab), chat_template)
    add_metadata(writer, metadata or {})
    weights = RandomWeights(seed, 0.0, 1)
    tensors = ends_of(weights, n_vocab, d, logit_scale, "output_norm.weight")
    for il in range(layers):
        decay = -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
        tensors |= {
            f"blk.{il}.attn_norm.weight": np.ones(d, np.float32),
            f"blk.{il}.ssm_in.weight": weights.draw(2 * inner, d),
            f"blk.{il}.ssm_conv1d.weight": weights.draw(inner, kernel),
            f"blk.{il}.ssm_conv1d.bias": np.zeros(inner, np.float32),
            f"blk.{il}.ssm_x.weight": weights.draw(rank + 2 * state, inner),
            f"blk.{il}.ssm_dt.weight": weights.draw(inner, rank),
            f"blk.{il}.ssm_dt.bias": np.full(inner, -2.0, np.float32),
            f"blk.{il}.ssm_a": decay,
            f"blk.{il}.ssm_d": np.ones(inner, np.float32),
            f"blk.{il}.ssm_out.weight": weights.draw(d, inner) * np.float32(4),
        }
    finish(writer, tensors, dtype)
    return path


def write_sliding(
    path: Path,
    *,
    n_vocab: int = 512,
    d: int = 64,
    layers: int = 7,
    n_head: int = 4,
    n_kv: int = 2,
    ffn: int = 128,
    window: int = 64,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a random Gemma 3: five layers of six see the last `window` tokens, the sixth sees all."""
    head_dim = d // n_head
    writer = GGUFWriter(path, "gemma3")
    writer.add_name("tiny random gemma3")
    add_sizes(writer, n_vocab, d, layers, ffn, context_length, 1e-6)
    add_attention(writer, n_head, n_kv, head_dim, 1_000_000.0)
    writer.add_sliding_window(window)
    add_vocabulary(writer, make_vocabulary(n_vocab), chat_template)
    weights, q, kv = RandomWeights(seed, 0.0, 1), d, n_kv * head_dim
    tensors = ends_of(weights, n_vocab, d, logit_scale, "output_norm.weight")
    del tensors["output.weight"]
    tensors["output_norm.weight"] *= np.float32(logit_scale * d**-0.5)
    for il in range(layers):
        ones = ("attn_norm", "post_attention_norm", "post_ffw_norm")
        tensors |= {f"blk.{il}.{name}.weight": np.ones(d, np.float32) for name in ones}
        tensors |= _attention(weights, il, d, q, kv) | head_norms(il, head_dim) | ffn_of(weights, il, d, ffn)
    finish(writer, tensors, dtype)
    return path


def write_reranker(path: Path, metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a random Qwen 3 with a classifier of two answers, and return `path`."""
    norms = {f"blk.{il}.attn_{x}_norm.weight": np.ones(16, np.float32) for il in range(2) for x in "qk"}
    classes = np.random.default_rng(1).normal(0, 0.2, (2, 64)).astype(np.float32)
    told = {"qwen3.pooling_type": 4, "qwen3.classifier.output_labels": ["yes", "no"], **(metadata or {})}
    return write_llama(path, arch="qwen3", metadata=told, tensors={**norms, "cls.output.weight": classes})


def write_experts(
    path: Path,
    *,
    n_vocab: int = 512,
    d: int = 64,
    layers: int = 2,
    n_head: int = 4,
    n_kv: int = 2,
    experts: int = 8,
    used: int = 2,
    ffn: int = 64,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a random Qwen 3 mixture: each token is worked on by `used` of `experts`, of width `ffn` each."""
    head_dim = d // n_head
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_name("tiny random qwen3moe")
    add_sizes(writer, n_vocab, d, layers, ffn, context_length, 1e-6)
    add_attention(writer, n_head, n_kv, head_dim, 1_000_000.0)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    writer.add_expert_feed_forward_length(ffn)
    add_vocabulary(writer, make_vocabulary(n_vocab), chat_template)
    weights, kv = RandomWeights(seed, 0.0, 1), n_kv * head_dim
    tensors = ends_of(weights, n_vocab, d, logit_scale, "output_norm.weight")
    for il in range(layers):
        tensors |= {
            f"blk.{il}.attn_norm.weight": np.ones(d, np.float32),
            f"blk.{il}.ffn_norm.weight": np.ones(d, np.float32),
            f"blk.{il}.ffn_gate_inp.weight": weights.draw(experts, d),
            f"blk.{il}.ffn_gate_exps.weight": weights.draw(experts, ffn, d),
            f"blk.{il}.ffn_up_exps.weight": weights.draw(experts, ffn, d),
            f"blk.{il}.ffn_down_exps.weight": weights.draw(experts, d, ffn) * np.float32(2),
        }
        tensors |= _attention(weights, il, d, n_head * head_dim, kv) | head_norms(il, head_dim)
    finish(writer, tensors, dtype)
    return path


def write_latent(
    path: Path,
    *,
    top_k: int = 0,
    n_vocab: int = 512,
    d: int = 64,
    layers: int = 2,
    n_head: int = 4,
    rank: int = 32,
    rope: int = 16,
    ffn: int = 128,
    context_length: int = 512,
    dtype: str = "F32",
    logit_scale: float = 2.0,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
) -> Path:
    """Write a random DeepSeek 2 without experts: keys and values are compressed into one latent (MLA).

    top_k: of a DeepSeek 3.2, whose indexer chooses so many tokens for each to attend to.
    """
    name, index_heads, index_dim = "deepseek32" if top_k else "deepseek2", 16, 64  # few heads: many ties
    key, value = 2 * rope, rope
    writer = GGUFWriter(path, name)
    writer.add_name(f"tiny random {name}")
    add_sizes(writer, n_vocab, d, layers, ffn, context_length, 1e-6)
    add_attention(writer, n_head, 1, rank + rope, 10_000.0)
    sizes = {
        "attention.value_length": rank, "rope.dimension_count": rope, "attention.q_lora_rank": rank,
        "attention.kv_lora_rank": rank, "attention.key_length_mla": key, "attention.value_length_mla": value,
        "leading_dense_block_count": layers, "expert_feed_forward_length": ffn, "expert_shared_count": 0,
        "expert_gating_func": 2,
    }  # fmt: skip
    if top_k:
        of_indexer = {"head_count": index_heads, "key_length": index_dim, "top_k": top_k}
        sizes |= {f"attention.indexer.{size}": n for size, n in of_indexer.items()}
    add_metadata(writer, {f"{name}.{size}": n for size, n in sizes.items()})
    add_vocabulary(writer, make_vocabulary(n_vocab), chat_template)
    weights = RandomWeights(seed, 0.0, 1)
    tensors = ends_of(weights, n_vocab, d, logit_scale, "output_norm.weight")
    for il in range(layers):
        made = {
            "attn_norm.weight": np.ones(d, np.float32),
            "attn_q_a.weight": weights.draw(rank, d),
            "attn_q_a_norm.weight": np.ones(rank, np.float32),
            "attn_q_b.weight": weights.draw(n_head * key, rank) * np.float32(2),
            "attn_kv_a_mqa.weight": weights.draw(rank + rope, d),
            "attn_kv_a_norm.weight": np.ones(rank, np.float32),
            "attn_k_b.weight": weights.draw(n_head, rank, key - rope),
            "attn_v_b.weight": weights.draw(n_head, value, rank),
            "attn_output.weight": weights.draw(d, n_head * value) * np.float32(2),
        }
        if top_k:
            made |= {
                "indexer.k_norm.weight": np.ones(index_dim, np.float32),
                "indexer.k_norm.bias": np.zeros(index_dim, np.float32),
                "indexer.proj.weight": weights.draw(index_heads, d),
                "indexer.attn_k.weight": weights.draw(index_dim, d),
                "indexer.attn_q_b.weight": weights.draw(index_heads * index_dim, rank),
            }
        tensors |= {f"blk.{il}.{part}": tensor for part, tensor in made.items()}
        tensors |= ffn_of(weights, il, d, ffn)
    finish(writer, tensors, dtype)
    return path


# ---- pieces the architectures share -----------------------------------------------------------------------


def add_sizes(
    writer: GGUFWriter, n_vocab: int, d: int, layers: int, ffn: int, context_length: int, eps: float
) -> None:
    writer.add_context_length(context_length)
    writer.add_embedding_length(d)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_layer_norm_rms_eps(eps)
    writer.add_vocab_size(n_vocab)


def add_attention(
    writer: GGUFWriter, n_head: int, n_kv: int | list[int], head_dim: int, freq_base: float
) -> None:
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_kv)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(freq_base)


def add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary, chat_template: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.texts)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges or ("t h",))  # llama.cpp wants the key, GGUF no empty arrays
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def add_metadata(writer: GGUFWriter, metadata: Mapping[str, Any]) -> None:
    """None leaves a key out."""
    for key, value in metadata.items():
        writer.kv_data[0].pop(key, None)  # else gguf warns of a key set twice
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)


def ends_of(
    weights: RandomWeights, n_vocab: int, d: int, logit_scale: float, norm: str
) -> dict[str, NDArray[np.float32]]:
    return {
        "token_embd.weight": weights.draw(n_vocab, d, std=1.0),
        norm: np.ones(d, np.float32),
        "output.weight": weights.draw(n_vocab, d, std=logit_scale * d**-0.5),
    }


def _attention(weights: RandomWeights, il: int, d: int, q: int, kv: int) -> dict[str, NDArray[np.float32]]:
    return {
        f"blk.{il}.attn_q.weight": weights.draw(q, d),
        f"blk.{il}.attn_k.weight": weights.draw(kv, d),
        f"blk.{il}.attn_v.weight": weights.draw(kv, d),
        f"blk.{il}.attn_output.weight": weights.draw(d, q) * np.float32(2),
    }


def head_norms(il: int, head_dim: int) -> dict[str, NDArray[np.float32]]:
    return {f"blk.{il}.attn_{name}_norm.weight": np.ones(head_dim, np.float32) for name in "qk"}


def ffn_of(weights: RandomWeights, il: int, d: int, ffn: int) -> dict[str, NDArray[np.float32]]:
    return {
        f"blk.{il}.ffn_norm.weight": np.ones(d, np.float32),
        f"blk.{il}.ffn_gate.weight": weights.draw(ffn, d),
        f"blk.{il}.ffn_up.weight": weights.draw(ffn, d),
        f"blk.{il}.ffn_down.weight": weights.draw(d, ffn) * np.float32(2),
    }


def finish(writer: GGUFWriter, tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> None:
    """Write the tensors, matrices of linear layers as `dtype` and all else as F32."""
    for name, tensor in tensors.items():
        matrix = tensor.ndim >= 2 and not any(
            part in name for part in (".conv.", "conv1d", "ssm_a", "ssm_dt", "gate_inp")
        )
        wanted = GGMLQuantizationType[dtype] if matrix else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(np.ascontiguousarray(tensor), wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
