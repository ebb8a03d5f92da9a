"""Weights in huge pages: where they pay, and that Linux gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_gguf import write_llama

from edgespec.core.loop import Want
from edgespec.llama import huge_pages
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings

LARGE = {"d": 512, "layers": 5, "n_head": 8, "ffn": 1536}  # 68 MB in F32


def in_huge_pages() -> int:
    """Returns the bytes that this process has in huge pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def given_here() -> bool:
    return huge_pages.MODE.exists() and "[never]" not in huge_pages.MODE.read_text()


@pytest.mark.skipif(not given_here(), reason="this system gives no transparent huge pages")
def test_weights_lie_in_huge_pages_and_compute_the_same(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", **LARGE)  # type: ignore[arg-type]
    size, before, rows = path.stat().st_size, in_huge_pages(), []
    settings = ContextSettings(n_ctx=64, threads=1)
    for huge in (True, False):
        with Model(path, in_huge_pages=huge) as model, Context(model, settings) as context:
            rows.append(context.score([Want(np.arange(9, dtype=np.int32))])[0].copy())
            assert (in_huge_pages() - before > size / 2) is huge
    assert np.array_equal(rows[0], rows[1])


def test_a_model_without_room_or_too_small_to_gain_stays_mapped(tmp_path: Path) -> None:
    small, large = tmp_path / "small.gguf", tmp_path / "large-00001-of-00002.gguf"
    small.write_bytes(bytes(1000))
    large.write_bytes(bytes(1000))
    with (tmp_path / "large-00002-of-00002.gguf").open("wb") as second:  # nothing but a length
        second.truncate(2 * huge_pages.LEAST)
    assert not huge_pages.pay(small, 10**12)
    assert not huge_pages.pay(large, 3 * huge_pages.LEAST)
    assert huge_pages.pay(large, 5 * huge_pages.LEAST) is given_here()
    assert not huge_pages.pay(tmp_path / "missing.gguf", 10**12)
