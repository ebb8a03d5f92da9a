"""A target's texts are kept if its user wants it: bounded, for the owner alone, without nonsense."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from test_worker import FakeEngine, submitted, worker

from edgespec.commands.distill.asked import digest, is_held_out
from edgespec.core.values import Emitted, Failed, Round
from edgespec.engine.messages import Cancel
from edgespec.engine.request_reader import Ready
from edgespec.engine.text_log import LoggedText, TextLog, TextRecorder, all_kept, name_of
from edgespec.errors import EngineError
from edgespec_models.gguf.header import read_file


def test_what_is_kept_is_read_again_by_the_same_target_alone(tmp_path: Path, tiny_target: Path) -> None:
    name = name_of(tiny_target, read_file(tiny_target))
    texts = TextLog(tmp_path, name, 1 << 20)
    texts.keep([1, 2], [3, 4, 5], 0.7)
    texts.keep([9], [8], 0.0)
    assert TextLog(tmp_path, name).texts() == [
        LoggedText((1, 2), (3, 4, 5), 0.7),
        LoggedText((9,), (8,), 0.0),
    ]
    assert [of.folder.name for of in all_kept(tmp_path)] == [name]
    assert TextLog(tmp_path, "another").texts() == []


def test_nothing_is_kept_where_nobody_asked(tmp_path: Path) -> None:
    texts = TextLog(tmp_path, "model")
    texts.keep([1], [2], 0.0)
    assert not list(tmp_path.iterdir()) and texts.size() == 0


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    texts = TextLog(tmp_path, "model", 1 << 20)
    texts.keep([1], [2], 0.0)
    (file,) = texts.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(texts.folder.stat().st_mode) == 0o700


def test_the_oldest_go_when_it_is_too_much(tmp_path: Path) -> None:
    texts = TextLog(tmp_path, "model", 8000)
    for n in range(400):
        texts.keep([n], list(range(20)), 0.0)
        assert texts.size() <= 8000
    kept = [text.prompt[0] for text in texts.texts()]
    assert kept == list(range(kept[0], 400)) and 50 < len(kept) < 120
    texts.keep([1], list(range(10_000)), 0.0)
    assert len(texts.texts()) == len(kept), "a text that is longer than any that is learned from"


def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    texts = TextLog(tmp_path, "model", 1 << 20)
    texts.keep([1], [2], 0.5)
    (file,) = texts.folder.iterdir()
    with open(file, "ab") as end:
        end.write(b'{"prompt": [1], "said"\n[]\n{"prompt": [-1], "said": [1], "temperature": 0}\n\xff\xfe\n')
    texts.keep([3], [4], 0.5)
    assert [text.prompt for text in texts.texts()] == [(1,), (3,)]


def test_a_copy_of_a_file_in_the_folder_stops_no_answer(tmp_path: Path) -> None:
    """A file manager's "00000000 (copy).jsonl" was taken for a part; its name is no number."""
    texts = TextLog(tmp_path, "model", 1 << 20)
    texts.keep([1], [2], 0.5)
    (file,) = texts.folder.iterdir()
    file.with_name(f"{file.stem} (copy).jsonl").write_bytes(file.read_bytes())
    texts.keep([3], [4], 0.5)
    assert [text.prompt for text in texts.texts()] == [(1,), (3,)]


def test_a_folder_that_cannot_be_written_stops_no_answer(tmp_path: Path) -> None:
    (tmp_path / "own-texts").write_text("in the way")
    TextLog(tmp_path, "model", 1 << 20).keep([1], [2], 0.0)


def test_the_worker_keeps_whole_answers(tmp_path: Path) -> None:
    texts = TextLog(tmp_path, "model", 1 << 20)
    who, _, _ = worker()
    who._recorder = TextRecorder(texts)
    for id in ("whole", "failed", "cancelled"):
        who._take(Ready(submitted(id).message, cast(Any, np.array([1, 2]))))
        who._tell(0.0, [Emitted(id, Round((1,), "a", 0, 0, ("target",)))])
    FakeEngine.cancel = lambda self, id: None  # type: ignore[attr-defined]
    who._take(Cancel("cancelled"))
    who._tell(0.0, [Failed("failed", EngineError("broken"))])
    assert texts.texts() == []
    for id in ("whole", "failed", "cancelled"):
        who._tell(0.0, [Emitted(id, Round((7, 1), "b", 0, 0, ("target",) * 2, "stop"))])
    temperature = submitted("whole").message.request.sampling.temperature
    assert texts.texts() == [LoggedText((1, 2), (1, 7, 1), temperature)]


def test_one_text_in_eight_is_held_out(tmp_path: Path) -> None:
    texts = [LoggedText((n, n + 1), (1,), 0.0) for n in range(4000)]
    assert 400 < sum(map(is_held_out, texts)) < 600
    assert digest((1, 2)) == digest([1, 2]) != digest((2, 1))


def test_they_are_shown_and_deleted_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGESPEC_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("EDGESPEC_NOISE_FILE", str(tmp_path / "noise"))  # as in the child
    from edgespec.commands.cli import run_command

    TextLog(tmp_path, "model", 1 << 20).keep([1], [2], 0.0)
    assert run_command(["distill", "--own-texts", "show"]) == 0
    assert "model: 1 texts" in capsys.readouterr().out
    assert run_command(["distill", "--own-texts", "delete"]) == 0
    assert "deleted" in capsys.readouterr().out and all_kept(tmp_path) == []
    assert run_command(["distill", "--own-texts", "show"]) == 0
    assert "nothing is kept" in capsys.readouterr().out
