"""Files of a question are found by parts of their names, and a folder or a pattern stands for its texts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import driven

from edgespec.errors import SettingError
from edgespec_tui.app import ChatApp
from edgespec_tui.widgets.attached_files import MOST_FILES, mentions, with_files
from edgespec_tui.widgets.project_files import files_below, in_group, named_like
from edgespec_tui.widgets.question import QuestionText


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with sources, a picture and what it ignores."""
    files = {
        ".gitignore": "*.log\nout/\n",
        "README.md": "# Read me\n",
        "src/config/reader.py": "READ = 1\n",
        "src/config/writer.py": "WRITE = 1\n",
        "src/main.py": "MAIN = 1\n",
        "out/made.py": "MADE = 1\n",
        "src/x.log": "noise\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "src" / "icon.bin").write_bytes(b"\0\1")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_project_ignores_is_not_listed(project: Path) -> None:
    assert files_below(project) == [
        ".gitignore", "README.md", "src/config/reader.py", "src/config/writer.py", "src/icon.bin",
        "src/main.py",
    ]  # fmt: skip
    assert files_below(project / "src" / "config") == ["reader.py", "writer.py"]


def test_without_git_hidden_and_usual_folders_are_left_out(project: Path) -> None:
    (project / "node_modules").mkdir()
    (project / "node_modules" / "a.js").write_text("")
    assert files_below(project, git=["no-such-program"]) == [
        "README.md", "out/made.py", "src/config/reader.py", "src/config/writer.py", "src/icon.bin",
        "src/main.py", "src/x.log",
    ]  # fmt: skip


def test_letters_in_their_order_find_a_file_the_best_match_first() -> None:
    files = ["src/config/reader.py", "src/main.py", "README.md", "tests/test_reader.py"]
    assert named_like("scrd", files) == ["src/config/reader.py"]
    assert named_like("READER", files)[0] == "src/config/reader.py"
    assert named_like("[.*", files) == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("src/", ["src/b.md", "src/config/a.py"]),
        ("./src/", ["src/b.md", "src/config/a.py"]),
        ("*.md", ["c.md", "src/b.md"]),
        ("src/*/a.p*", ["src/config/a.py"]),
        ("[x", []),
    ],
)
def test_a_folder_and_a_pattern_stand_for_files(name: str, found: list[str]) -> None:
    assert in_group(name, ["c.md", "src/b.md", "src/config/a.py", "srcs/d.py"]) == found


def test_a_folder_puts_its_texts_into_the_question_and_says_what_it_leaves_out(project: Path) -> None:
    made, notes = with_files(QuestionText("compare @src/ with @README.md and @src/config/*.py"))
    assert notes == ["1 of the 4 files in src/ are no text: left out."]
    marks = [one.mark for one in made.inserts]
    assert marks == [
        "[src/config/reader.py: 1 line]",
        "[src/config/writer.py: 1 line]",
        "[src/main.py: 1 line]",
        "[README.md: 1 line]",
    ]
    assert "src/main.py:\n```py\nMAIN = 1\n```" in made.text and "MADE" not in made.text


def test_a_folder_of_too_many_files_is_refused(project: Path) -> None:
    (project / "many").mkdir()
    for i in range(MOST_FILES + 1):
        (project / "many" / f"{i}.txt").write_text("a")
    with pytest.raises(SettingError, match=f"many/ stands for {MOST_FILES + 1} files, and at most"):
        with_files(QuestionText("see @many/"))


def test_sizes_are_known_before_a_question_is_sent(project: Path) -> None:
    found = mentions("@src/ and @README.md, @*.none", lambda: files_below(project))
    assert [(one.name, one.about) for one in found] == [
        ("src/", "4 files, 30 bytes"),
        ("README.md", "10 bytes"),
    ]


@on_a_loop
async def test_a_file_in_a_folder_below_is_found_while_it_is_typed(project: Path) -> None:
    async with driven(ChatApp(FakeEndpoint()), size=(100, 30)) as it:
        await it.pilot.press(*"see @wri")
        await it.until(lambda: "src/config/writer.py" in it.text() and "10 bytes" in it.text())
        await it.pilot.press("tab")
        await it.until(lambda: it.chat.prompt.text == "see @src/config/writer.py ")
        assert "writer.py 10 bytes ×" in it.text()
