"""`edgespec bench --report` and `--compare`: one file that can be sent, and several side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import in_process, refused

from edgespec.commands.bench import command

QUICK = ["--threads", "1", "-n", "8", "--seconds", "0.3", "--modes", "greedy"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by the command, for a question with something in it that nobody else is to read."""
    folder = tmp_path_factory.mktemp("secret-folder")
    (folder / "secret-question.txt").write_text("def secret_function(")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "FIRST_LOOK_S", 0.01)
        question = ("--raw", "--prompts", folder / "secret-question.txt")
        code, out, err = in_process("bench", *QUICK, *question, "--report", folder / "one.json")
    assert code == 0, err
    assert "one.json" in out
    return folder / "one.json"


def test_a_report_has_what_others_need_to_judge_it(report: Path) -> None:
    said = json.loads(report.read_text())
    assert said["machine"]["processor"] and said["build"]["features"] and said["place"] == "processor"
    assert [device["name"] for device in said["build"]["devices"]] == ["CPU"]
    assert said["layers"] == {"target": {"CPU": 11}, "draft": {"CPU": 3}}
    assert 1 in said["costs"]["target"]["measured"] and said["costs"]["draft"]["seconds"]["1"] > 0
    assert {line["line"] for line in said["lines"]} == {"plain", "edgespec"}
    assert all(sample["rounds"] and sample["tok_per_s"] for sample in said["samples"])


def test_a_report_tells_nothing_private(report: Path) -> None:
    assert "secret" not in report.read_text() and str(Path.home()) not in report.read_text()
    assert all(sample["text"] is None for sample in json.loads(report.read_text())["samples"])


def test_without_a_name_it_goes_into_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "FIRST_LOOK_S", 0.01)
    code, out, err = in_process("bench", *QUICK, "--report")
    assert code == 0, err
    (file,) = tmp_path.iterdir()
    assert file.name in out and file.name.startswith("edgespec-report-")


def test_reports_stand_side_by_side(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.loads(report.read_text())
    other["place"] = "NVIDIA GeForce RTX 4060"
    other["over_peer_default"] = {"greedy": {"value": 1.5, "low": 1.25, "high": 1.75, "n": 4}}
    (tmp_path / "card.json").write_text(json.dumps(other))
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = in_process("bench", "--compare", report, tmp_path / "card.json")
    rows = {line[:24].strip(): line[24:] for line in out.splitlines()}
    assert code == 0
    assert rows["layers on"].split(maxsplit=1) == ["processor", "NVIDIA GeForce RTX 4060"]
    assert rows["times llama-server"].split(maxsplit=1) == ["-", "1.50 (1.25 to 1.75)"]
    assert "tok/s" in rows["greedy: plain"] and "a token" in rows
    assert max(map(len, out.splitlines())) <= 100


def test_many_reports_come_in_parts(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Path(shutil.copy(report, tmp_path / f"r{i}.json")) for i in range(4)]
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = in_process("bench", "--compare", *files)
    assert max(map(len, out.splitlines())) <= 80
    assert [word for word in out.split() if word in ("r0", "r1", "r2", "r3")] == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "is not a report"),
        ("[1]", "is not a report"),
        ('{"format": 1}', "is not a report"),
        ('{"edgespec_report": 1, "machine": 3}', "damaged report"),
    ],
)
def test_what_is_no_report_is_refused(content: Any, said: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    assert said in refused("bench", "--compare", file)
