"""Twins of a draft with another vocabulary: the same weights, ids permuted or the rarest tokens gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from edgespec_models.gguf.header import Header, read_file
from edgespec_models.gguf.written import write_gguf

TOKENS, MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
BY_TOKEN = ("tokenizer.ggml.token_type", "tokenizer.ggml.scores")
BY_ROW = ("token_embd.weight", "output.weight", "output.bias", "per_layer_token_embd.weight")
NORMAL, UNUSED = 1, 5  # llama_token_type


def permuted(source: Path, path: Path, seed: int = 0) -> Path:
    """Writes a twin whose ids are in another order."""
    tokens = read_file(source).metadata[TOKENS]
    assert isinstance(tokens, list)
    write_with_tokens(source, path, np.random.default_rng(seed).permutation(len(tokens)).tolist())
    return path


def trimmed(source: Path, path: Path, n: int) -> Path:
    """Writes a twin of the n most used tokens."""
    write_with_tokens(source, path, most_used(read_file(source), n))
    return path


def most_used(header: Header, n: int) -> list[int]:
    """Returns the first n ordinary tokens and all others that are used."""
    types = header.metadata[BY_TOKEN[0]]
    assert isinstance(types, Sequence)
    kept, ordinary = [], 0
    for token, kind in enumerate(types):
        if kind not in (NORMAL, UNUSED) or (kind == NORMAL and ordinary < n):
            kept.append(token)
        ordinary += kind == NORMAL
    return kept


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
