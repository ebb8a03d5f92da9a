"""Kept texts are read by their own model alone, in today's format and the last one's, without nonsense."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.engine.text_log import FOLDER, KeptText, TextLog, name_of
from edgespec_models.gguf.header import read_file
from edgespec_train.kept_texts import all_kept, kept_texts_of
from edgespec_train.prompts import digest, is_held_out


def log_of(data: Path, name: str = "model") -> TextLog:
    return TextLog(data / FOLDER / name, 1 << 20)


def test_what_is_kept_is_read_again_by_the_same_target_alone(tmp_path: Path, tiny_target: Path) -> None:
    name = name_of(tiny_target, read_file(tiny_target))
    log = log_of(tmp_path, name)
    log.keep([1, 2], [3, 4, 5], 0.7)
    log.keep([9], [8], 0.0)
    assert kept_texts_of(tmp_path, name).read() == [
        KeptText((1, 2), (3, 4, 5), 0.7),
        KeptText((9,), (8,), 0.0),
    ]
    assert [of.folder.name for of in all_kept(tmp_path)] == [name]
    assert kept_texts_of(tmp_path, "another").read() == []


def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    """One of version 0.1, whose answers were called "said", makes sense."""
    log = log_of(tmp_path)
    log.keep([1], [2], 0.5)
    (file,) = log.folder.iterdir()
    with open(file, "ab") as end:
        end.write(b'{"prompt":[2],"said":[2],"temperature":0.5}\n')
        end.write(
            b'{"prompt": [1], "answer": [Infinity], "temperature": 0}\n'
            b'{"prompt": [1], "answer": [4294967296], "temperature": 0}\n'
            b'{"prompt": [1], "answer"\n[]\n{"prompt": [-1], "answer": [1], "temperature": 0}\n\xff\xfe\n'
        )
    log.keep([3], [4], 0.5)
    texts = kept_texts_of(tmp_path, "model").read()
    assert texts == [KeptText((n,), (answer,), 0.5) for n, answer in ((1, 2), (2, 2), (3, 4))]


def test_one_text_in_eight_is_held_out() -> None:
    texts = [KeptText((n, n + 1), (1,), 0.0) for n in range(4000)]
    assert 400 < sum(map(is_held_out, texts)) < 600
    assert digest((1, 2)) == digest([1, 2]) != digest((2, 1))


def test_they_are_shown_and_deleted_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("EDGESPEC_NOISE_FILE", str(tmp_path / "noise"))  # as in the child
    from edgespec.commands.cli import run_command

    log_of(tmp_path).keep([1], [2], 0.0)
    assert run_command(["distill", "--own-texts", "show"]) == 0
    assert "model: 1 texts" in capsys.readouterr().out
    assert run_command(["distill", "--own-texts", "delete"]) == 0
    assert "deleted" in capsys.readouterr().out and all_kept(tmp_path) == []
    assert run_command(["distill", "--own-texts", "show"]) == 0
    assert "nothing is kept" in capsys.readouterr().out
