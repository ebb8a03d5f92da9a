"""`edgespec launch`: one command from an installed agent to one that a pair of this machine answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import posix

from edgespec.commands.launch.programs import PROGRAMS, Place
from edgespec.commands.launch.session import COUNTED, in_words

AT = Place("http://127.0.0.1:9", "key with $igns", 'a "model"', 20_000, "/folder")
AGENT = """
import json, os, sys, urllib.request
root = os.environ["OPENAI_HOST"]
asked = [{"role": "user", "content": "Hello"}]
body = {"model": os.environ["GOOSE_MODEL"], "max_tokens": 12, "ignore_eos": True, "messages": asked}
asked = urllib.request.Request(root + "/" + os.environ["OPENAI_BASE_PATH"], json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
answer = json.load(urllib.request.urlopen(asked))
print(json.dumps([sys.argv[1:], answer["usage"]["completion_tokens"], os.environ["GOOSE_CONTEXT_LIMIT"]]))
sys.exit(7)
"""


def launched(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "bin"
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-P", "-m", "edgespec", "launch", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def agent(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/agent.py" "$@"\n')
    (folder / name).chmod(0o755)


@posix
def test_an_agent_is_answered_by_the_pair_and_its_end_says_what_it_took(tmp_path: Path) -> None:
    agent(tmp_path, "goose")
    done = launched(tmp_path, "goose", "--anyway", "--ctx", "2048", "--", "run", "--ctx", "-x")
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == [["run", "--ctx", "-x"], 12, "2048"]
    assert "1 requests; of their prompts" in done.stderr and "12 tokens generated" in done.stderr
    assert "has 2,048 tokens of context, and goose needs 16,384 at least" in done.stderr


@pytest.mark.slow
@posix
def test_a_pair_that_is_not_up_to_it_is_named_before_the_agent_starts(tmp_path: Path) -> None:
    agent(tmp_path, "goose")
    done = launched(tmp_path, "goose")
    assert done.returncode == 2 and done.stdout == ""
    assert "tokens of context, and goose needs 16,384 at least" in done.stderr and "--anyway" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "there is no agent 'nothing' here: name one of claude, codex"),
        (["goose"], "goose is not installed: see https://github.com/"),
        (["codex", "--slots", "0"], "--slots is 0"),
        (["codex", "--quick"], "there is no flag --quick"),
    ],
)
def test_a_wrong_launch_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = launched(tmp_path, *words)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def test_print_sets_nothing(tmp_path: Path) -> None:
    done = launched(tmp_path, "aider", "--print", "--", "--message", "two words")
    assert done.returncode == 0 and "export OPENAI_API_BASE=http://127.0.0.1:8080/v1" in done.stdout
    assert done.stdout.rstrip().endswith("--message 'two words'")
    assert not list(tmp_path.rglob("models.json"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_row_names_address_key_model_and_context(name: str) -> None:
    setup = PROGRAMS[name].setup(AT)
    whole = json.dumps([dict(setup.environment), setup.arguments, dict(setup.files), setup.show])
    assert "http://127.0.0.1:9" in whole and "model" in whole and "key with $igns" in whole
    assert "20000" in whole or name in ("claude", "qwen-code")
    for text in (*setup.files.values(), *(v for v in setup.environment.values() if v.startswith("{"))):
        json.loads(text)


def test_the_last_sentence_counts() -> None:
    none = dict.fromkeys(COUNTED.values(), 1.0)
    more = {"evaluated": 101, "reused": 901, "generated": 51, "seconds": 3.0, "accepted": 26, "requests": 4}
    assert in_words(none, none) == "the agent asked the model nothing"
    assert in_words(none, more) == (
        "3 requests; of their prompts 100 tokens evaluated and 900 reused; 50 tokens generated at 25 tok/s, "
        "50% of them guesses"
    )


REAL: dict[str, Any] = {
    "codex": ["exec", "--skip-git-repo-check", "Say hello"],
    "opencode": ["run", "Say hello"],
    "qwen-code": ["-p", "Say hello"],
}


@pytest.mark.slow
@posix
@pytest.mark.parametrize("name", REAL)
def test_a_real_agent_is_answered_in_one_command(name: str, tmp_path: Path) -> None:
    from shutil import which

    if which(PROGRAMS[name].executable) is None:
        pytest.skip(f"{PROGRAMS[name].executable} is not installed ({PROGRAMS[name].install})")
    done = launched(tmp_path, name, "--pair", "embedded", "--ctx", "65536", "--anyway", "--", *REAL[name])
    assert done.returncode == 0, done.stderr
    assert "requests; of their prompts" in done.stderr
