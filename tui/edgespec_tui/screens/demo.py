"""The demo: the embedded pair at the cost of a real model answers plain and with speculation, in turn.

Nothing in it is prepared but the questions, which neither model was trained on: what is shown is measured.
"""

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Static

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError
from edgespec.local.attach import OnProgress, Progress, WantedEngine, own
from edgespec.memory.free import free_memory
from edgespec.pairs.grown import Cost, affordable, folder, grown_pair, unwritable
from edgespec.system.other_programs import BUSY_CORES, Others
from edgespec_models import tiny
from edgespec_models.shelf.sizes import size_text
from edgespec_tui.endpoint.attached import AttachedEndpoint
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.screens.race import ALIKE, Lane, LaneAnswer, Race, sure_gain, verdict
from edgespec_tui.screens.race_screen import LanesScreen
from edgespec_tui.terminal.shown_text import Content

COSTS = ("0.6B-F16", "0.14B-F16")  # the first that there is room for
LANE_S = 20.0  # seconds that each column writes
ANSWER = 96  # tokens at most
FLAGS = ("--slots", "2", "--cache-ram", "0")
CONTEXT = 1024
ABOUT = (
    "The same model answers the same questions twice. Left, it writes every token itself. Right, a small "
    "draft guesses the next tokens and the model checks them all at once; accepted guesses are marked."
)
ABOUT_LINES = (
    "The same model answers the same questions twice: once it writes every token itself, once a small draft "
    "guesses the next tokens and the model checks them all at once."
)
WARM = 8  # tokens that both write before anything is measured: weights come from the disk
TURNS = "Both write in turn, a few rounds each; each clock counts its own rounds."
IN_CHAT = (
    "Next, a model of your own: Ctrl+L lists those that are here and those to pull. Then F5 races any "
    "question like this."
)
NEXT = (
    "Next, a model of your own: `edgespec import` uses GGUF files that are already here, `edgespec pull` "
    "downloads a pair. In `edgespec chat`, F5 races any question like this."
)


def questions() -> list[list[Message]]:
    """Returns what is asked, one of each kind in turn."""
    kinds: dict[str, list[list[Message]]] = {}
    for line in tiny.held_out_prompts_path().read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        asked = [Message(message["role"], message["content"]) for message in entry.get("messages", ())]
        if asked and not asked[-1].text.startswith("```"):  # else it is no question at first sight
            kinds.setdefault(entry["kind"], []).append(asked)
    longest = max(map(len, kinds.values()))
    return [asked[i] for i in range(longest) for asked in kinds.values() if i < len(asked)]


def new_race(endpoint: Endpoint, *, seconds: float, skip: int = 0) -> Race:
    """Returns a race through the questions. skip: so many come last, because they were asked before."""
    asked = questions()
    skip %= len(asked)
    options = AnswerOptions(sampling={"temperature": 0.0}, max_tokens=ANSWER)
    return Race(endpoint, [*asked[skip:], *asked[:skip]], options, longest_s=seconds)


def quoted(question: str) -> str:
    """Returns the first line of a question as a Markdown quotation."""
    first = next(iter(question.splitlines()), "")
    parts = re.split(r"(`[^`]*`)", first)  # in backticks, nothing has a meaning
    parts[::2] = [re.sub(r"([\\`*_<>\[\]#])", r"\\\1", part) for part in parts[::2]]
    return f"> {''.join(parts)}\n\n" if first else ""


def in_markdown(answers: Sequence[LaneAnswer]) -> tuple[str, list[tuple[str, int]]]:
    """Returns answers below their questions, and who produced which characters."""
    text, runs = "", list[tuple[str, int]]()
    for answer in answers:
        head, end = quoted(answer.question), "\n```\n\n" if answer.text.count("```") % 2 else "\n\n"
        text += head + answer.text + end  # code that the limit cut off ends there
        runs += [("", len(head)), *answer.runs, ("", len(end))]
    return text, runs


def about_cost(cost: Cost | None, unwritable: Path | None = None) -> str:
    """Says which model is shown. unwritable: the folder in which none could be made."""
    if cost is None and unwritable:
        return (
            f"{unwritable} cannot be written, so the embedded pair was not made as slow as a real model "
            "(EDGESPEC_CACHE_DIR names another folder); guesses can hardly pay with a model so small."
        )
    if cost is None:
        return (
            "There is no room here to make the embedded pair as slow as a real model, so this is its own "
            "speed; guesses can hardly pay with a model so small."
        )
    size = cost.spec.partition("-")[0]
    short = "" if cost.spec == COSTS[0] else f", because there is no room for one of {COSTS[0][:-4]}"
    return (
        f"The embedded pair, as slow as a model of {size} parameters{short}. It is a tiny one: mind the "
        "speed and not the words."
    )


def result(race: Race) -> str:
    """Says what was measured."""
    return verdict(race.measured(), "here just now") if race.guessed else ALIKE


def busy(cores: float) -> str:
    """Says how many cores others kept busy, if that may have changed the result; else ""."""
    if cores < BUSY_CORES:
        return ""
    return f"Other programs kept {cores:.1f} cores busy: once they have ended, the demo can say more."


def sameness(race: Race) -> str:
    """Says how many answers are the same."""
    pairs = list(zip(*(lane.texts for lane in race.lanes.values()), strict=False))
    same = sum(a.startswith(b) or b.startswith(a) for a, b in pairs)
    if same == len(pairs):
        return "All answers are the same, as far as both have written them."
    parted = "a near-tie of two tokens may part them (`edgespec verify`)"
    return f"{same} of {len(pairs)} answers are the same; {parted}."


async def prepared(
    on_progress: OnProgress,
    *,
    costs: Sequence[str] = COSTS,
    start: Callable[[WantedEngine, OnProgress], Endpoint] | None = None,
    make: Callable[[str, Callable[[int, int], None]], tuple[Path, Path]] = grown_pair,
) -> tuple[Endpoint, str]:
    """Makes the pair of the demo and starts its engine; returns it, and a sentence on it.

    on_progress: called on the event loop. costs: the first that there is room for is taken. Raises
    EdgeSpecError; may be cancelled at any moment.
    """
    cost = await asyncio.to_thread(lambda: affordable(costs, memory=free_memory()[0]))
    if cost is None:
        target, draft = tiny.target_path(), tiny.draft_path()
    else:
        target, draft = await _made(cost, make, on_progress)

    def tell(progress: Progress) -> None:
        text = progress.text.replace(target.name, "the model").replace(draft.name, "its draft")
        if progress.stage != "ready":
            on_progress(replace(progress, text=text))

    wanted = WantedEngine(target=target, draft=draft, n_ctx=CONTEXT, flags=FLAGS)
    endpoint = (start or _endpoint)(wanted, tell)
    try:
        await endpoint.start()
    except BaseException:
        await endpoint.close()
        raise
    return endpoint, about_cost(cost, None if cost else unwritable())


async def _made(
    cost: Cost,
    make: Callable[[str, Callable[[int, int], None]], tuple[Path, Path]],
    on_progress: OnProgress,
) -> tuple[Path, Path]:
    """Makes a pair in a thread, which ends when nobody waits for it any more."""
    loop, left, shown = asyncio.get_running_loop(), threading.Event(), -1
    text = f"making a pair of {size_text(cost.size)} in {folder()}, once"

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if left.is_set():
            raise EdgeSpecError("the demo was left")
        if (percent := 100 * done // max(total, 1)) != shown:
            shown = percent
            loop.call_soon_threadsafe(on_progress, Progress("loading", text, percent / 100))

    try:
        return await asyncio.to_thread(make, cost.spec, tell)
    except asyncio.CancelledError:
        left.set()
        raise


def _endpoint(wanted: WantedEngine, on_progress: OnProgress) -> Endpoint:
    return AttachedEndpoint(partial(own, wanted), wanted=wanted, on_progress=on_progress)


Prepare = Callable[[OnProgress], Awaitable[tuple[Endpoint, str]]]
LATEST = 2  # answers of a column that are shown
BAR = 20  # characters


class DemoScreen(LanesScreen):
    """One minute: plain decoding next to speculation."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Leave", id="demo.leave"),
        Binding("r", "again", "Again, other questions", id="demo.again"),
    ]

    def __init__(
        self,
        *,
        seconds: float = LANE_S,
        next_step: str = NEXT,
        prepare: Prepare = prepared,
    ) -> None:
        """seconds: of each column. next_step: what it ends with."""
        super().__init__(tinted=True)
        self._seconds, self._prepare, self._next_step = seconds, prepare, next_step
        self._endpoint: Endpoint | None = None
        self._asked, self._cost = 0, ""
        self.conclusion: list[str] = []  # what it ended with

    async def go(self) -> None:
        about = self.query_one("#race-question", Static)
        about.update(Content(ABOUT))
        self.remove_class("-ended")
        if self._endpoint is None:
            self.tell("Preparing the demo.")
            self._endpoint, self._cost = await self._prepare(self._show_progress)
        race = new_race(self._endpoint, seconds=self._seconds, skip=self._asked)
        await race.warm(WARM, (False, True))
        self.tell(f"{TURNS} {self._cost}")
        others = Others()
        await self.race(race)
        self._asked += max(len(lane.answers) for lane in race.lanes.values())
        self.measured = race.measured()
        first, *rest = self.conclusion = [
            *filter(None, (result(race), busy(others.cores()), sameness(race))),
            self._next_step,
        ]
        self.show_gain(sure_gain(self.measured))
        self.add_class("-ended")  # what it is about gives place to what it showed
        self.tell(Content.assemble((first, "bold $primary"), f" {' '.join(rest[:-1])}\n{rest[-1]}"))

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
