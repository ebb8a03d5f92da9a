"""A target grown with its MTP blocks: its text and their guesses stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_heads
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads.guessing import head_context
from edgespec.llama.model import Model
from edgespec.pairs.check import find_head
from edgespec_models import tiny
from edgespec_models.grow.grow import SHAPES, fit, grow, read_shape
from edgespec_models.grow.source import ModelShape

LARGE = ModelShape(n_vocab=700, d=160, layers=4, n_head=8, n_kv=4, head_dim=32, ffn=320)
CLOSE = 0.15  # logits have a standard deviation of 2; rounding to F16 was seen to move them by up to 0.05
TAIL = (7, 8, 300)


def logits(path: Path) -> NDArray[np.float32]:
    """Returns what target and head make of a text: (1 + 1 + guesses, n_vocab)."""
    tokens = np.random.default_rng(7).integers(0, 300, 48).astype(np.int32)
    settings = ContextSettings(n_ctx=128, n_rows=8, chunk=64, threads=1)
    head = find_head(path, None)
    assert head is not None
    with Model(path, mtp=True) as model, Context(model, settings) as target:
        with head_context(model, target, settings, head) as guessing:
            rows = [target.score([Want(tokens[:-1])])[0].copy()]
            tails = [TAIL[:n] for n in range(min(len(TAIL), head.longest or 9) + 1)]
            rows += [guessing.score([Want(tokens, tail)])[0].copy() for tail in tails]
    return np.concatenate(rows)


def assert_preserved(source: Path, grown: Path, *, margin: float = CLOSE) -> None:
    before, after = logits(source), logits(grown)
    real = before.shape[1]
    assert before.std() > 1
    assert np.abs(after[:, :real] - before).max() < margin
    assert after[:, real:].max(initial=-1e9) < before.min() - 100, "no dummy is ever guessed"


SHAPES_HERE = {
    "every dimension": LARGE,
    "width": ModelShape(512, 256, 2, 4, 2, 16, 128),
    "layers": ModelShape(512, 64, 5, 4, 2, 16, 128),
    "heads": ModelShape(512, 64, 2, 8, 4, 16, 128),
    "size of heads": ModelShape(512, 64, 2, 4, 2, 64, 128),
    "vocabulary": ModelShape(1000, 96, 2, 4, 2, 16, 128),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("shape", SHAPES_HERE.values(), ids=SHAPES_HERE)
def test_target_and_blocks_compute_the_same(tmp_path: Path, shape: ModelShape, blocks: int) -> None:
    source = tiny_heads.write_mtp(tmp_path / "small.gguf", blocks=blocks)
    grow(source, tmp_path / "large.gguf", shape)
    assert read_shape(tmp_path / "large.gguf") == shape
    assert_preserved(source, tmp_path / "large.gguf")


MUTATIONS: dict[str, tuple[str, Any]] = {
    "pairs of neighbours": ("rope_positions", lambda size, grown, **_: np.arange(size)),
    "queries not scaled": ("_query_scale", lambda size, grown: 1.0),
    "norms not scaled": ("_norm_scale", lambda d, grown: 1.0),
    "spare coordinates lost": ("_passing_on", lambda load: np.pad(load(), ((0, 1), (0, 1)))),
}


@pytest.mark.parametrize(("name", "broken"), MUTATIONS.values(), ids=MUTATIONS)
def test_each_step_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any) -> None:
    source = tiny_heads.write_mtp(tmp_path / "small.gguf")
    monkeypatch.setattr(f"edgespec_models.grow.tensors.{name}", broken)
    grow(source, tmp_path / "large.gguf", LARGE)
    with pytest.raises(AssertionError):
        assert_preserved(source, tmp_path / "large.gguf")


@pytest.mark.slow
def test_the_embedded_target_guesses_as_well_when_it_is_grown(tmp_path: Path) -> None:
    """Some of a step to 0.6B, which takes a minute: more heads, wider, more tokens."""
    source = tiny.mtp_path()
    shape = fit(ModelShape(5000, 320, 11, 8, 4, 128, 768), read_shape(source))
    grow(source, tmp_path / "large.gguf", shape)
    assert_preserved(source, tmp_path / "large.gguf", margin=1.0)  # 8-bit rounding of the source included


@pytest.mark.slow
def test_the_embedded_target_can_be_grown_to_every_named_size() -> None:
    for shape, _ in SHAPES.values():
        assert fit(shape, read_shape(tiny.mtp_path())).layers >= shape.layers
