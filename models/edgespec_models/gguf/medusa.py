"""Medusa heads in a file of their own: converted from the published safetensors, and read for numpy.

    python -m edgespec_models.gguf.medusa medusa_lm_head.safetensors heads.gguf --target target.gguf

Head i guesses the token i + 2 places after a hidden state of the target: the state, plus a SiLU of a linear
map of it (one residual block or several), then a matrix with a row for each token. That matrix is most of the
file, and `--tokens` keeps only the rows of the most used tokens. llama.cpp has no graph for these heads, so
the architecture of the file, `medusa`, is ours. (Medusa, arXiv 2401.10774; torch's names for its tensors:
"0.0.linear.weight" is the map of the first block of the first head, "0.1.weight" the matrix after it.)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec_models.gguf.header import Header, HeaderError, read_file
from edgespec_models.gguf.vocabulary import vocabulary_of

ARCHITECTURE, WIDTH = "medusa", "embedding_length"
MOST_HEADS, MOST_BLOCKS = 16, 8
_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")
_FORMATS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """The weights of one head."""

    blocks: tuple[tuple[Floats, Floats], ...]  # maps (d, d) and biases (d,)
    output: Floats  # (tokens that it knows, d)


def shapes(n_heads: int, n_blocks: int, d: int, rows: int) -> dict[str, tuple[int, ...]]:
    """Returns every tensor of a file with its shape, rows (outputs) first."""
    found: dict[str, tuple[int, ...]] = {}
    for i in range(n_heads):
        for j in range(n_blocks):
            found |= {f"head.{i}.block.{j}.weight": (d, d), f"head.{i}.block.{j}.bias": (d,)}
        found[f"head.{i}.output.weight"] = (rows, d)
    return found


def why_incomplete(header: Header) -> str | None:
    """Returns in a clause what a file of Medusa heads lacks; None if it is complete."""
    n_heads, n_blocks, d, n_vocab = (
        header.of_architecture(key, 0) or 0 for key in ("heads", "blocks", WIDTH, "vocab_size")
    )
    if not (1 <= n_heads <= MOST_HEADS and 0 <= n_blocks <= MOST_BLOCKS and d > 0):
        most = f"1 to {MOST_HEADS} of up to {MOST_BLOCKS} can be run"
        return f"it has {n_heads} heads of {n_blocks} blocks, and {most}"
    own = {tensor.name: tensor.shape[::-1] for tensor in header.tensors}
    rows = own.get("d2t", (n_vocab,))[0]
    for name, wanted in shapes(n_heads, n_blocks, d, rows).items():
        if own.get(name) != wanted:
            return f"its tensor {name} is of shape {own.get(name)}, and {wanted} is wanted"
    return None


def load(path: Path) -> tuple[list[MedusaHead], NDArray[np.int64] | None]:
    """Returns the heads of a complete file, and the tokens of their rows; None: all."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    header = read_file(path)
    n_heads, n_blocks = (header.of_architecture(key, 0) or 0 for key in ("heads", "blocks"))
    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}

    def weights(name: str) -> Floats:
        made: Floats = np.ascontiguousarray(dequantize(found[name].data, found[name].tensor_type), np.float32)
        return made

    heads = []
    for i in range(n_heads):
        names = [f"head.{i}.block.{j}" for j in range(n_blocks)]
        blocks = [(weights(f"{name}.weight"), weights(f"{name}.bias")) for name in names]
        heads.append(MedusaHead(tuple(blocks), weights(f"head.{i}.output.weight")))
    return heads, np.array(found["d2t"].data, np.int64) if "d2t" in found else None


def convert(source: Path, destination: Path, target: Header, tokens: int | None = None) -> None:
    """Writes published heads as a GGUF of F16, whole or not at all.

    target: the model that they guess for. tokens: how many of its most used to keep. Raises HeaderError for a
    file without heads for this target, OSError.
    """
    from gguf import GGUFWriter

    from edgespec_models.gguf.trim import most_used  # it loads gguf, which nothing else here needs

    found = _read_safetensors(source)
    tensors, n_blocks = _named(source, found)
    n_heads, d = sum(name.endswith("output.weight") for name in tensors), target.of_architecture(WIDTH) or 0
    n_vocab = len(vocabulary_of(target).texts)
    rows, width = (*tensors["head.0.output.weight"].shape, 0)[:2]
    shaped = {name: tensor.shape for name, tensor in tensors.items()}
    if shaped != shapes(n_heads, n_blocks, d, rows) or not 0 < rows <= n_vocab:
        raise HeaderError(
            f"{source} holds heads for a target of {rows:,} tokens and hidden states of {width:,} numbers, "
            f"and {target.name} has {n_vocab:,} and {d:,}: choose the heads that were made for this target"
        )
    kept = [i for i in (range(n_vocab) if tokens is None else most_used(target, tokens)) if i < rows]
    part = destination.with_name(f"{destination.name}.{os.getpid()}.part")
    writer = GGUFWriter(part, ARCHITECTURE)
    try:
        writer.add_name(f"Medusa heads for {target.text('general.name', target.name)}")
        for key, number in (("heads", n_heads), ("blocks", n_blocks), (WIDTH, d), ("vocab_size", n_vocab)):
            writer.add_uint32(f"{ARCHITECTURE}.{key}", number)
        if len(kept) < n_vocab:
            writer.add_tensor("d2t", np.array(kept, np.int64))
        for name, weights in tensors.items():
            data = weights[kept] if name.endswith("output.weight") else weights
            writer.add_tensor(name, data.astype(np.float32 if data.ndim == 1 else np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, destination)
    finally:
        writer.close()
        with suppress(OSError):
            part.unlink()


def _named(source: Path, found: dict[str, Floats]) -> tuple[dict[str, Floats], int]:
    """Returns the tensors under our names, and how many residual blocks a head has."""
    parts = {match.groups(): tensor for name, tensor in found.items() if (match := _NAME.fullmatch(name))}
    n_blocks = max((int(block) for _, block, _ in parts), default=0)
    named: dict[str, Floats] = {}
    for (head, block, what), tensor in parts.items():
        if what == "weight":
            named[f"head.{int(head)}.output.weight"] = tensor
        else:
            named[f"head.{int(head)}.block.{int(block)}.{what.rpartition('.')[2]}"] = tensor
    if "head.0.output.weight" not in named or len(parts) != len(found):
        raise HeaderError(f"{source} holds no Medusa heads: name a repository's medusa_lm_head.safetensors")
    return named, n_blocks


def _read_safetensors(path: Path) -> dict[str, Floats]:
    """Returns the tensors of a file as float32. Raises HeaderError."""
    raw = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    damaged = HeaderError(f"{path} is no safetensors file, or is cut short: download it again")
    if raw.size < 8:
        raise damaged
    start = 8 + int(raw[:8].view("<u8")[0])
    try:
        described = json.loads(raw[8:start].tobytes() if start <= raw.size else b"")
        found = {}
        for name, tensor in described.items():
            if name == "__metadata__":
                continue
            kind, shape, (first, end) = _FORMATS[tensor["dtype"]], tensor["shape"], tensor["data_offsets"]
            data = raw[start + first : start + end].tobytes()
            found[name] = _floats(np.frombuffer(data, kind).reshape(shape))
        return found
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged from None


def _floats(numbers: NDArray[Any]) -> Floats:
    if numbers.dtype == np.uint16:  # BF16: the first half of a float32
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Convert published Medusa heads to a GGUF file.")
    parser.add_argument("source", type=Path, help="medusa_lm_head.safetensors")
    parser.add_argument("destination", type=Path, help="the GGUF file that is written")
    parser.add_argument("--target", type=Path, required=True, help="GGUF file of the model they guess for")
    parser.add_argument("--tokens", type=int, help="keep so many of its most used tokens (default: all)")
    chosen = parser.parse_args(arguments)
    try:
        convert(chosen.source, chosen.destination, read_file(chosen.target), chosen.tokens)
    except (HeaderError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
