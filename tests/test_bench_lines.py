"""What is asked, and in which order: prompts, lines and units."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import SettingError
from edgespec.measure.lines import SWEPT, lines_for, parse_modes, units_for
from edgespec.measure.prompts import Prompt, built_in, by_kind, read_prompts

# ---- prompts ----------------------------------------------------------------------------------------------


def test_the_prompts_that_ship_have_kinds_in_equal_number_and_names_of_their_own() -> None:
    prompts = built_in()
    assert set(Counter(prompt.kind for prompt in prompts).values()) == {3}
    assert len({prompt.name for prompt in prompts}) == len(prompts) == 15
    assert list(dict.fromkeys(p.kind for p in prompts)) == ["code", "explain", "chat", "edit", "fill"]


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_spec_bench_and_a_simple_file_are_understood(tmp_path: Path) -> None:
    spec = {"question_id": 81, "category": "writing", "turns": ["first turn", "second turn"]}
    simple = {"prompt": "def f(", "kind": "code", "raw": True}
    path = write(tmp_path / "p.jsonl", spec, "", simple, {"prompt": "bare"})
    assert read_prompts(path) == (
        Prompt("81", "writing", "first turn"),
        Prompt("3", "code", "def f(", raw=True),
        Prompt("4", "file", "bare"),
    )


def test_the_real_spec_bench_is_read_whole(test_data: Path) -> None:
    prompts = read_prompts(test_data / "spec_bench.jsonl")
    assert len(prompts) == 480
    assert len({prompt.kind for prompt in prompts}) == 13


def test_any_other_file_is_one_prompt(tmp_path: Path) -> None:
    path = write(tmp_path / "story.txt", '{"not": "looked at"}', "second line")
    assert [prompt.text for prompt in read_prompts(path)] == ['{"not": "looked at"}\nsecond line']


@pytest.mark.parametrize(
    "lines, named",
    [
        (['{"prompt": "a"}', "", "{broken"], "line 3 is not JSON"),
        (["[1]"], "line 1 is not a JSON object"),
        (['{"question": "a"}'], "line 1 has no text"),
        (['{"turns": []}'], "line 1 has no text"),
        (['{"turns": [5]}'], "line 1 has no text"),
        (['{"prompt": "  "}'], "line 1 has no text"),
        (['{"prompt": "a", "kind": 5}'], 'line 1: "kind" must be a text'),
        (['{"prompt": "a", "raw": "yes"}'], '"raw" true or false'),
        ([""], "is empty"),
        (["", "  "], "is empty"),
    ],
)
def test_a_bad_line_is_reported_by_its_number(tmp_path: Path, lines: list[str], named: str) -> None:
    with pytest.raises(SettingError) as told:
        read_prompts(write(tmp_path / "p.jsonl", *lines))
    assert named in str(told.value)
    assert "\n" not in str(told.value)


def test_a_file_that_is_missing_empty_or_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    for name, named in (("none.txt", "cannot be read"), ("empty.txt", "is empty"), (".", "cannot be read")):
        with pytest.raises(SettingError, match=named):
            read_prompts(tmp_path / name)


def test_rows_have_one_prompt_of_every_kind_as_long_as_there_are() -> None:
    prompts = [
        Prompt(f"{kind}{i}", kind, "x") for kind, n in (("a", 3), ("b", 1), ("c", 2)) for i in range(n)
    ]
    assert [[p.name for p in row] for row in by_kind(prompts)] == [["a0", "b0", "c0"], ["a1", "c1"], ["a2"]]


# ---- lines ------------------------------------------------------------------------------------------------


def test_the_lines_of_a_usual_run() -> None:
    lines = lines_for(("greedy", "coupled"), sweep=False)
    assert [(line.mode, line.name, line.plain) for line in lines] == [
        ("greedy", "plain", True), ("greedy", "edgespec", False),
        ("coupled", "plain", True), ("coupled", "edgespec", False),
    ]  # fmt: skip


def test_a_sweep_has_every_length() -> None:
    lines = lines_for(("greedy",), sweep=True)
    assert [line.draft_length for line in lines] == [None, None, *SWEPT]
    assert len({line.name for line in lines}) == len(lines)


def test_modes_are_read_in_their_order_and_nonsense_is_refused() -> None:
    assert parse_modes("coupled, greedy") == ("greedy", "coupled")
    for wrong in ("", "greedy,fast", ","):
        with pytest.raises(SettingError, match="give some of greedy,sampled,coupled"):
            parse_modes(wrong)


# ---- units ------------------------------------------------------------------------------------------------


def units(repeats: int = 1, seed: int = 0):  # type: ignore[no-untyped-def]
    lines = lines_for(("greedy", "sampled", "coupled"), sweep=False)
    return units_for(built_in(), lines, repeats=repeats, rng=np.random.default_rng(seed))


def test_every_prompt_is_taken_under_every_mode_with_all_its_lines() -> None:
    got = units(repeats=2)
    assert [unit.number for unit in got] == list(range(90))
    assert Counter((unit.prompt.name, unit.mode, unit.repeat) for unit in got).most_common(1)[0][1] == 1
    assert all({line.name for line in unit.lines} == {"plain", "edgespec"} for unit in got)
    assert all(line.mode == unit.mode for unit in got for line in unit.lines)


def test_wherever_the_time_runs_out_modes_and_kinds_are_even() -> None:
    got = units()
    for end in range(1, len(got)):
        for counts in (
            Counter(unit.mode for unit in got[:end]),
            Counter(unit.prompt.kind for unit in got[:end]),
        ):
            full = [*counts.values(), *[0] * ((3 if "greedy" in counts else 5) - len(counts))]
            assert max(full) - min(full) <= 3
    assert len({(unit.mode, unit.prompt.kind) for unit in got[:15]}) == 15


def test_the_order_within_a_unit_is_drawn_and_a_seed_repeats_it() -> None:
    got = units()
    first = Counter(unit.lines[0].name for unit in got)
    assert min(first["plain"], first["edgespec"]) > 8  # of 45; a false alarm in 100,000 seeds
    assert units() == got
    assert units(seed=1) != got
