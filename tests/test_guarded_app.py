"""Keys come one at a time to the screen they are for; a fault costs its key and no more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from textual import events
from textual.geometry import Size
from textual.widgets import Input, OptionList
from tui_driver import Driven, driven

from edgespec_tui import guarded_app
from edgespec_tui.app import ChatApp
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.screens.help import HelpScreen
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.waits import Waits


def burst(it: Driven, *keys: str) -> None:
    """Presses keys without a pause, as a held key or a slow line brings them."""
    for key in keys:
        it.app.post_message(events.Key(key, {"enter": "\r"}.get(key, key if len(key) == 1 else None)))


@on_a_loop
async def test_keys_in_one_burst_go_to_the_screen_that_is_there_by_then(tmp_path: Path) -> None:
    """A second Enter closed a screen that was closed: ScreenStackError, or no transcript any more. Page up
    in a palette that was not drawn yet: KeyError. Each ended the app."""
    sessions = Sessions(tmp_path, on_notice=print)
    for i in range(4):
        talk = Conversation()
        talk.add("user", f"question {i}")
        sessions.save(talk)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        burst(it, "ctrl+p", *"tint", "down", "enter", "enter", "enter")
        await it.pilot.pause(0.2)  # the palette searches meanwhile, and may still be open
        while it.app.screen is not it.chat:
            await it.pilot.press("escape")
        it.chat.prompt.clear_all()
        burst(it, "ctrl+p", "pageup", "pagedown", "escape", "escape", *"two")
        await it.until(lambda: it.chat.prompt.text == "two")
        burst(it, "ctrl+o", "down", "down", "enter", "enter", "enter")
        await it.until(lambda: it.texts() and not it.chat.answering and it.app.screen is it.chat)
        burst(it, "ctrl+o", *"no such chat", "enter", "escape", *"three")
        await it.until(lambda: "three" in it.chat.prompt.text and it.app.screen is it.chat)
    sessions.close()


@on_a_loop
async def test_a_list_without_room_turns_no_page(tmp_path: Path) -> None:
    """Textual's list turns pages by its lines, and has none before it is drawn, or without room: KeyError."""
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        await it.pilot.press("ctrl+o")
        hidden = OptionList("one", "two")
        hidden.display = False
        await it.app.screen.mount(hidden)
        hidden.highlighted = 1
        assert await it.app.run_action("page_up", hidden) and await it.app.run_action("page_down", hidden)
    sessions.close()


@pytest.mark.slow
@on_a_loop
@pytest.mark.parametrize("size", [pytest.param((4, 4), marks=pytest.mark.slow), (1, 1)])
async def test_every_screen_bears_a_window_without_room(size: tuple[int, int], tmp_path: Path) -> None:
    """The palette wrapped its lines into no columns: ValueError in the layout, and the end."""
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        await it.ask("one")
        for opener in ("ctrl+p", "ctrl+o", "f1", "f5"):
            await it.pilot.press(opener)
            await it.pilot.resize_terminal(*size)
            await it.pilot.press("down", "pageup", "pagedown")
            await it.pilot.resize_terminal(100, 30)
            await it.pilot.press("escape")
        await it.pilot.press(*"fine")
        await it.until(lambda: it.chat.prompt.text == "fine")
    sessions.close()


@on_a_loop
async def test_two_sizes_on_their_way_do_not_take_turns_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window dragged on a slow machine was laid out in both sizes in turn, without an end."""
    laid_out: list[Size] = []
    resized = HelpScreen._screen_resized
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.pilot.press("f1")
        monkeypatch.setattr(
            HelpScreen, "_screen_resized", lambda self, size: (laid_out.append(size), resized(self, size))
        )
        for size in (Size(43, 3), it.app.size) * 2:
            it.app.screen.post_message(events.Resize(size, size))
            for _ in range(3):  # else the next size takes the place of this one in the queue
                it.app.screen.call_later(lambda: None)
        await asyncio.sleep(0.5)
        assert set(laid_out) == {it.app.size} and len(laid_out) <= 4


@on_a_loop
async def test_screens_do_not_pile_up(tmp_path: Path) -> None:
    """The palette opened one above the other; each draws all below it, and the app stood still in the end."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        for _ in range(6):
            it.app.action_help()
            await it.pilot.pause()
        assert len(it.app.screen_stack) == guarded_app.MOST_SCREENS
        await it.pilot.press("escape", "escape", *"fine")
        await it.until(lambda: it.chat.prompt.text == "fine")


@on_a_loop
async def test_a_key_does_not_wait_for_ever_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    let = asyncio.Event()

    async def slow(self: ChatScreen, event: object) -> None:
        await let.wait()

    monkeypatch.setattr(ChatScreen, "on_prompt_input_sent", slow)
    async with driven(ChatApp(FakeEndpoint(), waits=Waits(key_s=0.05))) as it:
        burst(it, *"ask", "enter", *"go on")
        await it.until(lambda: it.chat.prompt.text == "go on")
        let.set()
        await it.until(lambda: it.app._in_hand is None)


@on_a_loop
async def test_what_a_closed_screen_still_wants_is_dropped(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        await it.pilot.press("ctrl+o")
        screen = it.app.screen
        list_, search = screen.query_one(OptionList), screen.query_one("#sessions-search", Input)
        await it.pilot.press("escape")
        assert it.app.screen is it.chat
        for widget in (list_, search):
            widget.post_message(events.Key("enter", "\r"))
        assert await it.app.run_action("leave", screen) and it.app.screen is it.chat
    sessions.close()


@on_a_loop
async def test_a_fault_is_reported_once_and_the_text_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in any handler ended the app, with a traceback or without what was being written."""

    def broken(self: ChatScreen) -> None:
        raise ZeroDivisionError("a fault of our own")

    monkeypatch.setattr(ChatScreen, "action_panel", broken)
    monkeypatch.setattr(ChatApp, "is_headless", False)  # else it is raised, for tests
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        await it.pilot.press(*"half", "f2", *" a thought")
        await it.notified(
            "a fault of EdgeSpec's own was met, and the chat goes on (ZeroDivisionError); details are"
        )
        assert it.chat.prompt.text == "half a thought" and it.app.fault is None
        burst(it, *["f2"] * guarded_app.MOST_FAULTS)
        await it.until(lambda: it.app.fault, "too many are no accident")
        assert "ended the chat (ZeroDivisionError)" in (it.app.fault or "")
    sessions.close()
    kept = Sessions(tmp_path, on_notice=print)
    found = kept.newest().result(10)
    assert found is not None and found.draft == {"text": "half a thought"}
    kept.close()


@on_a_loop
async def test_a_fault_that_cannot_be_shown_ends_the_chat_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *_: object) -> None:
        raise ZeroDivisionError("a fault of our own")

    monkeypatch.setattr(ChatScreen, "action_panel", broken)
    monkeypatch.setattr(ChatScreen, "tell", broken)
    monkeypatch.setattr(ChatApp, "is_headless", False)
    async with driven(ChatApp(FakeEndpoint())) as it:
        burst(it, "f2")
        await it.until(lambda: it.app.fault and not it.app.is_running)
