"""A project's AGENTS.md becomes a part of the system prompt where its user wants it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import driven

from edgespec.errors import SettingError
from edgespec.system import config
from edgespec_tui.app import ChatApp
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings import instructions
from edgespec_tui.settings.settings import Settings
from edgespec_tui.settings.slash_commands import CHANGES


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository below a folder that is not its own, with instructions of its own and of a folder."""
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (root / "src" / "deep").mkdir(parents=True)
    (tmp_path / "AGENTS.md").write_text("Not ours.")
    (root / "AGENTS.md").write_text("Use tabs.\n")
    (root / "src" / "AGENTS.md").write_text("Write tests.\n")
    monkeypatch.chdir(root / "src" / "deep")
    return root


def changed(talk: Conversation, text: str) -> str:
    return CHANGES["/instructions"](talk, text)


def test_they_are_those_of_the_folder_and_above_up_to_the_root_which_comes_first(project: Path) -> None:
    assert instructions.files() == [project / "AGENTS.md", project / "src" / "AGENTS.md"]
    assert instructions.text(instructions.files()) == "Use tabs.\n\nWrite tests."
    assert instructions.files(project.parent) == [project.parent / "AGENTS.md"], "no repository: this folder"


def test_they_are_offered_once_and_used_only_if_that_is_wanted(project: Path) -> None:
    assert "/instructions on" in instructions.offer() and instructions.offer() == ""
    settings = Settings(system="Be brief.")
    talk = settings.new_conversation()
    assert talk.system == "Be brief." and "not used" in changed(talk, "")
    assert "project/AGENTS.md" in changed(talk, "on")
    assert talk.system.startswith("Be brief.\n\n") and "Use tabs." in talk.system
    changed(talk, "on")
    assert talk.system.count("Use tabs.") == 1
    assert settings.new_conversation().system == talk.system, "later chats of this folder"
    changed(talk, "off")
    assert talk.system == "Be brief." == settings.new_conversation().system


def test_another_folder_is_another_decision(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed(Conversation(), "on")
    monkeypatch.chdir(project.parent)
    assert instructions.decided() == "" and Settings().new_conversation().system == ""


def test_what_stands_around_them_stays(project: Path) -> None:
    system = instructions.with_instructions("Be brief.", "Use tabs.") + "\n\nA summary."
    assert instructions.without(system) == "Be brief.\n\nA summary."
    assert instructions.without("Be brief.") == "Be brief."


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe", "is not a text file"), (b"x" * (instructions.LARGEST + 1), "is larger than")],
)
def test_files_that_cannot_be_used_are_named(project: Path, content: bytes, sentence: str) -> None:
    (project / "AGENTS.md").write_bytes(content)
    with pytest.raises(SettingError, match=sentence):
        changed(Conversation(), "on")
    instructions.decide("on")
    assert Settings().new_conversation().system == ""


def test_wrong_words_and_no_file_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="takes on or off, not 'maybe'"):
        changed(Conversation(), "maybe")
    monkeypatch.chdir(project / ".git")
    for path in (project / "AGENTS.md", project / "src" / "AGENTS.md"):
        path.unlink()
    assert instructions.offer() == ""
    with pytest.raises(SettingError, match=r"there is no AGENTS\.md"):
        changed(Conversation(), "on")


def test_a_damaged_list_of_decisions_is_begun_anew(project: Path) -> None:
    file = config.data_folder() / "instructions.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    for content in (b"\xff", b"[]", b"[" * 100_000, b'{"a": 1}'):
        file.write_bytes(content)
        assert instructions.decided() == ""
    instructions.decide("on")
    assert instructions.decided() == "on"


@on_a_loop
async def test_the_model_reads_them_and_the_panel_says_so(project: Path) -> None:
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint), size=(130, 36)) as it:
        await it.say("/instructions on")
        await it.notified("AGENTS.md")
        await it.ask("hi")
        assert "Write tests." in endpoint.asked[0][0][0].text
        assert "AGENTS.md is used" in it.shown("#panel-rows")
