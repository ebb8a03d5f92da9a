"""`edgespec demo`: the demo as a program of its own, on the screen or in plain lines."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import ClassVar

from textual.binding import BindingType

from edgespec.local.attach import Progress
from edgespec.system.other_programs import BUSY_CORES, Others
from edgespec_tui import hang_up
from edgespec_tui.guarded_app import GuardedApp
from edgespec_tui.screens import demo
from edgespec_tui.screens.demo import DemoScreen
from edgespec_tui.screens.race import Lane, Race
from edgespec_tui.screens.race_screen import clock_of, title_of
from edgespec_tui.settings.keys import key
from edgespec_tui.widgets.typed_ahead import TypedAhead

LINE_EVERY_S = 5.0  # between two lines without a screen
FIRST_LOOK_S = 0.5  # how long the machine is watched before
READING_S = 60.0  # at most, for the prompts of both columns


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
        asyncio.run(in_lines(arguments.seconds))
        return 0
    typed = TypedAhead()
    typed.ask_background()
    try:
        app = DemoApp(screen := DemoScreen(seconds=arguments.seconds), typed)
        code = app.run()
    finally:
        typed.taken()
    for sentence in screen.conclusion:  # it stays on the terminal
        print(sentence)
    if app.fault:
        sys.stderr.write(f"edgespec: {app.fault}\n")
    return 1 if app.fault else code or 0


def _say(sentence: str) -> None:
    print(sentence, flush=True)


async def in_lines(
    seconds: float,
    *,
    prepare: demo.Prepare = demo.prepared,
    others: Others | None = None,
    first_look_s: float = FIRST_LOOK_S,
    reading_s: float = READING_S,
    say: Callable[[str], None] = _say,
) -> None:
    """Shows the demo in plain lines. Raises EdgeSpecError."""
    say(demo.ABOUT_LINES)
    others = others or Others()
    await asyncio.sleep(first_look_s)
    if (cores := others.cores()) >= BUSY_CORES:
        say(f"Other programs keep {cores:.1f} cores busy: this takes longer, and shows less, than usual.")
    shown, preparing = "", asyncio.current_task()
    unheard: OSError | None = None  # as with `| head`

    def tell(progress: Progress) -> None:
        nonlocal shown, unheard
        if progress.text != shown and not unheard:
            shown = progress.text
            try:
                say(f"{shown[:1].upper()}{shown[1:]} ...")
            except OSError as error:  # the loop would print it, and go on
                unheard = error
                if preparing:
                    preparing.cancel()

    try:
        endpoint, about = await prepare(tell)
    except asyncio.CancelledError:
        if unheard:
            raise unheard from None
        raise
    try:
        say(about)
        most = 2 * seconds + reading_s
        say(f"{demo.TURNS} That takes about {2 * seconds:.0f} s, and {most:.0f} s at most.")
        race = demo.new_race(endpoint, seconds=seconds)
        others.cores()
        with suppress(TimeoutError):
            async with asyncio.timeout(most):
                await race.warm(demo.WARM, (False, True))
                await _run_in_lines(race, say)
        say(_lanes_line(race.lanes.values()))
        for sentence in (demo.result(race), demo.busy(others.cores()), demo.sameness(race), demo.NEXT):
            if sentence:
                say(sentence)
    finally:
        await endpoint.close()


async def _run_in_lines(race: Race, say: Callable[[str], None]) -> None:
    running = asyncio.create_task(race.run())
    try:
        while not (await asyncio.wait([running], timeout=LINE_EVERY_S))[0]:
            say(_lanes_line(race.lanes.values()))
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])


def _lanes_line(lanes: Iterable[Lane]) -> str:
    """Returns how far the answers of a race are, in a line."""
    return "; ".join(f"{title_of(lane)}: {', '.join(clock_of(lane).split('   '))}" for lane in lanes)
