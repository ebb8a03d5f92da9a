"""A child that answers questions is kept, its end is reported in a sentence, and it outlives no owner."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from edgespec.system.json_child import ChildDiedError, JsonChild

ECHO = """
import os, sys, time
from edgespec.system.json_child import answer_questions
def answer(asked):
    if "die" in asked: os.abort()
    if "leave" in asked: sys.exit("ready to go")
    if "wait" in asked: time.sleep(60)
    if "babble" in asked: print("no JSON", flush=True)
    return {"pid": os.getpid(), **asked}
answer_questions(answer)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "echoing.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "echoing"


def test_it_is_kept_for_the_next_question_and_ends_with_its_owner(module: str) -> None:
    with JsonChild(module) as child:
        pid = child.ask({"first": "é"})["pid"]
        assert child.ask({"second": 2}) == {"pid": pid, "second": 2}
    assert not psutil.pid_exists(pid)


def test_an_abort_is_reported_and_the_next_question_starts_another(module: str) -> None:
    with JsonChild(module) as child:
        with pytest.raises(ChildDiedError, match=r"aborted \(SIGABRT\)"):
            child.ask({"die": 1})
        assert child.ask({"again": 1})["again"] == 1


def test_one_that_exits_has_the_last_word(module: str) -> None:
    with JsonChild(module) as child, pytest.raises(ChildDiedError, match="^ready to go$"):
        child.ask({"leave": 1})


def test_one_that_takes_too_long_is_ended(module: str) -> None:
    with JsonChild(module, longest_s=0.5) as child:
        with pytest.raises(ChildDiedError, match="it did not finish"):
            child.ask({"wait": 1})


def test_an_answer_that_is_not_json_ends_it(module: str) -> None:
    with JsonChild(module, last_s=0.2) as child, pytest.raises(ChildDiedError):
        child.ask({"babble": 1})
