"""A conversation as Markdown and as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.errors import SessionError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import as_json, as_markdown, export, suggested_name


def talked() -> Conversation:
    talk = Conversation(
        id=5, title="Explain /locks/: how", system="Be kind.", sampling={"temperature": 0.5}, seed=1
    )
    talk.add("user", "Explain /locks/: how\nand why")
    answer = talk.add("assistant", parent=1, model="Big-7B")
    talk.change(
        replace(
            answer,
            text="So:\n```python\nlock.acquire()",
            reasoning="Hm.",
            finish="cancelled",
            runs=(("model", 10), ("target", 20)),
            figures={"n_tokens": 12, "tok_per_s": 34.56, "acceptance_rate": 0.5, "speedup_estimated": 1.25},
            settings={"seed": 1},
        )
    )
    talk.add("user", "edited away", parent=None)
    talk.head = 2
    return talk


def test_markdown_holds_what_is_shown_and_closes_what_was_cut() -> None:
    assert (
        as_markdown(talked())
        == """\
# Explain /locks/: how

## System

Be kind.

## You

Explain /locks/: how
and why

## Big-7B

<details><summary>Reasoning</summary>

Hm.

</details>

So:
```python
lock.acquire()
```

*12 tokens, 34.6 tok/s, 50% accepted, 1.25x estimated, interrupted*
"""
    )


def test_json_holds_every_turn_with_settings_figures_and_origins() -> None:
    document = json.loads(as_json(talked()))
    assert (document["format"], document["version"], document["head"]) == ("edgespec-session", 1, 2)
    assert [turn["text"] for turn in document["turns"]][2] == "edited away"
    answer = document["turns"][1]
    assert answer["origins"] == [
        {"source": "model", "characters": 10},
        {"source": "target", "characters": 20},
    ]
    assert answer["figures"]["tok_per_s"] == 34.56 and answer["settings"] == {"seed": 1}
    assert (answer["parent"], answer["finish"], answer["model"]) == (1, "cancelled", "Big-7B")


def test_a_file_is_named_by_the_title_and_nothing_is_overwritten(tmp_path: Path) -> None:
    talk = talked()
    first, second = export(talk, folder=tmp_path), export(talk, folder=tmp_path)
    assert (first.name, second.name) == ("explain-locks-how.md", "explain-locks-how-2.md")
    assert first.read_text() == as_markdown(talk)
    named = export(talk, " out.json ", folder=tmp_path)
    assert json.loads(named.read_text())["title"] == "Explain /locks/: how"
    with pytest.raises(SessionError, match=r"out\.json already exists"):
        export(talk, "out.json", folder=tmp_path)
    with pytest.raises(SessionError, match="cannot be written"):
        export(talk, "nowhere/out.md", folder=tmp_path)
    assert export(talk, str(tmp_path), folder=Path("/")).parent == tmp_path


@pytest.mark.parametrize(
    "title, name", [("../../etc/passwd", "etc-passwd.md"), ("...", "chat.md"), ("漢字!", "漢字.md")]
)
def test_a_title_is_no_path(title: str, name: str) -> None:
    assert suggested_name(Conversation(title=title)) == name


def test_text_that_is_no_unicode_is_written_as_far_as_it_is(tmp_path: Path) -> None:
    talk = Conversation()
    talk.add("user", "half \ud800")
    assert "half ?" in export(talk, "a.md", folder=tmp_path).read_text()
    export(talk, "a.json", folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x" * 300, "cannot be (used|written): File name too long"),
        ("~nobody-of-this-name/a.md", "cannot be written: No such file or directory"),
        ("a\0b", "is not the name of a file"),
        ("half \ud800", "is not the name of a file"),
    ],
)
def test_a_name_that_no_file_can_have_is_reported(name: str, expected: str, tmp_path: Path) -> None:
    """Each of them ended the chat."""
    with pytest.raises(SessionError, match=expected):
        export(talked(), name, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.name != "posix", reason="elsewhere a folder that is in use cannot be removed")
def test_a_folder_that_is_gone_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/export ended the chat where the folder that it was started in had been removed."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SessionError, match="the current folder cannot be used: No such file"):
        export(talked(), folder=Path())
    assert export(talked(), str(tmp_path), folder=Path()).parent == tmp_path
