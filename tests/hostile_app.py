"""An app in which every text that others write would be obeyed by a terminal. Run by a test."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from fake_endpoint import FAKE, FakeEndpoint
from textual.pilot import Pilot

from edgespec.errors import EndpointError
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.screens.model_shelf import Shelf
from edgespec_tui.screens.race import drawn
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.sessions.sessions import Sessions

# the window's title, the clipboard, the scroll region, C1, a bell, and what reorders a line
HOSTILE = "\x1b]2;X\x1b\\\x1b]52;c;aGFja2Vk\x1b\\\x1b[3;7r\x9b3;8r\x9d2;Y\x9c\x07\x7f\b\v\u202eevil\u2066 Z"
OBEYED = ("\x1b]2;", "\x1b]52;", "\x1b[3;7r", "\x9b", "\x9d", "\x07", "\x7f", "\b", "\v", "\u202e", "\u2066")
MARKDOWN = f"""<think>{HOSTILE}</think># {HOSTILE}

{HOSTILE} *{HOSTILE}* `{HOSTILE}` [{HOSTILE}](x) ![{HOSTILE}](x) <b>{HOSTILE}</b>

* {HOSTILE}

> {HOSTILE}

| {HOSTILE} | b |
|---|---|
| {HOSTILE} | c |

<div>
{HOSTILE}
</div>

```{HOSTILE.replace(" ", "")}
{HOSTILE}
```

    {HOSTILE}
"""


def hostile_app(folder: Path) -> ChatApp:
    """Returns an app in which every name, text and error is hostile."""
    store = Store(folder / "data")
    for file in (folder / "big.gguf", folder / "small.gguf"):
        file.write_bytes(b"x" * 1000)
    big, small = (InstalledModel((str(folder / name),), 1000) for name in ("big.gguf", "small.gguf"))
    store.add(InstalledPair("mine", big, small, "imported", 1.0, note=HOSTILE))
    (folder / f"{HOSTILE}.txt").write_text(HOSTILE)
    os.chdir(folder)
    info = replace(FAKE, model=HOSTILE, draft=HOSTILE, card=HOSTILE, where=HOSTILE, beyond_trained=HOSTILE)
    endpoint = FakeEndpoint(answers=[MARKDOWN, EndpointError(HOSTILE)], info=info)
    return ChatApp(
        endpoint,
        sessions=Sessions(folder / "saved", on_notice=lambda _: None),
        shelf=Shelf(store, memory=16 * 10**9),
        notices=[HOSTILE],
    )


async def shown_everywhere(pilot: Pilot[Any]) -> None:
    """Goes through the screens, and writes what each shows into the app's `seen`."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    chat, seen = app.chat, app.seen  # type: ignore[attr-defined]

    async def look() -> None:
        await pilot.pause(0.05)
        seen.append("\n".join(strip.text for strip in app.screen._compositor.render_strips()))

    async def ask(text: str) -> None:
        chat.prompt.fill(text)
        await look()
        await pilot.press("enter")
        await pilot.pause(0.1)
        while chat.answering:
            await asyncio.sleep(0.01)
        await look()

    while app.context.engine.info is None or not chat.is_whole:
        await asyncio.sleep(0.01)
    await look()
    await ask(HOSTILE)
    await pilot.press("f8", "pageup")
    await look()
    await ask(f'see @"{HOSTILE}.txt"')
    await ask(f"/rename {HOSTILE}")
    await ask(f"/system {HOSTILE}")
    await ask("/system")
    await ask(f"/{HOSTILE}")
    chat.prompt.fill('@"')
    await look()
    chat.prompt.fill(HOSTILE)
    await look()
    chat.show_banner(HOSTILE, ("F9", HOSTILE, "restart"))
    chat.show_waiting([chat.prompt.question()])
    app.notify(HOSTILE)
    app.context.engine.lost(EndpointError(HOSTILE))
    await look()
    await app.context.engine.start()
    for key in ("ctrl+o", "ctrl+l", "f1"):
        await pilot.press(key)
        await look()
        if key == "ctrl+o":
            await pilot.press("f2")
            await look()
            await pilot.press("escape")
        chat.tell(HOSTILE, "error")
        await look()
        await pilot.press("escape")
    endpoint = app.context.engine.endpoint
    assert isinstance(endpoint, FakeEndpoint)
    endpoint.listed = [HOSTILE, f"b{HOSTILE}"]
    await app._list_models()
    await look()
    await pilot.press("escape")
    race = drawn(
        app.context.engine.endpoint, [Message("user", HOSTILE)], chat.options(), rng=random.Random(1)
    )
    app.push_screen(RaceScreen(race, HOSTILE, said=[]))
    await look()
    await pilot.press("escape")


async def drive(pilot: Pilot[Any]) -> None:
    pilot.app.seen = []  # type: ignore[attr-defined]
    await shown_everywhere(pilot)
    pilot.app.exit(0)


if __name__ == "__main__":
    sys.exit(hostile_app(Path(sys.argv[1])).run(auto_pilot=drive))
