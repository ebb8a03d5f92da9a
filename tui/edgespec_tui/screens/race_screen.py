"""The race on the screen: two columns, two clocks, and what it showed."""

import random
import time
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widgets import Digits, Static

from edgespec.errors import EdgeSpecError
from edgespec_tui.screens.race import ALIKE, RUNNERS, Lane, Race, Runner, sure_gain, together, verdict
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.answer_body import AnswerSegment
from edgespec_tui.widgets.growing import DrawingPace
from edgespec_tui.widgets.key_line import KeyLine
from edgespec_tui.widgets.panel import MeasuredSpeedUp
from edgespec_tui.widgets.segments import Segment

LOOK_S = 0.05
AGAIN = (
    " But this text was generated before, which helps guesses from memory: for a fair measurement, "
    "race a new question."
)
TITLES: dict[Runner, str] = {"plain": "Plain decoding", "speculative": "With speculation"}


def title_of(lane: Lane) -> str:
    """Returns what a lane is, and how many guesses of it were accepted."""
    rate = lane.counts.acceptance_rate
    return TITLES[lane.runner] + (f", {rate:.0%} accepted" if rate is not None else "")


def clock_of(lane: Lane) -> str:
    """Returns how long a lane has run, how much it has written, and how fast."""
    if not lane.answers:
        return ""
    speed = lane.tok_per_s()
    parts = [f"{lane.seconds:.1f} s", f"{lane.counts.n_tokens} tokens", f"{speed:.1f} tok/s" if speed else ""]
    return "   ".join(filter(None, parts))


class LaneView(Vertical):
    """One lane: what it is, its clock, its current answer."""

    def __init__(self, runner: Runner, *, tinted: bool = False) -> None:
        super().__init__(id=f"lane-{runner}", classes="lane")
        self.runner, self._tinted = runner, tinted

    def compose(self) -> ComposeResult:
        yield Static(TITLES[self.runner], classes="lane-title")
        yield Static("", classes="lane-clock")
        with VerticalScroll(can_focus=False):
            yield AnswerSegment(Segment(0, "", ""))

    async def show(self, lane: Lane, text: str, runs: Sequence[tuple[str, int]]) -> None:
        """Shows a lane as it is now. runs: who produced the text."""
        self.query_one(".lane-title", Static).update(Content(title_of(lane)))
        self.query_one(".lane-clock", Static).update(Content(clock_of(lane)))
        await self.query_one(AnswerSegment).show(Segment(0, "", text), runs if self._tinted else ())
        self.query_one(VerticalScroll).scroll_end(animate=False)


class LanesScreen(ModalScreen[MeasuredSpeedUp | None]):
    """Two columns that write in turn; ends with what was measured, or None."""

    HORIZONTAL_BREAKPOINTS = [(0, "-stacked"), (64, "-narrow"), (100, "-middle")]
    running = reactive(False, bindings=True)

    def __init__(self, *, tinted: bool) -> None:
        super().__init__()
        self._tinted = tinted
        self.measured: MeasuredSpeedUp | None = None
        self._race: Race | None = None
        self._pace, self._due = DrawingPace(), 0.0

    def compose(self) -> ComposeResult:
        with Vertical(id="race"):
            yield Static("", id="race-question")
            yield Digits("", id="race-gain")
            yield Static("", id="race-verdict")
            with Horizontal(id="lanes"):
                for runner in RUNNERS:
                    yield LaneView(runner, tinted=self._tinted)
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        self.set_interval(LOOK_S, self._look)
        self.run_worker(self._attempt(), exclusive=True)

    async def _attempt(self) -> None:
        self.running = True
        try:
            await self.go()
        except EdgeSpecError as error:
            self.tell(str(error))
        self.running = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offers another run once this one has ended."""
        return not (action == "again" and self.running)

    async def go(self) -> None:
        """Does what the screen is there for. Raises EdgeSpecError, which is shown."""
        raise NotImplementedError

    def tell(self, sentence: str | Content) -> None:
        """Shows how it goes, or how it went."""
        self.query_one("#race-verdict", Static).update(
            Content(sentence) if isinstance(sentence, str) else sentence
        )

    def show_gain(self, gain: float | None) -> None:
        """Shows a speed-up in large digits; None shows none."""
        self.set_class(gain is not None, "-gain")
        self.query_one("#race-gain", Digits).update(f"{gain:.2f}x" if gain is not None else "")

    async def race(self, race: Race) -> None:
        """Runs a race on the screen. Raises EdgeSpecError."""
        self._race = race
        self.show_gain(None)
        await race.run()
        self._race = None
        await self._draw(race)

    async def _look(self) -> None:
        if self._race is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._pace.pause()
            await self._draw(self._race)

    async def _draw(self, race: Race) -> None:
        for view in self.query(LaneView):
            lane = race.lanes[view.runner]
            await view.show(lane, *self.shown(lane))

    def shown(self, lane: Lane) -> tuple[str, list[tuple[str, int]]]:
        """Returns the text that a lane shows, and who produced it."""
        return lane.text, lane.answers[-1].runs if lane.answers else []

    def action_leave(self) -> None:
        """Leaves; ends what still runs."""
        self.dismiss(self.measured)


class RaceScreen(LanesScreen):
    """Races a question of the chat."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Back to the chat", id="race.leave"),
        Binding("r", "again", "Race again", id="race.again"),
    ]

    def __init__(
        self, race: Race, question: str, *, earlier: Sequence[str] = (), tinted: bool = False, why: str = ""
    ) -> None:
        """earlier: earlier answers; repeating one of them flatters a lane that remembers. why: nothing is
        guessed, if nothing is."""
        super().__init__(tinted=tinted)
        self._why = why
        self._next, self._question, self._earlier = race, question, list(earlier)
        self._results: list[MeasuredSpeedUp] = []

    async def go(self) -> None:
        race = self._next
        self.query_one("#race-question", Static).update(Content(self._question))
        how = "greedy" if race.is_greedy else f"seed {race.options.seed}"
        self.tell(f"Reading the prompt once for both ({how}).")
        await race.warm()
        self.tell("Both run in turn, a few rounds each; each clock counts its own rounds.")
        await self.race(race)
        self._finish(race)

    def _finish(self, race: Race) -> None:
        if measured := race.measured():
            self._results.append(measured)
        self.measured, n = together(self._results), len(self._results)
        races = "in this one race" if n == 1 else f"in {n} races"
        result = verdict(self.measured, races) if race.guessed else f"{ALIKE} {self._why}".strip()
        again = AGAIN if race.lanes["speculative"].text in self._earlier else ""
        self._earlier += [lane.text for lane in race.lanes.values()]
        self.show_gain(sure_gain(self.measured))
        self.tell(Content.assemble((result, "bold $primary"), "\n", race.comparison(), again))

    def action_again(self) -> None:
        """Races once more, with another seed if the chat has none of its own."""
        if not self.running:
            self._next = self._next.again(random.Random())
            self.run_worker(self._attempt(), exclusive=True)
