"""`/compact`, `/schema`, and the end of a long answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import driven

from edgespec.errors import EndpointError
from edgespec_tui.app import ChatApp
from edgespec_tui.sessions.compaction import ASKED, BEGINS
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.settings import Settings
from edgespec_tui.settings.waits import Waits


@on_a_loop
async def test_the_oldest_turns_become_a_summary_and_the_whole_chat_is_kept(tmp_path: Path) -> None:
    endpoint = FakeEndpoint(answers=["A1", "A2", "A3", "We spoke of files.", "A4"])
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(endpoint, sessions=sessions, settings=Settings(system="Be brief."))) as it:
        for n in range(3):
            await it.ask(f"q{n}")
        whole = it.chat.conversation
        await it.say("/compact")
        await it.until(lambda: it.chat.conversation is not whole, "another chat is open")
        asked = [message.text for message in endpoint.asked[-1][0]]
        assert asked == ["Be brief.", "q0", "A1", ASKED]
        talk = it.chat.conversation
        assert it.texts() == ["q1", "A2", "q2", "A3"]
        assert talk.system == f"Be brief.\n\n{BEGINS}We spoke of files." and talk.id != whole.id
        await it.ask("q3")
        assert [one.text for one in endpoint.asked[-1][0]] == [talk.system, "q1", "A2", "q2", "A3", "q3"]
        assert [turn.text for turn in whole.path()] == ["q0", "A1", "q1", "A2", "q2", "A3"]
    sessions.close()
    again = Sessions(tmp_path, on_notice=print)
    found = [again.loaded(one.id).result() for one in again.searched().result()]
    assert sorted(len(one.turns) for one in found) == [6, 6]
    again.close()


@pytest.mark.slow
@on_a_loop
async def test_a_summary_that_fails_changes_nothing() -> None:
    endpoint = FakeEndpoint(answers=["A", "A", "A", EndpointError("the engine is busy")])
    async with driven(ChatApp(endpoint)) as it:
        await it.say("/compact")
        await it.notified("there is nothing to summarise yet")
        for n in range(3):
            await it.ask(f"q{n}")
        whole = it.chat.conversation
        await it.say("/compact")
        await it.notified("the engine is busy")
        assert it.chat.conversation is whole and len(it.texts()) == 6


@on_a_loop
async def test_esc_stops_a_summary() -> None:
    endpoint = FakeEndpoint(answers=["A", "A", "A", "word " * 200])
    async with driven(ChatApp(endpoint)) as it:
        for n in range(3):
            await it.ask(f"q{n}")
        whole, endpoint.tok_per_s = it.chat.conversation, 2
        await it.say("/compact")
        await it.until(lambda: "Summarising the oldest turns" in it.text())
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.aside.running)
        assert it.chat.conversation is whole and "Summarising" not in it.text() and endpoint.cancelled


@on_a_loop
async def test_answers_follow_the_schema_of_a_file(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    (tmp_path / "list.json").write_text("[1]")
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint)) as it:
        for file, why in (("list.json", "holds no JSON schema"), ("none.json", "cannot be read")):
            await it.say(f"/schema {tmp_path / file}")
            await it.notified(why)
            it.chat.prompt.clear_all()
        await it.say(f"/schema {tmp_path / 's.json'}")
        await it.notified("from now on")
        await it.ask("one")
        assert endpoint.asked[-1][1].extra["response_format"]["json_schema"]["schema"] == schema
        await it.say("/schema off")
        await it.notified("free again")
        await it.ask("two")
        assert not endpoint.asked[-1][1].extra


@pytest.mark.sample(2)
@on_a_loop
@pytest.mark.parametrize(
    ("how", "focus", "written"),
    [
        ("bell", False, "\a"),
        ("osc9", False, "\x1b]9;"),
        ("osc777", False, "\x1b]777;notify;"),
        ("off", False, ""),
        ("bell", True, ""),
    ],
)
async def test_the_end_of_a_long_answer_is_announced_to_another_window(
    how: str, focus: bool, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, waits = Settings(notify=how), Waits(long_s=-1.0)
    async with driven(ChatApp(FakeEndpoint(tok_per_s=5), settings=settings, waits=waits)) as it:
        found: list[str] = []
        driver = it.app._driver
        assert driver is not None
        monkeypatch.setattr(driver, "write", found.append)
        monkeypatch.setattr(driver, "flush", lambda: None, raising=False)
        await it.say("one")
        it.app.app_focus = focus
        await it.until(lambda: not it.chat.answering)
        await it.pilot.pause(0.2)
        told = [one for one in found if one.startswith(("\a", "\x1b]9;", "\x1b]777"))]
        assert bool(told) == bool(written) and (not written or told[0].startswith(written))
