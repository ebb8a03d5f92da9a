"""`edgespec convert`: the same weights in another format, whole or not at all."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import in_process

from edgespec.commands.convert import _child, named, number_format
from edgespec.core.loop import Want
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec_models.gguf.header import read_file

TOKENS = np.arange(100, 132, dtype=np.int32)


def rows(path: Path) -> np.ndarray:
    with Model(path, n_gpu_layers=0) as model:
        with Context(model, ContextSettings(n_ctx=64, n_rows=len(TOKENS), threads=1)) as context:
            return context.score([Want(TOKENS, rows=len(TOKENS))])[0].copy()


@pytest.mark.slow
def test_16_bits_answer_as_8_do_and_4_nearly(tiny_target: Path, tmp_path: Path) -> None:
    wide, narrow = tmp_path / "wide.gguf", tmp_path / "narrow.gguf"
    code, out, err = in_process("convert", tiny_target, "--to", "F16", "-o", wide)
    assert code == 0 and not err and "lost precision does not come back" in out
    code, out, err = in_process("convert", wide, "--to", "Q4_0", "-o", narrow, "--threads", "1")
    assert code == 0 and not err and "Q4_0 rounds the weights: " in out
    assert [number_format(read_file(p)) for p in (tiny_target, wide, narrow)] == ["Q8_0", "F16", "Q4_0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["narrow.gguf", "wide.gguf"]
    plain, same, rounded = rows(tiny_target), rows(wide), rows(narrow)
    assert np.abs(same - plain).mean() < 0.1 * plain.std()
    assert np.abs(same - plain).mean() < np.abs(rounded - plain).mean() < plain.std()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--to", "Q4_0"], "is already Q4_0"),
        (["--to", "Q9"], "invalid choice"),
        (["--to", "F16", "-o", "/nowhere/x.gguf"], "there is no folder /nowhere"),
        (["--to", "F16", "--threads", "0"], "--threads is 0"),
    ],
)
def test_what_cannot_be_is_reported(
    flags: list[str], expected: str, tiny_draft: Path, tmp_path: Path
) -> None:
    output = [] if "-o" in flags else ["-o", tmp_path / "x.gguf"]
    code, _, err = in_process("convert", tiny_draft, *flags, *output)
    assert code != 0 and expected in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_files_that_are_no_models_or_damaged_are_refused(tiny_draft: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_draft.read_bytes()[:-5000])
    for file, said in ((damaged, "cut short or damaged"), (tmp_path / "none.gguf", "there is no file")):
        code, _, err = in_process("convert", file, "--to", "F16")
        assert code != 0 and said in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [damaged]


def test_a_file_that_is_there_is_left_as_it_is(tiny_draft: Path, tmp_path: Path) -> None:
    there = tmp_path / "x.gguf"
    there.write_text("mine")
    code, _, err = in_process("convert", tiny_draft, "--to", "F16", "-o", there)
    assert code != 0 and "already exists" in err and there.read_text() == "mine"


def test_a_disk_that_takes_no_more_leaves_nothing(tiny_draft: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))  # of this process and its children
    try:
        code, _, err = in_process("convert", tiny_draft, "--to", "F16", "-o", tmp_path / "x.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code != 0 and "cannot be written whole" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct.F16.gguf"),
        ("Qwen3-0.6B-Q4_K_M", "Qwen3-0.6B-F16.gguf"),
        ("llama-3.2-1b", "llama-3.2-1b.F16.gguf"),
        ("model", "model.F16.gguf"),
    ],
)
def test_the_format_in_a_name_is_replaced(stem: str, name: str) -> None:
    assert named(stem, "F16") == name


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are no text")
def test_a_name_that_is_no_text_is_converted_all_the_same(tiny_draft: Path, tmp_path: Path) -> None:
    """The child failed without a word, and a file that nobody had named was said to be missing."""
    output = tmp_path / os.fsdecode(b"w\xffde.gguf")
    code, _, err = in_process("convert", tiny_draft, "--to", "F16", "-o", output)
    assert code == 0 and not err and number_format(read_file(output)) == "F16"


def test_a_child_that_fails_without_a_word_has_failed(tmp_path: Path) -> None:
    assert _child(["only one"], "converting") == "its process ended without a message"
