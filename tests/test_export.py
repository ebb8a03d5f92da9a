"""`edgespec export` prints a command for each engine, or says in a sentence what it lacks."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import pytest
import test_heads

from edgespec.commands.cli import run_command
from edgespec.commands.export import ENGINES
from edgespec.errors import SettingError
from edgespec.pairs.store import open_store
from edgespec_models import tiny
from edgespec_models.shelf.catalogue import catalogue
from edgespec_models.shelf.store import InstalledModel, InstalledPair

LARGE, SMALL = "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_DATA_DIR", str(tmp_path / "data"))


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert run_command(["export", *words]) == 0
    out, err = capsys.readouterr()
    return out, err


def install(target: Path, draft: Path | None) -> None:
    models = [InstalledModel((str(path),), 1) if path else None for path in (target, draft)]
    assert models[0]
    open_store().add(InstalledPair("mine", models[0], models[1], "imported", time.time()))


def test_vllm_and_sglang_get_the_original_weights(capsys: pytest.CaptureFixture[str]) -> None:
    command, notes = exported(capsys, "qwen3-8b", "--to", "vllm", "--draft-length", "6")
    *words, config = shlex.split(command)
    assert words == ["vllm", "serve", LARGE, "--speculative-config"]
    assert json.loads(config) == {"method": "draft_model", "model": SMALL, "num_speculative_tokens": 6}
    assert "original weights" in notes and "checked against vllm 0.33.0" in notes
    command, _ = exported(capsys, "qwen3-8b", "--to", "SGLang")
    assert f"--model-path {LARGE} --speculative-algorithm STANDALONE" in command
    assert "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5" in command


def test_tensorrt_llm_gets_its_options_as_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    command, notes = exported(capsys, "qwen3-8b", "--to", "tensorrt-llm")
    options = json.loads(re.findall(r"<\(echo '(.*)'\)", command)[0])
    assert options["speculative_config"]["decoding_type"] == "DraftTarget"
    assert options["speculative_config"]["speculative_model_dir"] == SMALL
    assert "bash" in notes


def test_llama_server_gets_the_same_files(capsys: pytest.CaptureFixture[str]) -> None:
    command, notes = exported(capsys, "qwen3-8b", "--to", "llama-server")
    assert re.match(r"llama-server --hf-repo \S+/Qwen3-8B-GGUF:Q4_K_M --spec-draft-hf \S+:Q\w+ ", command)
    assert "--spec-draft-n-max 4 --spec-type draft-simple" in command and "original" not in notes
    install(tiny.target_path(), tiny.draft_path())
    words = shlex.split(exported(capsys, "mine", "--to", "llama-server")[0])
    assert words[1:5] == ["--model", str(tiny.target_path()), "--spec-draft-model", str(tiny.draft_path())]


def test_an_engine_that_runs_no_such_draft_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    command, notes = exported(capsys, "qwen3-8b", "--to", "lmdeploy")
    assert command == f"lmdeploy serve api_server {LARGE} --backend pytorch\n"
    assert "without the pair's own guesses: lmdeploy has no flag for a draft" in notes
    command, notes = exported(capsys, "qwen3-8b", "--to", "tgi", "--draft-length", "3")
    assert command == f"text-generation-launcher --model-id {LARGE} --speculate 3\n"
    assert "from the text alone" in notes


def test_heads_are_named_as_each_engine_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    install(*test_heads.eagle(tmp_path))
    how = ("--target-repo", "a/target", "--draft-repo", "a/head")
    assert (
        "EAGLE3 --speculative-draft-model-path a/head" in exported(capsys, "mine", "--to", "sglang", *how)[0]
    )
    assert "eagle3 --speculative-draft-model a/head" in exported(capsys, "mine", "--to", "lmdeploy", *how)[0]
    assert "--spec-type draft-eagle3" in exported(capsys, "mine", "--to", "llama-server")[0]
    install(*test_heads.mtp(tmp_path))
    assert '"method": "mtp"' in exported(capsys, "mine", "--to", "vllm", *how)[0]


def test_every_pair_of_the_catalogue_goes_to_every_engine(capsys: pytest.CaptureFixture[str]) -> None:
    for entry in catalogue():
        for engine in ENGINES:
            command, notes = exported(capsys, entry.name, "--to", engine)
            assert (
                not re.search(r"(?<![-\w])(TARGET|DRAFT|LENGTH)(?![-\w])", command)
                and len(command.splitlines()) == 1
            )
            assert ENGINES[engine].version in notes
            assert engine == "llama-server" or entry.target.base in command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["qwen3-8b", "--to", "vlm"],
            "--to vlm: no command for this engine is known, but for vllm",
        ),
        (
            ["qwen3-8b", "--to", "xyzzy"],
            "but for vllm, sglang, tensorrt-llm, tgi, lmdeploy, deepspeed, llama-s",
        ),
        (
            ["qwen3-9b", "--to", "vllm"],
            "no pair 'qwen3-9b' is installed, and the catalogue has no pair",
        ),
        (["qwen3-8b", "--to", "vllm", "--draft-length", "0"], "--draft-length is 0"),
        (
            ["qwen3-8b", "--to", "vllm", "--draft-repo", "a b"],
            "draft's original weights is 'a b': name it",
        ),
        (["mine", "--to", "vllm"], "target's original weights is 'unknown': name it with --target-repo"),
    ],
)
def test_what_is_missing_is_named(words: list[str], sentence: str) -> None:
    install(tiny.target_path(), tiny.draft_path())
    with pytest.raises(SettingError, match=re.escape(sentence)):
        run_command(["export", *words])
