"""Headers describe heads before anything is loaded: which there is, whether it can run, what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_gguf
import tiny_heads

from edgespec.commands.doctor import pair_checks
from edgespec.commands.pairs import words
from edgespec.errors import EdgeSpecError
from edgespec.llama.memory_question import Question
from edgespec.memory.oracle import MemoryOracle
from edgespec.pairs.check import headers_of
from edgespec_models.gguf.head_check import own_head, why_not_driven
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.shelf.store import InstalledModel, InstalledPair

BLOCK = "blk.2.nextn."


def said_by_doctor(target: Path, draft: Path | None = None) -> str:
    try:
        found = pair_checks.pair(target, draft)[-1]
    except EdgeSpecError as error:
        return f"problem: {error}"
    return f"{found.status}: {found.text}"


def said_by_show(target: Path, draft: Path | None = None) -> str:
    pair = InstalledPair("it", _installed(target), _installed(draft) if draft else None, "imported", 0.0)
    return "\n".join(words.show_lines(pair, None))


def _installed(path: Path) -> InstalledModel:
    return InstalledModel((str(path),), path.stat().st_size)


def test_an_mtp_block_is_found_in_the_targets_file(tmp_path: Path) -> None:
    path = tiny_heads.write_mtp(tmp_path / "m.gguf")
    assert own_head(headers_of(path)) == (Head("mtp", 1, alone=False), None)
    assert said_by_doctor(path) == "good: the MTP head in the target's file guesses"
    assert "draft   none: the MTP head in the target's file guesses" in said_by_show(path)


def test_a_model_without_one_has_none(tmp_path: Path) -> None:
    """Also where the header promises blocks that the file does not hold."""
    plain = tiny_gguf.write_llama(tmp_path / "l.gguf")
    empty = tiny_heads.write_mtp(tmp_path / "m.gguf", tensors={f"{BLOCK}eh_proj.weight": None})
    for path in (plain, empty):
        assert own_head(headers_of(path)) == (None, None)
        assert said_by_doctor(path).startswith(
            "good: no draft model: guesses come from the text alone; for so"
        )
        assert "guesses come from the text itself" in said_by_show(path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("blocks", "left_out", "why"),
    [
        (1, f"{BLOCK}hnorm.weight", f"its MTP block lacks the tensor {BLOCK}hnorm.weight"),
        (1, "blk.2.attn_qkv.weight", "its MTP block lacks the tensor blk.2.attn_qkv.weight"),
        (2, "blk.3.nextn.eh_proj.weight", "its MTP block lacks the tensor blk.3.nextn.eh_proj.weight"),
    ],
)
def test_a_block_that_would_end_the_process_is_not_run_and_it_is_stated_why(
    tmp_path: Path, blocks: int, left_out: str, why: str
) -> None:
    path = tiny_heads.write_mtp(tmp_path / "m.gguf", blocks=blocks, tensors={left_out: None})
    assert own_head(headers_of(path))[1] == why
    assert said_by_doctor(path) == f"note: the MTP head in the target's file is not run: {why}"
    assert f"is not run, because {why}" in said_by_show(path)


def test_a_head_next_to_the_target_is_reported_from_a_draft_model(tmp_path: Path) -> None:
    target = tiny_gguf.write_llama(tmp_path / "l.gguf", layers=3)
    head = tiny_heads.write_eagle(tmp_path / "e.gguf")
    found = head_of(headers_of(head))
    assert found == Head("eagle3", 1, alone=True, layers=(0, 1, 2))
    assert why_not_driven(found, headers_of(head), headers_of(target)) is None
    assert said_by_doctor(target, head) == "good: e.gguf is an EAGLE-3 head, and may guess for the target"
    assert "check   it is a head made for such targets" in said_by_show(target, head)
    wide = tiny_heads.write_eagle(tmp_path / "w.gguf", target_d=32)
    assert said_by_doctor(target, wide).startswith("problem: w.gguf is an EAGLE-3 head that cannot guess")


def test_the_memory_of_a_head_is_counted(tmp_path: Path) -> None:
    """Cache, logits and the rows that are kept for it; its weights llama.cpp counts in any case."""
    path = tiny_heads.write_mtp(tmp_path / "m.gguf", context_length=4096)
    question = {"path": str(path), "n_gpu_layers": 0, "n_ctx": 2048, "cells": 2048, "n_seq": 1, "n_rows": 49}
    with MemoryOracle() as oracle:
        without = oracle.need(Question(**question, kv_type="f16")).parts  # type: ignore[arg-type]
        both = oracle.need(Question(**question, kv_type="f16", mtp=True)).parts  # type: ignore[arg-type]
    assert both.weights == pytest.approx(sum(t.n_bytes or 0 for t in headers_of(path)[0].tensors), rel=0.01)
    assert both.cache > without.cache
    assert both.output - without.output > 2048 * 64 * 4
