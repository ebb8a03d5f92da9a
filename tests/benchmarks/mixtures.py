"""A dense llama model as a mixture of experts that computes the same, to measure mixtures without a download.

    python tests/benchmarks/mixtures.py DENSE.gguf MIXTURE.gguf [--experts 32] [--used 4] [--width 768]

Each expert is a copy of the first `width` hidden units of the dense layer, which must be all that matter (so
it is in a grown model: the others add nothing), and llama.cpp's weights of the chosen experts sum to 1. A
random router wakes other experts for each token.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from numpy.typing import NDArray

SPREAD = 4.0  # standard deviation of the router's weights: its inputs are normalised, most of them 0
PARTS = ("ffn_gate", "ffn_up", "ffn_down")


def as_mixture(source: Path, path: Path, *, experts: int = 32, used: int = 4, width: int = 768) -> Path:
    """Writes the mixture, unless that is done; returns its file. Memory: one layer's matrix at a time."""
    if path.exists():
        return path
    reader, aside = GGUFReader(source), path.with_suffix(".part")
    writer = GGUFWriter(aside, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "llama.feed_forward_length"):
            sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    writer.add_feed_forward_length(width)
    writer.add_expert_feed_forward_length(width)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    rng, d = np.random.default_rng(0), next(t for t in reader.tensors if "ffn_gate" in t.name).shape[0]
    made: list[tuple[str, GGMLQuantizationType, Callable[[], NDArray[Any]]]] = []
    for tensor in reader.tensors:
        block, _, part = tensor.name.removesuffix(".weight").rpartition(".")
        if part not in PARTS:
            made.append((tensor.name, tensor.tensor_type, partial(np.asarray, tensor.data)))
            continue
        if part == "ffn_gate":
            router = rng.normal(0, SPREAD, (experts, int(d))).astype(np.float32)
            name = f"{block}.ffn_gate_inp.weight"
            made.append((name, GGMLQuantizationType.F32, partial(np.asarray, router)))
        name = f"{block}.{part}_exps.weight"
        made.append((name, tensor.tensor_type, partial(_copies, tensor, experts, width)))
    for name, type_, load in made:
        data = load()
        shape = _weights(data.shape, type_)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), data.nbytes, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, _, load in made:
        writer.write_tensor_data(load())
    writer.close()
    aside.rename(path)
    return path


def _weights(shape: tuple[int, ...], type_: GGMLQuantizationType) -> tuple[int, ...]:
    """Returns the shape in weights of what is packed in bytes, or in F16 and F32 as they are."""
    if type_ in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
        return shape
    n, size = GGML_QUANT_SIZES[type_]
    return (*shape[:-1], shape[-1] // size * n)


def _copies(tensor: ReaderTensor, experts: int, width: int) -> NDArray[Any]:
    data = np.asarray(tensor.data)
    if "ffn_down" in tensor.name:
        columns = data.shape[1] * width // int(tensor.shape[0])  # bytes, or numbers
        data = data[:, :columns]
    else:
        data = data[:width]
    return np.ascontiguousarray(np.broadcast_to(data, (experts, *data.shape)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("path", type=Path)
    for name, default in (("experts", 32), ("used", 4), ("width", 768)):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    as_mixture(chosen.source, chosen.path, experts=chosen.experts, used=chosen.used, width=chosen.width)


if __name__ == "__main__":
    main()
