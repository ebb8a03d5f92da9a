"""`!command`: the user's own command, whose output goes with the next question."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import posix
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import driven

from edgespec_tui.app import ChatApp
from edgespec_tui.settings.settings import Settings
from edgespec_tui.widgets.shell_output import HALF, Ran


def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    whole, output = "".join(f"line {i}\n" for i in range(5000)), Ran("make")
    for at in range(0, len(whole), 777):
        output.add(whole[at : at + 777])
    kept = output.text()
    assert kept.startswith(whole[:HALF]) and kept.endswith(whole[-HALF:])
    assert f"[... {len(whole) - 2 * HALF:,} characters left out ...]" in kept
    short = Ran("make")
    short.add("a")
    assert short.text() == "a"


def test_an_output_with_fences_is_fenced_by_longer_ones() -> None:
    ran = Ran("cat README.md", 0)
    ran.add("```\ncode\n```\n")
    question = ran.question()
    assert "````\n```\ncode\n```\n````\n(exit code 0)" in question.text
    assert question.inserts[0].mark == "[output: 3 lines]"


@posix
@on_a_loop
async def test_its_output_stands_in_the_input_and_goes_with_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint)) as it:
        await it.say("!echo one; echo two >&2; printf '\\377\\033[2J'; exit 3")
        await it.until(lambda: "[output 1: " in it.chat.prompt.text, "the output is in the input")
        assert not it.texts(), "nothing was asked yet"
        await it.pilot.press(*"why?", "enter")
        await it.until(lambda: len(it.texts()) == 2 and not it.chat.answering)
        asked = endpoint.asked[-1][0][-1].text
        assert "one\ntwo\n\ufffd" in asked and "(exit code 3)" in asked and asked.rstrip().endswith("why?")
        assert "\x1b[2J" not in it.text()


@posix
@on_a_loop
async def test_esc_stops_a_command_and_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.say("!echo begun; (sleep 1.5; touch late) ; sleep 600")
        await it.until(lambda: "begun" in it.text(), "what it writes is shown at once")
        await it.say("!echo another")
        await it.notified("is still running: Esc stops it")
        it.chat.prompt.clear_all()
        await it.pilot.press("escape")
        await it.until(lambda: "begun" not in it.shown("#shell") or not it.chat.query_one("#shell").display)
        await it.until(lambda: not it.chat.aside.running, "it has ended")
        assert not (tmp_path / "late").exists()


@on_a_loop
async def test_where_it_is_turned_off_it_is_a_question() -> None:
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint, settings=Settings(shell=False))) as it:
        await it.ask("!touch me")
        assert endpoint.asked[-1][0][-1].text == "!touch me" and not Path("me").exists()
