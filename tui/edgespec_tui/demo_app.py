"""`edgespec demo`: the demo as a program of its own, on the screen or in plain lines."""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterable
from typing import ClassVar

from textual.binding import BindingType

from edgespec.client.attach import Progress
from edgespec_tui import hang_up
from edgespec_tui.guarded_app import GuardedApp
from edgespec_tui.screens import demo
from edgespec_tui.screens.demo import DemoScreen
from edgespec_tui.screens.race import Lane
from edgespec_tui.screens.race_screen import clock_of, title_of
from edgespec_tui.settings.keys import key
from edgespec_tui.widgets.typed_ahead import TypedAhead

LINE_EVERY_S = 5.0  # between two lines without a screen


class DemoApp(GuardedApp):
    """The demo alone."""

    BINDINGS: ClassVar[list[BindingType]] = [
        key("app.quit", "ctrl+q,ctrl+c", "Quit", "Quit", first=True),
    ]

    def __init__(self, screen: DemoScreen, typed: TypedAhead | None = None) -> None:
        super().__init__(typed)
        self.demo = screen

    def on_load(self) -> None:
        """Gives the keyboard to Textual; nothing that was typed until now is meant for the demo."""
        self.typed.taken()

    def on_mount(self) -> None:
        self.theme = self.usual_theme
        hang_up.watch(self.exit, lambda: None, has_window=not self.is_headless)
        self.push_screen(self.demo, lambda _: self.exit(0))

    def action_quit(self) -> None:  # type: ignore[override]
        """Ends."""
        self.exit(0)


def show(arguments: argparse.Namespace) -> int:
    """Shows the demo; returns the exit code. Raises EdgeSpecError where there is no screen to show it."""
    on_terminal = (
        sys.stdin and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    )
    if arguments.plain or not on_terminal:
        asyncio.run(_in_lines(arguments.seconds))
        return 0
    typed = TypedAhead()
    typed.ask_background()
    try:
        app = DemoApp(screen := DemoScreen(seconds=arguments.seconds), typed)
        code = app.run()
    finally:
        typed.taken()
    for sentence in screen.said:  # it stays on the terminal
        print(sentence)
    if app.fault:
        sys.stderr.write(f"edgespec: {app.fault}\n")
    return 1 if app.fault else code or 0


async def _in_lines(seconds: float) -> None:
    """Shows the demo in plain lines. Raises EdgeSpecError."""
    _say(demo.ABOUT_LINES)
    said, preparing = "", asyncio.current_task()
    unheard: OSError | None = None  # as with `| head`

    def tell(progress: Progress) -> None:
        nonlocal said, unheard
        if progress.text != said and not unheard:
            said = progress.text
            try:
                _say(f"{said[:1].upper()}{said[1:]} ...")
            except OSError as error:  # the loop would print it, and go on
                unheard = error
                if preparing:
                    preparing.cancel()

    preparation = demo.Preparation(tell)
    try:
        endpoint = await preparation.endpoint()
    except asyncio.CancelledError:
        if unheard:
            raise unheard from None
        raise
    try:
        _say(demo.about_cost(preparation.cost, preparation.unwritable))
        _say(demo.TURNS)
        race = demo.new_race(endpoint, seconds=seconds)
        await race.warm_both(demo.WARM)
        due = time.monotonic() + LINE_EVERY_S
        async for _ in race.run():
            if time.monotonic() >= due:
                due = time.monotonic() + LINE_EVERY_S
                _say_lanes(race.lanes.values())
        _say_lanes(race.lanes.values())
        for sentence in (demo.result(race), demo.sameness(race), demo.NEXT):
            _say(sentence)
    finally:
        await endpoint.close()


def _say_lanes(lanes: Iterable[Lane]) -> None:
    _say("; ".join(f"{title_of(lane)}: {', '.join(clock_of(lane).split('   '))}" for lane in lanes))


def _say(sentence: str) -> None:
    print(sentence, flush=True)
