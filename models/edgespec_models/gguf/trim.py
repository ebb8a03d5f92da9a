"""A model with fewer tokens: only the embedding and output rows of the most used ones are kept.

Byte-pair vocabularies number tokens by how often they were merged, so the first n are the most used; control
tokens, bytes and what users added stay, and padding goes. Such a draft guesses by
token-level intersection (`translation.py`); it does not tokenize text itself as the whole one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.gguf.written import write_gguf

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
BY_TOKEN = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
BY_ROW = ("token_embd.weight", "output.weight", "output.bias", "per_layer_token_embd.weight")
NORMAL, UNUSED = 1, 5  # llama_token_type


def most_used(header: Header, n: int) -> list[int]:
    """Returns the first n ordinary tokens and all others that are used. Raises HeaderError."""
    tokens, types = header.metadata.get(TOKENS), header.metadata.get(BY_TOKEN[0])
    if not isinstance(tokens, Sequence) or not isinstance(types, Sequence) or len(types) != len(tokens):
        raise HeaderError(f"{header.name} does not say what kinds its tokens are, so none can be left out")
    kept, ordinary = [], 0
    for token, kind in enumerate(types):
        if kind not in (NORMAL, UNUSED) or (kind == NORMAL and ordinary < n):
            kept.append(token)
        ordinary += kind == NORMAL
    return kept


def ordinary_tokens(header: Header) -> int:
    """Returns how many tokens are neither control tokens, bytes, unused nor a user's."""
    types = header.metadata.get(BY_TOKEN[0])
    return sum(kind == NORMAL for kind in types) if isinstance(types, Sequence) else 0


def write_with_tokens(source: Path, path: Path, kept: Sequence[int]) -> None:
    """Writes a model whose token i is token kept[i] of the source, whole or not at all. Raises OSError."""
    reader = GGUFReader(source)
    field = {name: value.contents() for name, value in reader.fields.items()}
    known = {field[TOKENS][token] for token in kept}
    new_id = {old: new for new, old in enumerate(kept)}
    changed: dict[str, Any] = {TOKENS: [field[TOKENS][token] for token in kept]}
    changed |= {name: [field[name][token] for token in kept] for name in BY_TOKEN if name in field}
    if MERGES in field:
        changed[MERGES] = [merge for merge in field[MERGES] if _stays(merge, known)]
    writer = GGUFWriter(None, field["general.architecture"])
    for name, value in field.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if name.endswith(".vocab_size"):
            value = len(kept)
        elif name.startswith("tokenizer.ggml.") and name.endswith("_token_id"):
            if value not in new_id:  # it is padding, or left out
                continue
            value = new_id[value]
        kind = reader.fields[name].types
        array = kind[0] == GGUFValueType.ARRAY
        writer.add_key_value(name, changed.get(name, value), kind[0], sub_type=kind[-1] if array else None)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in BY_ROW:
            data = np.ascontiguousarray(data[list(kept)])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    write_gguf(writer, path)


def _stays(merge: str, known: set[str]) -> bool:
    """True for a merge whose parts and result are still tokens."""
    return all(part in known for part in merge.split(" ")) and merge.replace(" ", "") in known
