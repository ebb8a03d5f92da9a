"""Grow a small GGUF (llama, or mimo2 with MTP blocks) to the cost of a large one that computes the same.

What speculation is worth can only be shown with real agreement between target and draft *and* real cost.
A pair that was trained small has the first; growing gives it the second, by function-preserving steps:
`tensors.py` says which.

Invariant: on the tokens the source has, a grown model's logits are the source's up to rounding (for F16
from a Q8_0 source that includes the 8-bit rounding of activations the source itself suffers).
Source of the idea: Net2Net (Chen et al., arXiv 1511.05641), carried over to RMSNorm, RoPE and GQA.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from edgespec_models.grow.file import VERSION, Progress, check_free, write
from edgespec_models.grow.packing import BLOCK, DTYPES
from edgespec_models.grow.row_map import kv_needed, round_up
from edgespec_models.grow.source import GrowError, ModelShape, digest, open_source
from edgespec_models.grow.tensors import plan

SHAPES: dict[
    str, tuple[ModelShape, ModelShape]
] = {  # target, draft; the draft costs 0.05 to 0.10 of its target
    "0.14B": (ModelShape(49_152, 576, 30, 9, 3, 64, 1536), ModelShape(49_152, 192, 4, 4, 4, 64, 512)),
    "0.6B": (ModelShape(151_936, 1024, 28, 16, 8, 128, 3072), ModelShape(151_936, 192, 4, 4, 4, 64, 768)),
    "1.1B": (ModelShape(32_000, 2048, 22, 32, 4, 64, 5632), ModelShape(32_000, 512, 14, 8, 4, 64, 1536)),
    "1B": (ModelShape(128_256, 2048, 16, 32, 8, 64, 8192), ModelShape(128_256, 384, 8, 8, 4, 64, 1536)),
    "3B": (ModelShape(128_256, 3072, 28, 24, 8, 128, 8192), ModelShape(128_256, 768, 8, 16, 8, 64, 3072)),
    "8B": (
        ModelShape(128_256, 4096, 32, 32, 8, 128, 14_336),
        ModelShape(128_256, 1024, 28, 16, 8, 128, 3072),
    ),
}
"""Named sizes, after published models: SmolLM2 135M, Qwen3 0.6B, TinyLlama 1.1B, Llama 3.2 and 3.1."""


@dataclass(frozen=True, slots=True)
class GrowSpec:
    """What a pair is grown to: the shapes of both models and the type of the added weights."""

    name: str
    dtype: str
    target: ModelShape
    draft: ModelShape


def parse_spec(text: str) -> GrowSpec:
    """Read a size and a type such as `0.6B-F16` or `1.1B-Q4_0`; case does not matter.

    Raises GrowError, naming the valid ones, for anything else.
    """
    sizes, dtypes = {name.lower(): name for name in SHAPES}, {name.lower(): name for name in DTYPES}
    size, _, dtype = text.strip().lower().partition("-")
    if size not in sizes or dtype not in dtypes:
        raise GrowError(
            f"{text!r} is not a size to grow to: give one of {', '.join(SHAPES)}, a hyphen, and one of "
            f"{', '.join(DTYPES)}, for example 0.6B-F16"
        )
    name = sizes[size]
    return GrowSpec(f"{name}-{dtypes[dtype]}", dtypes[dtype], *SHAPES[name])


def read_shape(path: Path) -> ModelShape:
    """Read the shape of a llama-architecture GGUF; raises GrowError if it is one that cannot be grown."""
    return open_source(path).shape


def fit(shape: ModelShape, source: ModelShape) -> ModelShape:
    """Widen `shape` where it is too small for `source`: a named size is a cost, met from above."""
    n_head = round_up(source.n_head, shape.n_head)
    groups = (n for n in range(shape.n_kv, n_head + 1) if n_head % n == 0)
    return ModelShape(
        n_vocab=max(shape.n_vocab, source.n_vocab),
        d=max(shape.d, round_up(source.d, BLOCK) + BLOCK),
        layers=max(shape.layers, source.layers),
        n_head=n_head,
        n_kv=next(n for n in groups if kv_needed(source, n_head, n) <= n),
        head_dim=round_up(shape.head_dim, source.head_dim),
        ffn=max(shape.ffn, round_up(source.ffn, BLOCK)),
    )


def grow(
    source: Path,
    destination: Path,
    shape: ModelShape,
    *,
    dtype: str = "F16",
    on_progress: Progress | None = None,
    seed: int = 0,
) -> None:
    """Write `source` grown to a shape that `fit` makes large enough, without changing what it computes.

    With dtype "F16" every matrix is F16. Otherwise the added layers have that type, and matrices that hold
    weights of the source keep the source's type if it is Q8_0 or Q4_0, else get Q8_0. `seed` picks the
    random weights. The file appears under its name only when complete; memory use stays below about 200 MB
    plus the source's largest matrix in float32.

    Raises GrowError, with nothing left behind, if the source is unsuitable or the disk too full.
    """
    opened = open_source(source)
    shape = fit(shape, opened.shape)
    tensors = plan(opened, shape, dtype, seed)
    header = opened.reader.data_offset + 64 * (shape.n_vocab - opened.shape.n_vocab)
    check_free(destination.parent, source.name, sum(tensor.nbytes for tensor in tensors) + header)
    write(opened, destination, shape, dtype, tensors, on_progress or (lambda done, total: None))


def grow_pair(
    target: Path,
    draft: Path,
    folder: Path,
    spec: GrowSpec,
    *,
    on_progress: Progress | None = None,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Grow a pair into `folder` and return the paths of (target, draft); finished files are used again.

    A file's name holds a hash of its source's content, the shape, the type, the seed and VERSION, so a
    changed source or a changed way of growing is never mistaken for a finished file. Raises as `grow`.
    """
    jobs: list[tuple[Path, Path, ModelShape]] = []
    for source, wanted in ((target, spec.target), (draft, spec.draft)):
        shape = fit(wanted, read_shape(source))
        jobs.append((source, folder / _finished_name(source, shape, spec, seed), shape))
    finished = jobs[0][1], jobs[1][1]
    missing = [job for job in jobs if not job[1].exists()]
    if not missing:
        return finished
    sizes = [
        sum(tensor.nbytes for tensor in plan(open_source(source), shape, spec.dtype, seed))
        for source, _, shape in missing
    ]
    done_before = 0

    def report(done: int, _: int) -> None:
        if on_progress is not None:
            on_progress(done_before + done, sum(sizes))

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GrowError(f"the folder {folder} cannot be made ({error}); choose another") from None
    check_free(folder, f"{target.name} and {draft.name}", sum(sizes))
    for (source, destination, shape), size in zip(missing, sizes, strict=True):
        grow(source, destination, shape, dtype=spec.dtype, on_progress=report, seed=seed)
        done_before += size
    return finished


def _finished_name(source: Path, shape: ModelShape, spec: GrowSpec, seed: int) -> str:
    key = hashlib.sha256(f"{digest(source)} {shape} {spec.dtype} {seed} {VERSION}".encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', source.stem)}-{spec.name}-{key[:12]}.gguf"
