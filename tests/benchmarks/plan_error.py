"""How far plans are from whole models: slices are measured and scaled, and the whole file is measured too.

    python tests/benchmarks/plan_error.py [FILE.gguf ...]

Without files, models of a few hundred MB and of several architectures are made with random weights. Whole and
slices are evaluated in turn, in random order, so that other load affects all alike; what is
printed is the median of the planned time over the whole one's, for each number of tokens evaluated at once.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny_gguf

from edgespec.commands.plan import measuring, slices
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec_models.gguf.header import Tensor, read_file
from edgespec_models.gguf.slice import Layers, layers_of, write_slice

TURNS = 16
RNG = random.Random(1)
SIZES: dict[str, Any] = {"n_vocab": 4096, "d": 1024, "n_head": 8, "context_length": 512, "dtype": "F16"}


def made(folder: Path) -> dict[str, Path]:
    """Writes whole models of random weights; the first ones through tests/tiny_gguf, layer by layer alike."""
    few = {
        "llama Q8_0": tiny_gguf.write_llama(folder / "few-llama.gguf", layers=2, n_kv=2, ffn=4096, **SIZES),
        "gemma3 F16": tiny_gguf.write_sliding(folder / "few-gemma.gguf", layers=6, ffn=4096, **SIZES),
        "qwen3moe Q4_K": tiny_gguf.write_experts(
            folder / "few-experts.gguf", layers=2, experts=16, used=4, ffn=512, **SIZES
        ),
        "lfm2 Q8_0": tiny_gguf.write_hybrid(
            folder / "few-hybrid.gguf", attention=(False, False, True) * 2, ffn=4096, **SIZES
        ),
    }
    types = {"Q8_0": 8, "F16": 1, "Q4_K": 12}
    depth = {"llama Q8_0": 24, "gemma3 F16": 18, "qwen3moe Q4_K": 64, "lfm2 Q8_0": 24}
    files = {}
    for name, path in few.items():
        model = deepened(layers_of([read_file(path)]), depth[name], types[name.split()[1]])
        files[name] = folder / f"{name.replace(' ', '-')}.gguf"
        write_deep(files[name], model)
    return files


def deepened(model: Layers, n: int, type_: int) -> Layers:
    """Returns the model with its layers repeated to n, and its matrices in another format."""
    layers = []
    for i in range(n):
        source = model.layers[i % len(model.layers)]
        part = [t.name.partition(f"blk.{i % len(model.layers)}.")[2] for t in source]
        layers.append(
            tuple(
                Tensor(f"blk.{i}.{p}", t.shape, type_ if t.type == 1 else t.type, 0, None)
                for p, t in zip(part, source, strict=True)
            )
        )
    return replace(model, layers=tuple(layers))


def write_deep(path: Path, model: Layers) -> None:
    """Writes a model that has more layers than the file its metadata came from."""
    write_slice(path, model, len(model.layers))


def compare(name: str, path: Path) -> None:
    """Prints planned over whole, by number of tokens."""
    model = layers_of([read_file(path)])
    wanted = slices.slices_of(model)
    assert wanted.small is not None, f"{name} is measured whole: nothing to compare"
    files = {wanted.whole: path}
    ratios: dict[int, list[float]] = {n: [] for n in measuring.SIZES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        for n in (wanted.small, wanted.large):
            files[n] = Path(folder) / f"{n}.gguf"
            write_slice(files[n], model, n)
        loaded = {n: opened.enter_context(Model(file)) for n, file in files.items()}
        evaluate = {
            n: measuring.timed(opened.enter_context(Context(of, measuring.context_settings(of))))
            for n, of in loaded.items()
        }
        for turn, n_tokens in itertools.product(range(TURNS), measuring.SIZES):
            took = {n: {n_tokens: evaluate[n](n_tokens)} for n in RNG.sample(list(files), len(files))}
            planned = slices.whole_cost(model, wanted, took[wanted.small], took[wanted.large])
            if turn:  # the first one warms up
                ratios[n_tokens].append(planned[n_tokens] / took[wanted.whole][n_tokens])
        ms = 1000 * min(evaluate[wanted.whole](1) for _ in range(TURNS))
    cells = "".join(f"{statistics.median(of):7.2f}" for of in ratios.values())
    depth = f"{wanted.small}, {wanted.large} of {wanted.whole}"
    print(f"{name:28}{model.size >> 20:6} MiB  {depth:14}{ms:7.1f} ms{cells}", flush=True)


def main() -> None:
    """Compares the files named, else models made here."""
    slices.WHOLE = 0  # small ones are sliced too
    if not sys.argv[1:]:
        slices.SMALL_SLICE = 48 << 20  # and into smaller slices, so that there is much to scale
    head = "".join(f"{n:7}" for n in (1, 2, 3, 4, 5, 6, 8, 12, 16))
    print(f"{'model':28}{'':12}{'layers':14}{'one token':>10}{head}")
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(name).stem: Path(name) for name in sys.argv[1:]} or made(Path(folder))
        for name, path in files.items():
            compare(name, path)


if __name__ == "__main__":
    main()
