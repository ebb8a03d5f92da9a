"""Twins of a draft with another vocabulary: the same weights, ids permuted or the rarest tokens gone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

TOKENS, TYPES, MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))


def write_twin(source: Path, path: Path, kept: Sequence[int]) -> Path:
    """Writes a model whose token i is token kept[i] of the source; its output rows are its embedding's."""
    reader = gguf.GGUFReader(source)
    field = {name: value.contents() for name, value in reader.fields.items()}
    tokens, types = field[TOKENS], field[TYPES]
    known = {tokens[i] for i in kept}
    left = [
        merge
        for merge in field[MERGES]
        if all(part in known for part in merge.split(" ")) and merge.replace(" ", "") in known
    ]
    new_id = {old: new for new, old in enumerate(kept)}
    changed: dict[str, Any] = {
        TOKENS: [tokens[i] for i in kept],
        TYPES: [types[i] for i in kept],
        MERGES: left,
        "llama.vocab_size": len(kept),
    }
    writer = gguf.GGUFWriter(path, "llama")
    for name, known_field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = changed.get(name, field[name])
        if name.endswith("_token_id"):
            value = new_id[value]
        kind = known_field.types[0]
        array = kind == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, value, kind, sub_type=known_field.types[-1] if array else None)
    for tensor in reader.tensors:
        data = np.array(tensor.data)
        rows = data[list(kept)] if tensor.name == "token_embd.weight" else data
        writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(source: Path, path: Path, seed: int = 0) -> Path:
    """Writes a twin whose ids are in another order."""
    n = len(gguf.GGUFReader(source).fields[TOKENS].contents())
    return write_twin(source, path, np.random.default_rng(seed).permutation(n).tolist())


def trimmed(source: Path, path: Path, n: int) -> Path:
    """Writes a twin of the first n tokens: byte-pair encoding adds tokens by how often they are used."""
    return write_twin(source, path, range(n))
