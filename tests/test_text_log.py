"""A target's texts are kept if its user wants it: bounded, and for the owner alone."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from test_worker import FakeEngine, submitted, worker

from edgespec.core.values import Emitted, Failed, Round
from edgespec.engine.request_reader import Ready
from edgespec.engine.text_log import TextLog
from edgespec.errors import EngineError
from edgespec.protocol.messages import Cancel


def entries(log: TextLog) -> list[Any]:
    """Returns the lines of all files, in order."""
    return [
        json.loads(line) for part in sorted(log.folder.iterdir()) for line in part.read_text().splitlines()
    ]


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_only_the_owner_can_read_them(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "model", 1 << 20)
    log.keep([1], [2], 0.0)
    (file,) = log.folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.folder.stat().st_mode) == 0o700


def test_the_oldest_go_when_it_is_too_much(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "model", 8000)
    for n in range(400):
        log.keep([n], list(range(20)), 0.0)
        assert sum(part.stat().st_size for part in log.folder.iterdir()) <= 8000
    kept = [entry["prompt"][0] for entry in entries(log)]
    assert kept == list(range(kept[0], 400)) and 50 < len(kept) < 120
    log.keep([1], list(range(10_000)), 0.0)
    assert len(entries(log)) == len(kept), "a text that is longer than any that is learned from"


def test_a_copy_of_a_file_in_the_folder_stops_no_answer(tmp_path: Path) -> None:
    """A file manager's "00000000 (copy).jsonl" was taken for a part; its name is no number."""
    log = TextLog(tmp_path / "model", 1 << 20)
    log.keep([1], [2], 0.5)
    (file,) = log.folder.iterdir()
    copy = file.with_name(f"{file.stem} (copy).jsonl")
    copy.write_bytes(file.read_bytes())
    log.keep([3], [4], 0.5)
    copy.unlink()
    assert [entry["prompt"] for entry in entries(log)] == [[1], [3]]


def test_a_folder_that_cannot_be_written_stops_no_answer(tmp_path: Path) -> None:
    (tmp_path / "own-texts").write_text("in the way")
    TextLog(tmp_path / "own-texts" / "model", 1 << 20).keep([1], [2], 0.0)
    assert (tmp_path / "own-texts").read_text() == "in the way"


def test_the_worker_keeps_whole_answers(tmp_path: Path) -> None:
    log = TextLog(tmp_path / "model", 1 << 20)
    who, _, _ = worker(log)
    for id in ("whole", "failed", "cancelled"):
        who.take(Ready(submitted(id).message, cast(Any, np.array([1, 2]))))
        who.report(0.0, [Emitted(id, Round((1,), "a", 0, 0, ("target",)))])
    FakeEngine.cancel = lambda self, id: None  # type: ignore[attr-defined]
    who.take(Cancel("cancelled"))
    who.report(0.0, [Failed("failed", EngineError("broken"))])
    assert not log.folder.exists()
    for id in ("whole", "failed", "cancelled"):
        who.report(0.0, [Emitted(id, Round((7, 1), "b", 0, 0, ("target",) * 2, "stop"))])
    temperature = submitted("whole").message.request.sampling.temperature
    assert entries(log) == [{"prompt": [1, 2], "answer": [1, 7, 1], "temperature": temperature}]
