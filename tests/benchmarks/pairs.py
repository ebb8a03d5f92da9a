"""Pairs to measure on: the embedded target grown to a named cost, with drafts of three qualities.

    python tests/benchmarks/pairs.py FOLDER [--sizes 0.6B-F16 1.1B-Q4_0]

good: the ungrown target, grown to the cost of a draft (it guesses nearly all). fair: the embedded draft,
grown likewise. poor: that, with noise on its weights. worst: so much noise that next to nothing is
accepted. mtp: no draft, but the embedded target with its MTP block, grown together. Drafts are Q8_0, or the
target's type where that is smaller. Each costs 0.05 to 0.10 of its target; what is accepted is measured, not
set. Sizes in other formats (0.6B-Q4_K_M) are converted from F16 by llama.cpp's quantiser, with its drafts.
A size `moe-0.6B-F16` is a mixture of experts: 32 of a quarter of the layer's width, 4 of them used.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from mixtures import as_mixture

from edgespec_models import tiny
from edgespec_models.grow import grow
from edgespec_models.grow.source import ModelShape

QUALITIES = ("good", "fair", "poor", "worst")
HEAD = "mtp"  # in place of a quality: a head in the target's file guesses
MIXTURE = "moe-"  # before a size
GROWN = ("F16", "Q4_0")  # formats that grow writes itself
NOISE = {"poor": 0.3, "worst": 1.0}  # standard deviations of each matrix's own weights


def target_file(folder: Path, size: str, quality: str = "good") -> Path:
    """Grows the embedded target to `size`, unless that is done; returns its file."""
    if size.startswith(MIXTURE):
        dense = target_file(folder, size.removeprefix(MIXTURE), quality)
        return as_mixture(dense, dense.with_name(f"{dense.stem}-moe.gguf"))
    shape, _, number_format = size.partition("-")
    if number_format not in GROWN:
        return _converted(target_file(folder, f"{shape}-F16", quality), number_format)
    spec = grow.parse_spec(size)
    source = tiny.mtp_path() if quality == HEAD else tiny.target_path()
    path = folder / f"{source.stem}-{spec.name}.gguf"
    return path if path.exists() else _grown(source, path, spec.target, spec.dtype)


def draft_file(folder: Path, size: str, quality: str) -> Path:
    """Makes a draft of the given quality for the target of `size`, unless that is done; returns its file."""
    shape, _, number_format = size.removeprefix(MIXTURE).partition("-")
    spec = grow.parse_spec(f"{shape}-{number_format if number_format in GROWN else 'F16'}")
    path = folder / f"{quality}-{spec.name}.gguf"
    if path.exists():
        return path
    if quality in NOISE:
        return _noised(draft_file(folder, size, "fair"), path, NOISE[quality])
    source = tiny.target_path() if quality == "good" else tiny.draft_path()
    return _grown(source, path, spec.draft, "Q8_0" if spec.dtype == "F16" else spec.dtype)


def _converted(source: Path, number_format: str) -> Path:
    path = source.with_name(source.name.replace("-F16", f"-{number_format}"))
    if not path.exists():
        words = ["convert", str(source), "--to", number_format, "-o", str(path)]
        subprocess.run([sys.executable, "-m", "edgespec", *words], check=True, stdout=subprocess.DEVNULL)
    return path


def _grown(source: Path, path: Path, shape: ModelShape, dtype: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    grow.grow(source, path, shape, dtype=dtype)
    return path


def _noised(source: Path, path: Path, share: float) -> Path:
    """Copies a file with noise on all its matrices; what growing set to 0 stays 0, and so does the cost."""
    aside = path.with_suffix(".part")
    shutil.copyfile(source, aside)
    rng = np.random.default_rng(7)
    for tensor in GGUFReader(aside, "r+").tensors:
        if len(tensor.shape) < 2 or "token_embd" in tensor.name:
            continue
        weights = dequantize(tensor.data, tensor.tensor_type)
        real = weights != 0
        if not real.any():
            continue
        weights[real] += share * weights[real].std() * rng.standard_normal(int(real.sum()))
        if tensor.tensor_type == GGMLQuantizationType.F16:
            tensor.data[...] = weights.astype(np.float16)
        else:
            tensor.data[...] = quantize(weights.astype(np.float32), tensor.tensor_type)
    aside.rename(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", nargs="+", default=["0.6B-F16", "1.1B-Q4_0"])
    chosen = parser.parse_args()
    for size in chosen.sizes:
        files = [target_file(chosen.folder, size)]
        files += [draft_file(chosen.folder, size, quality) for quality in QUALITIES]
        for file in files:
            print(f"{file}  {file.stat().st_size / 2**20:,.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
