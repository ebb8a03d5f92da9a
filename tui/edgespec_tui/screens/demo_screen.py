"""The demo on the screen: how it is prepared, two columns that write, and what they showed."""

from collections.abc import Callable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static

from edgespec.client.attach import OnProgress, Progress
from edgespec_tui.endpoint.endpoint import Endpoint
from edgespec_tui.screens.demo import (
    ABOUT,
    LANE_S,
    NEXT,
    TURNS,
    WARM,
    Preparation,
    about_cost,
    in_markdown,
    new_race,
    result,
    sameness,
)
from edgespec_tui.screens.race import Lane
from edgespec_tui.screens.race_screen import LanesScreen

LATEST = 2  # answers of a column that are shown
BAR = 20  # characters


class DemoScreen(LanesScreen):
    """One minute: plain decoding beside speculation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Leave", id="demo.leave"),
        Binding("r", "again", "Again, other questions", id="demo.again"),
    ]

    def __init__(
        self,
        *,
        seconds: float = LANE_S,
        next_step: str = NEXT,
        preparing: Callable[[OnProgress], Preparation] = Preparation,
    ) -> None:
        """seconds: of each column. next_step: what it ends with. preparing: makes the preparation."""
        super().__init__(tinted=True)
        self._seconds, self._preparing, self._next_step = seconds, preparing, next_step
        self._endpoint: Endpoint | None = None
        self._asked, self._cost = 0, ""
        self.said: list[str] = []  # what it ended with

    async def go(self) -> None:
        about = self.query_one("#race-question", Static)
        about.update(Content(ABOUT))
        self.remove_class("-ended")
        if self._endpoint is None:
            self.tell("Preparing the demo.")
            preparation = self._preparing(self._show_progress)
            self._endpoint = await preparation.endpoint()
            self._cost = about_cost(preparation.cost)
        race = new_race(self._endpoint, seconds=self._seconds, skip=self._asked)
        await race.warm_both(WARM)
        self.tell(f"{TURNS} {self._cost}")
        await self.race(race)
        self._asked += max(len(lane.answers) for lane in race.lanes.values())
        self.measured = race.measured()
        self.said = [result(race), sameness(race), self._next_step]
        first, second, third = self.said
        self.add_class("-ended")  # what it is about gives place to what it showed
        self.tell(Content.assemble((first, "bold $primary"), f" {second}\n{third}"))

    def _show_progress(self, progress: Progress) -> None:
        if self._endpoint is not None or not self.is_attached:
            return
        text = progress.text[:1].upper() + progress.text[1:]
        if progress.fraction is not None:
            full = round(BAR * progress.fraction)
            text = f"{'█' * full}{'░' * (BAR - full)} {progress.fraction:4.0%}  {text}"
        self.tell(text)

    def shown(self, lane: Lane) -> tuple[str, list[tuple[str, int]]]:
        return in_markdown(lane.answers[-LATEST:])

    async def on_unmount(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()

    def action_again(self) -> None:
        """Shows it once more, with questions that were not asked yet."""
        if not self.running and self._endpoint is not None:
            self.run_worker(self._attempt(), exclusive=True)
