"""Weights in huge pages: where they pay, and that Linux gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import write_llama

from edgespec.core.loop import Want
from edgespec.llama import huge_pages
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings

LARGE = {"d": 512, "layers": 5, "n_head": 8, "ffn": 1536}  # 68 MB in F32


def in_huge_pages() -> int:
    """Returns the bytes that this process has in huge pages, which others in it may have freed."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def given_here() -> bool:
    return huge_pages.MODE.exists() and "[never]" not in huge_pages.MODE.read_text()


def rows_of(path: Path, *, huge: bool) -> NDArray[np.float32]:
    with Model(path, in_huge_pages=huge) as model:
        with Context(model, ContextSettings(n_ctx=64, threads=1)) as context:
            return context.score([Want(np.arange(9, dtype=np.int32))])[0].copy()


def test_weights_in_huge_pages_compute_the_same(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    assert np.array_equal(rows_of(path, huge=True), rows_of(path, huge=False))


@pytest.mark.slow
@pytest.mark.skipif(not given_here(), reason="this system gives no transparent huge pages")
def test_large_weights_lie_in_huge_pages(tmp_path: Path) -> None:
    """In a process of its own: pages that another test has left are given again."""
    path = write_llama(tmp_path / "m.gguf", **LARGE)  # type: ignore[arg-type]
    ask = f"""
from pathlib import Path
from test_huge_pages import in_huge_pages
from edgespec.llama.model import Model
for huge in (True, False):
    before = in_huge_pages()
    with Model({str(path)!r}, in_huge_pages=huge):
        print(in_huge_pages() - before)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", ask]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    with_them, without = map(int, done.stdout.split())
    assert with_them > path.stat().st_size / 2 > without


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
