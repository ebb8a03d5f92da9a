"""The race on the screen: two columns, two clocks, and what it showed."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from edgespec.errors import EdgeSpecError
from edgespec_tui.screens.race import Leg, Race, Runner, together, verdict
from edgespec_tui.widgets.answer_markdown import AnswerSegment
from edgespec_tui.widgets.drawing_pace import DrawingPace
from edgespec_tui.widgets.key_line import KeyLine
from edgespec_tui.widgets.panel import Measured
from edgespec_tui.widgets.segments import Segment

LOOK_S = 0.05
AGAIN = (
    " But this text was generated before, which helps guesses from memory: for a fair measurement, "
    "race a new question."
)
TITLES = {"plain": "Plain decoding", "speculative": "With speculation"}


class Lane(Vertical):
    """One runner."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(id=f"lane-{runner}", classes="lane")
        self.runner = runner

    def compose(self) -> ComposeResult:
        yield Static(TITLES[self.runner], classes="lane-title")
        yield Static("", classes="lane-clock")
        with VerticalScroll(can_focus=False):
            yield AnswerSegment(Segment(0, "", ""))

    async def show(self, text: str, seconds: float | None, n: int, word: str = "") -> None:
        """Shows a text, and a clock beside it."""
        clock = "" if seconds is None else f"{seconds:5.1f} s   {n} tokens"
        self.query_one(".lane-clock", Static).update(Content(f"{clock}   {word}".strip()))
        await self.query_one(AnswerSegment).show(Segment(0, "", text))
        self.query_one(VerticalScroll).scroll_end(animate=False)


class RaceScreen(ModalScreen[Measured | None]):
    """Runs a race; ends with what was measured, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Back to the chat", id="race.leave"),
        Binding("r", "again", "Race again", id="race.again"),
    ]

    def __init__(self, race: Race, question: str, *, said: Sequence[str] = ()) -> None:
        """said: earlier answers; repeating one of them flatters a runner that remembers."""
        super().__init__()
        self._race, self._question, self._said = race, question, list(said)
        self.measured: Measured | None = None
        self._results: list[Measured] = []
        self._errors: list[float] = []
        self._runner: Runner | None = None
        self._began = 0.0
        self._replayed: Leg | None = None
        self._pace, self._due = DrawingPace(), 0.0

    def compose(self) -> ComposeResult:
        with Vertical(id="race"):
            yield Static(Content(self._question), id="race-question")
            yield Static("", id="race-verdict")
            with Horizontal(id="lanes"):
                yield Lane("plain")
                yield Lane("speculative")
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._draw)
        self.run_worker(self._run(), exclusive=True)

    def _lane(self, runner: Runner) -> Lane:
        return self.query_one(f"#lane-{runner}", Lane)

    async def _run(self) -> None:
        race = self._race
        first, second = race.order
        verdict = self.query_one("#race-verdict", Static)
        how = "greedy" if race.is_greedy else f"seed {race.options.seed}"
        try:
            verdict.update(Content(f"Reading the prompt once for both ({how})."))
            await race.warm()
            await self._lane(second).show("", None, 0, "runs second")
            verdict.update(Content(f"{TITLES[first]} was drawn to run first."))
            await self._leg(first)
            self._replayed = race.legs[first]
            verdict.update(Content(f"{TITLES[second]} runs now; next to it, {race.order[0]} is replayed."))
            await self._leg(second)
        except EdgeSpecError as error:
            self._runner = None
            verdict.update(Content(str(error)))
            return
        self._runner = None
        await self._finish()

    async def _leg(self, runner: Runner) -> None:
        self._runner, self._began = runner, time.monotonic()
        async for _ in self._race.run(runner):
            pass

    async def _draw(self) -> None:
        """Shows the runner, and beside the second one the first again at its recorded pace."""
        if self._runner is None or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._pace.pause()
        seconds = time.monotonic() - self._began
        leg = self._race.legs[self._runner]
        await self._lane(self._runner).show(leg.text, seconds, leg.counts[-1] if leg.counts else 0, "running")
        if self._replayed is not None and self._runner is not None:  # it may have ended meanwhile
            text, n = self._replayed.at(seconds)
            done = seconds >= self._replayed.times[-1] if self._replayed.times else True
            shown = self._replayed.times[-1] if done and self._replayed.times else seconds
            await self._lane(self._replayed.runner).show(text, shown, n, "done" if done else "replay")

    async def _finish(self) -> None:
        for runner, leg in self._race.legs.items():
            speed = leg.tok_per_s()
            seconds = leg.times[-1] if leg.times else 0.0
            word = f"{speed:.1f} tok/s" if speed else ""
            await self._lane(runner).show(leg.text, seconds, leg.counts[-1] if leg.counts else 0, word)
        measured, error = self._race.measured(), self._race.error()
        if measured and error is not None:
            self._results.append(measured)
            self._errors.append(error)
        self.measured = together(self._results)
        said = verdict(self._results, self._errors)
        again = AGAIN if self._race.legs["speculative"].text in self._said else ""
        self._said += [leg.text for leg in self._race.legs.values()]
        self.query_one("#race-verdict", Static).update(
            Content.assemble((said, "bold $primary"), "\n", self._race.comparison(), again)
        )

    def action_leave(self) -> None:
        """Goes back; ends what still runs."""
        self.dismiss(self.measured)

    def action_again(self) -> None:
        """Races once more, in the other order and with another seed, if the chat has none of its own."""
        if self._runner is None:
            race = self._race
            self._race = race.again(random.Random())
            self._replayed = None
            self.run_worker(self._run(), exclusive=True)
