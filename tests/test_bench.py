"""`edgespec bench` as a user runs it: from the command line, on the embedded pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from commands import edgespec, in_process, interrupted, posix, refused

from edgespec.commands.bench import command

QUICK = ["--threads", "1", "-n", "8", "--seconds", "0.3"]
ALL = ["--seconds", "60", "--repeat", "1"]  # as long as it takes on a busy machine


def bench(tmp_path: Path, *arguments: str | Path) -> tuple[dict[str, Any], str, str]:
    """Runs `edgespec bench` where it should work; returns (the document, stdout, stderr)."""
    file = tmp_path / "out.json"
    code, out, err = in_process("bench", *QUICK, "--json", file, *arguments)
    assert code == 0, err
    return json.loads(file.read_text()), out, err


# ---- what comes out ---------------------------------------------------------------------------------------


def test_a_run_on_the_embedded_pair(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    done = edgespec("bench", *QUICK, "--json", file)
    assert done.returncode == 0, done.stderr
    got, out = json.loads(file.read_text()), done.stdout.decode()
    assert got["run"]["finished"] >= 1
    modes = [line["mode"] for line in got["lines"]]
    assert set(modes) <= {"greedy", "sampled", "coupled"} and len(modes) == 2 * len(set(modes))
    assert got["settings"]["threads"] == 1 and got["settings"]["sampling"]["temperature"] > 0
    assert got["command"].startswith("edgespec bench --threads 1 -n 8")
    assert got["machine"]["llama-cpp-python"] and got["machine"]["processor"]
    assert got["build"]["features"] and got["place"] == "processor"
    assert [device["name"] for device in got["build"]["devices"]] == ["CPU"]
    assert got["layers"] == {"target": {"CPU": 11}, "draft": {"CPU": 3}}
    assert 1 in got["costs"]["target"]["measured"] and got["costs"]["draft"]["seconds"]["1"] > 0
    for line in out.splitlines():
        assert len(line) <= 80, line
    assert "95 % interval" in out and "milliseconds" in out


def test_samples_have_rounds_that_add_up(tmp_path: Path) -> None:
    got, _, _ = bench(tmp_path, "--modes", "greedy")
    for sample in got["samples"]:
        rounds = sample["rounds"]
        assert sum(round_["tokens"] for round_ in rounds) == sample["n_tokens"]
        assert sum(round_["drafted"] for round_ in rounds) == sample["drafted"]
        parts = sum(sample["seconds"].values())  # more, where the draft works beside the target
        assert sample["decode_s"] <= 1.01 * parts
        assert sample["tok_per_s"] is None or sample["tok_per_s"] == pytest.approx(
            sample["steps"] / sample["decode_s"]
        )
        assert sample["drafted"] == 0 or sample["line"] == "edgespec"
    texts: dict[int, set[str]] = {}
    for sample in got["samples"]:
        texts.setdefault(sample["unit"], set()).add(sample["text"])
    same = [len(said) == 1 for said in texts.values()]  # greedy; where two tokens stand equal, it may flip
    assert sum(same) > len(same) / 2


def test_a_sweep_has_every_length(tmp_path: Path) -> None:
    got, out, _ = bench(tmp_path, "--sweep", "--modes", "greedy", "--seconds", "0.1")
    assert {f"edgespec n={n}" for n in (1, 2, 3, 4, 6, 8, 12, 16)} < {line["line"] for line in got["lines"]}
    assert got["run"]["finished"] == 1
    assert "the time was up: --seconds" in out


def test_prompts_of_the_users_with_their_kinds(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "def f(x):", "kind": "mine", "raw": true}\n{"prompt": "hello"}\n')
    got, _, _ = bench(tmp_path, "--prompts", file, "--modes", "sampled", "--temperature", "0.5", *ALL)
    assert {sample["kind"] for sample in got["samples"]} == {"mine", "file"}
    assert got["settings"]["sampling"]["temperature"] == 0.5


def test_prompts_that_do_not_fit_are_left_out_and_temperature_0_is_one_mode(tmp_path: Path) -> None:
    got, out, _ = bench(tmp_path, "--ctx", "64", "--temperature", "0")
    assert "of 15 prompts do not fit the context of 64 tokens" in " ".join(out.split())
    assert {line["mode"] for line in got["lines"]} == {"greedy"}


def test_a_model_without_a_template_continues_the_prompts_and_it_is_stated(tmp_path: Path) -> None:
    bare = tiny_gguf.write_llama(tmp_path / "bare.gguf", chat_template=None)
    got, out, _ = bench(tmp_path, "--target", bare, "--modes", "greedy")
    assert got["models"]["draft"] is None
    assert "the model has no chat template" in out


@pytest.mark.slow
@posix
def test_ctrl_c_tells_what_was_measured_so_far(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    long = ("--seconds", "60", "--repeat", "1000")
    with interrupted("bench", *QUICK, *long, "--json", file, after_s=2.5) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert b"* stopped by Ctrl+C: these are the figures so far" in out
    got = json.loads(file.read_text())
    assert got["run"]["interrupted"] and got["run"]["finished"] > 0
    assert b"Traceback" not in err


# ---- what is refused, before anything is loaded -----------------------------------------------------------

REFUSED = [
    (["--no-draft"], "leave out the flag that turns it off"),
    (["--drafter", "none"], "leave out the flag that turns it off"),
    (["--draft-length", "0"], "leave out the flag that turns it off"),
    (["-n", "4"], "-n is 4: measuring a speed needs 5 tokens"),
    (["--repeat", "0"], "--repeat is 0"),
    (["--seconds", "0"], "--seconds is 0"),
    (["--seconds", "nan"], "--seconds is nan"),
    (["--seed", "-1"], "--seed is -1"),
    (["--modes", "fast"], "--modes 'fast' is not understood"),
    (["--prompts", "/nowhere/at/all.jsonl"], "cannot be read"),
    (["--json", "/nowhere/at/all.json"], "--json /nowhere/at/all.json cannot be written"),
    (["--temperature", "hot"], "invalid float"),
    (["--grow", "0.6B-F16", "--target", "x.gguf"], "leave out --target and --draft"),
    (["--grow", "7B-Q9"], "is not a size to grow to"),
]


@pytest.mark.parametrize("wrong, named", REFUSED)
def test_nonsense_is_refused_in_one_sentence(wrong: list[str], named: str) -> None:
    assert named in refused("bench", *wrong)


def test_a_missing_model_is_reported(tmp_path: Path) -> None:
    assert "there is no file" in refused("bench", "--target", tmp_path / "none.gguf", *QUICK, code=1)


def test_answers_are_as_long_as_the_first_comparison_has_time_for() -> None:
    """Where a token took half a second, the first comparison alone took 68 s "of 20 at most"."""
    assert command.affordable(64, budget_s=20, warm_up_s=8) == 20  # of 8 tokens on every line
    assert command.affordable(64, budget_s=20, warm_up_s=0.1) == 64
    assert command.affordable(64, budget_s=1, warm_up_s=60) == command.FEWEST_STEPS + 1
