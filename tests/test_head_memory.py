"""The memory of a head in its own file: llama.cpp is asked, with its target, before it is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny_gemma
import tiny_gguf
import tiny_heads

from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads.guessing import head_context
from edgespec.llama.heads.hidden_rows import rows_kept
from edgespec.llama.log import listening
from edgespec.llama.memory_question import Question
from edgespec.llama.model import Model
from edgespec.memory.at_load import pair_fit
from edgespec.memory.oracle import MemoryOracle
from edgespec.pairs.check import find_head
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.need import RAM, Device
from edgespec_models.gguf.header import read_file

MIB, N_CTX, N_SEQ = 2**20, 2048, 2
Files = tuple[Path, Path]


def eagle(folder: Path) -> Files:
    target = tiny_gguf.write_llama(folder / "llama.gguf", layers=3, context_length=N_CTX)
    return target, tiny_heads.write_eagle(folder / "eagle.gguf", context_length=N_CTX)


def dflash(folder: Path) -> Files:
    target = tiny_gguf.write_llama(folder / "llama.gguf", layers=3, context_length=N_CTX)
    return target, tiny_heads.write_dflash(folder / "dflash.gguf", context_length=N_CTX)


def sidecar(folder: Path) -> Files:
    names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up")
    gone = {f"blk.{il}.{name}.weight": None for il in (0, 1) for name in (*names, "ffn_down")}
    target = tiny_heads.write_mtp(folder / "target.gguf", context_length=N_CTX)
    return target, tiny_heads.write_mtp(folder / "mtp.gguf", tensors=gone, context_length=N_CTX)


def assistant(folder: Path) -> Files:
    return tiny_gemma.write_gemma(folder / "gemma.gguf"), tiny_gemma.write_assistant(folder / "a.gguf")


@pytest.fixture(scope="module")
def oracle() -> Iterator[MemoryOracle]:
    with MemoryOracle() as oracle:
        yield oracle


def made(target: Path, path: Path, settings: ContextSettings) -> dict[str, float]:
    """Returns the MiB of the buffers that llama.cpp makes when it does load the head."""
    head = find_head(target, path)
    assert head is not None
    with Model(target) as large, Context(large, settings) as context, listening() as log:
        with Model(path, mtp=head.kind in ("mtp", "assistant"), head=True) as model:
            head_context(model, context, settings, head).close()
    text = "\n".join(log)
    kinds = {"weights": "model", "cache": "KV", "compute": "compute"}
    return {
        part: sum(float(size) for size in re.findall(rf"\S+ +{name} buffer size = +([0-9.]+) MiB", text))
        for part, name in kinds.items()
    }


@pytest.mark.parametrize("write", [eagle, dflash, sidecar, assistant])
def test_what_is_computed_for_a_head_is_what_is_allocated(
    tmp_path: Path, oracle: MemoryOracle, write: Callable[[Path], Files]
) -> None:
    target, head = write(tmp_path)
    n_ctx = min(N_CTX, read_file(target).of_architecture("context_length") or N_CTX)
    asked = Question(str(head), 0, n_ctx, n_ctx * N_SEQ, N_SEQ, N_SEQ, "f16", target=str(target))
    said = oracle.need(asked).parts
    settings = ContextSettings(n_ctx=n_ctx, n_seq=N_SEQ, n_rows=N_SEQ)
    for part, size in made(target, head, settings).items():
        assert getattr(said, part) / MIB == pytest.approx(size, rel=0.01, abs=0.011), part
    assert said.cache > 0 or write is assistant, "which reads its target's"
    width = {eagle: 3 * 64, dflash: 2 * 64}.get(write, 64)
    assert said.output >= 4 * width * rows_kept(width) * N_SEQ


def test_what_fits_counts_the_head(tmp_path: Path) -> None:
    target, head = eagle(tmp_path)
    room = [Device(RAM, 2**34, 2**34)]
    need = pair_fit(target, head, PairSettings(n_ctx=N_CTX), room).choice.needs["draft"]
    assert need.source == "llama.cpp"
    assert need.total > 4 * 3 * 64 * rows_kept(3 * 64)
