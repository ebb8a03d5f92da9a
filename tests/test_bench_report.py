"""What `bench` shows: tables of 80 columns, a document."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from test_bench_figures import round_, sample

from edgespec.commands.bench import report
from edgespec.commands.bench.report import Results, results, tables
from edgespec.commands.output_file import check_writable, write_json
from edgespec.errors import SettingError
from edgespec.measure.figures import Sample
from edgespec.measure.in_turn import Measured
from edgespec.measure.lines import lines_for

LINES = lines_for(("greedy", "sampled", "coupled"), sweep=True)


def run(*, sweep: bool = True, fast: float = 100.0) -> tuple[list[Sample], Results]:
    """Samples of every line on six prompts of two kinds, and their figures."""
    rng = np.random.default_rng(0)
    samples = []
    for unit in range(6):
        for line in LINES:
            if line.draft_length and not sweep:
                continue
            drafted = 0 if line.plain else 40
            rounds = (round_(1, 0.5), *[round_(5, 0.02, 4, 4)] * 4) if not line.plain else ()
            samples.append(
                sample(
                    line.name, fast * rng.uniform(0.5, 2), unit=unit, prompt=str(unit), mode=line.mode,
                    kind="code" if unit % 2 else "a kind with a very long name indeed",
                    drafted=drafted, accepted=drafted // 2, rounds=rounds,
                    seconds={"draft": 0.1, "verify": 0.8, "other": 0.1},
                )
            )  # fmt: skip
    return samples, results(samples, LINES)


@pytest.mark.parametrize("fast", [0.01, 3.0, 100.0, 98765.0])
def test_no_line_is_wider_than_80_columns_and_all_is_ascii(fast: float) -> None:
    for sweep in (False, True):
        for line in tables(run(sweep=sweep, fast=fast)[1]):
            assert len(line) <= 80, line
            assert line.isascii()
            assert line == line.rstrip()


def test_the_tables_have_every_line_and_say_who_won() -> None:
    text = "\n".join(tables(run()[1]))
    for named in ("edgespec n=16", "accepted at position"):
        assert named in text
    assert "greedy: the best fixed length (n=" in text


def test_nothing_measured_makes_no_tables_and_no_trouble() -> None:
    assert tables(results([], LINES)) == []
    one = [sample("plain", 10.0), sample("edgespec", 20.0)]
    row = next(line for line in tables(results(one, LINES)) if line.startswith("  edgespec"))
    assert row.split()[2:6] == ["2.00", "too", "few", "values"]


def test_the_document_holds_every_figure_and_the_raw_rounds(tmp_path: Path) -> None:
    samples, found = run()
    measured = Measured(8, samples, [0.1] * 6, 6, 12.0)
    path = tmp_path / "out.json"
    write_json(path, report.document(found, measured, {"edgespec": "0", "command": "edgespec bench"}))
    got = json.loads(path.read_text())
    assert len(got["samples"]) == len(samples)
    first = next(s for s in got["samples"] if s["rounds"] and s["drafted"])
    assert first["rounds"][1] == {
        "seconds": 0.02, "tokens": 5, "drafted": 4, "accepted": 4, "sources": [], "gain": 1.0,
    }  # fmt: skip
    assert got["run"]["cores_busy_with_others"] == [0.1] * 6
    assert [contest["mode"] for contest in got["over_best_fixed"]] == ["greedy", "sampled", "coupled"]
    ours = next(line for line in got["lines"] if (line["mode"], line["line"]) == ("greedy", "edgespec"))
    assert ours["speedup"]["n"] == 6 and ours["speedup"]["low"] < ours["speedup"]["value"]
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_place_that_cannot_be_written_is_found_before(tmp_path: Path) -> None:
    check_writable("--json", tmp_path / "new.json")
    assert os.listdir(tmp_path) == []
    (tmp_path / "old.json").write_text("kept")
    check_writable("--json", tmp_path / "old.json")
    assert (tmp_path / "old.json").read_text() == "kept"
    for wrong in (tmp_path, tmp_path / "no" / "such.json", tmp_path / "old.json" / "below.json"):
        with pytest.raises(SettingError, match="cannot be written"):
            check_writable("--json", wrong)
