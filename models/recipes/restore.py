"""Read a pair's GGUF files back into torch, so that training can continue from what ships.

The work folder of a run does not last; the committed files do. Weights come back rounded as in the file
(Q8_0: near enough to continue), without the state of the optimisers.
"""

from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from edgespec_models.distill.network import Llama, Shape
from edgespec_models.distill.target_file import number, separate
from recipes.marks import SPECIAL
from recipes.tokenizer import EXPRESSIONS

PLACES = {
    "attn_norm": "attn_norm",
    "attn_q": "wq",
    "attn_k": "wk",
    "attn_v": "wv",
    "attn_output": "wo",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}


def read_shape(reader: gguf.GGUFReader) -> Shape:
    """Return the numbers of the architecture."""

    def whole(key: str) -> int:
        return int(number(reader, f"llama.{key}"))

    return Shape(
        width=whole("embedding_length"),
        layers=whole("block_count"),
        heads=whole("attention.head_count"),
        kv_heads=whole("attention.head_count_kv"),
        head_dim=whole("attention.key_length"),
        ffn=whole("feed_forward_length"),
        vocab=whole("vocab_size"),
        context=whole("context_length"),
    )


def read_network(path: Path) -> Llama:
    """Return the network of a file that `export.py` wrote."""
    reader = gguf.GGUFReader(path)
    shape = read_shape(reader)
    state: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        weight = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in {"attn_q", "attn_k"}:
                heads = shape.heads if parts[2] == "attn_q" else shape.kv_heads
                weight = separate(weight, heads, shape.head_dim)
            name = f"blocks.{parts[1]}.{PLACES[parts[2]]}.weight"
        else:
            name = {"token_embd": "embed.weight", "output_norm": "norm.weight"}[parts[0]]
        state[name] = torch.from_numpy(weight)
    model = Llama(shape)
    model.load_state_dict(state)
    return model


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the vocabulary of a file that `export.py` wrote."""
    reader = gguf.GGUFReader(path)

    def field(key: str) -> list[str]:
        found = reader.get_field(f"tokenizer.ggml.{key}")
        if found is None:
            raise KeyError(f"tokenizer.ggml.{key} is not in the metadata of {path}")
        return found.contents()

    pre = str(field("pre"))
    merges = [(a, b) for a, b in (merge.split(" ") for merge in field("merges"))]
    vocab = {piece: i for i, piece in enumerate(field("tokens"))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    split = pre_tokenizers.Split(Regex(EXPRESSIONS[pre]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer
