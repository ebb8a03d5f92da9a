"""A monkey at the keyboard: keys, pastes, sizes and bytes at random, over all screens of the app."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

from fake_endpoint import FakeEndpoint
from textual import events
from textual.geometry import Size
from tui_driver import Driven, driven

from edgespec.errors import EndpointError, EngineDiedError
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.shelf.store import Store
from edgespec_tui import app
from edgespec_tui.app import ChatApp
from edgespec_tui.key_bindings import bindings
from edgespec_tui.screens.model_shelf import Shelf
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.slash_commands import COMMANDS
from edgespec_tui.terminal.typed_bytes import TypedBytes

ANSWERS = (
    "word " * 60,
    "# Head\n\nSome `code`.\n\n```python\nprint('a')\n```\n\n| a | b |\n|-|-|\n| c | d |\n" * 3,
    EndpointError("The server is busy.", status=503),
    "<think>hm</think>Yes.",
    EngineDiedError("the engine ended"),
    "last " * 300,
)
OPENERS = ("ctrl+p", "ctrl+o", "ctrl+l", "f1", "f5", "ctrl+n")
MOVES = ("enter", "enter", "escape", "up", "down", "left", "right", "home", "end", "pageup", "pagedown")
MOVES += (
    "tab",
    "shift+tab",
    "backspace",
    "delete",
    "space",
    "ctrl+j",
    "ctrl+a",
    "ctrl+z",
    "ctrl+k",
    "ctrl+u",
)
PASTES = (
    "two words",
    "a\nb",
    "line\n" * 30,
    "\x1b[31mred\x1b[0m\n\x07\x11",
    "\x9b\x1b[201~x\r",
    "é\u202e\x00",
)
BYTES = (
    b"\xff",
    b"\x9b",
    b"\xe9a",
    b"\x1b",
    b"\x1b[",
    b"\x1b[200~a\x1bb\rc\x1b[201~",
    b"\x1bO",
    b"\x1b[<0;3;3M",
)
BYTES += (b"\x1b[55296;1;55296u", b"\x1b[1:2;3u", b"\x1b[99999999999u", b"\x1b[48;0;0;0;0t", b"\x1b[<64;2;2M")
BYTES += (
    b"\x1b[<0;3;3m",
    b"\x1b[M\xff\xff\xff",
    b"\x1b[200~",
    b"\x1b[201~",
    b"\x1b[I",
    b"\x1b[O",
    b"\x1b[1;1R",
)


class Monkey(ChatApp):
    """An app that stays when it is asked to quit."""

    CSS_PATH = Path(app.__file__).with_name("chat.tcss")

    def action_quit_now(self) -> None: ...

    async def action_quit(self) -> None: ...

    def deliver_screenshot(self, *_: Any, **__: Any) -> None: ...


def no_hub() -> Hub:
    raise HubError("there is no network here")


def pressed(rng: random.Random, keys: list[str]) -> list[events.Event]:
    """Draws a burst: keys that come without a pause."""
    kind = rng.random()
    if kind < 0.15:
        return [
            events.Key(rng.choice(OPENERS), None),
            *[key_of(rng.choice(MOVES)) for _ in range(rng.randrange(4))],
        ]
    if kind < 0.25:
        return [key_of(rng.choice(MOVES))] * rng.randrange(2, 9)  # held down
    if kind < 0.4:
        return [
            key_of(one) for one in (*rng.choice(COMMANDS).name, *(" " + rng.choice(["", "x", "1", "off"])))
        ]
    return [
        key_of(rng.choice(rng.choice((keys, MOVES, list("abcde /@"))))) for _ in range(rng.randrange(1, 9))
    ]


def key_of(name: str) -> events.Key:
    character = {"enter": "\r", "space": " ", "ctrl+j": "\n"}.get(name, name if len(name) == 1 else None)
    return events.Key({" ": "space", "/": "slash", "@": "at"}.get(name, name), character)


async def play(folder: Path, seed: int, n_keys: int) -> None:
    """Presses at least so many keys; fails if the app ends, or a turn that was on the screen is not saved."""
    rng = random.Random(seed)
    keys = [key for one in bindings() for key in one.key.split(",")]
    told: list[str] = []
    sessions = Sessions(folder, on_notice=told.append)
    seen: dict[int, Conversation] = {}
    window = Monkey(
        FakeEndpoint(answers=ANSWERS * 50, tok_per_s=400),
        sessions=sessions,
        shelf=Shelf(Store(folder / "models"), hub=no_hub),
    )
    async with driven(window) as it:
        typed = TypedBytes(time.monotonic)
        n, tried = 0, []
        while n < n_keys:
            burst: list[Any] = pressed(rng, keys)
            if rng.random() < 0.1:
                burst.append(events.Paste(rng.choice(PASTES)))
            if rng.random() < 0.1:
                burst += typed.feed(
                    rng.choice(BYTES) if rng.random() < 0.7 else rng.randbytes(rng.randrange(1, 9))
                )
                burst += typed.quiet()
            if rng.random() < 0.05:
                size = Size(rng.choice((130, 80, 40, 20, 1)), rng.choice((40, 24, 12, 5, 1)))
                burst.append(events.Resize(size, size))
            for one in burst:
                n += isinstance(one, events.Key)
                window.post_message(one)
            tried = [*tried[-30:], burst]
            await asyncio.sleep(rng.choice((0, 0, 0.005, 0.03)))
            assert window.is_running and window._exception is None, (
                f"seed {seed}, key {n}: {window._exception!r} by {tried}"
            )
            talk = it.chat.conversation
            if talk.id is not None:
                seen[talk.id] = talk
        await settled(it)
    kept = Sessions(folder, on_notice=told.append)
    sessions.close()
    for id, talk in seen.items():
        loaded = kept.loaded(id)
        if loaded.exception() is None:
            there = {turn.text for turn in loaded.result().turns.values()}
            lost = {turn.text for turn in talk.turns.values()} - there
            assert not lost, f"seed {seed}: not saved: {lost}"
    kept.close()
    assert not told, told


async def settled(it: Driven) -> None:
    await it.until(lambda: not it.app._keys, "all keys handled", seconds=120)
    await it.pilot.pause()
    await it.chat.answers.stop()
