"""The page that a browser shows at the server's address: its state, its speed, a chat, and how to use it.

It is drawn here, from the files in `page/`; its script only fetches what is new, and fetches nothing from
elsewhere. It opens without a key, as llama-server's does, so if keys are required it names no model until
one is given.
"""

import string
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from edgespec import __version__
from edgespec.core.values import Round
from edgespec.server.engine_status import State

HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
FOLDER = Path(__file__).with_name("page")
FILES = {"style.css": "text/css", "script.js": "text/javascript"}
STATES: dict[State, tuple[str, str]] = {
    "ready": ("good", "ready"),
    "unloaded": ("good", "idle: the next request loads the model"),
    "loading": ("wait", "loading the model"),
    "down": ("bad", "the engine is being restarted"),
    "stopped": ("bad", "ending"),
}
WIDTH, HEIGHT = 240, 40  # of a graph, in its own units
STEP_S, STEPS = 5.0, 120
PAUSE_S = 2.0  # between two rounds: longer ones are pauses, in which nothing was written


@dataclass(slots=True)
class Sums:
    """What was done in one step of time."""

    step: int
    tokens: int = 0
    seconds: float = 0.0  # in which it was written
    drafted: int = 0
    accepted: int = 0

    @property
    def speed(self) -> float | None:
        """Tokens per second, of all answers together; None if nothing was written."""
        return self.tokens / self.seconds if self.seconds else None

    @property
    def acceptance(self) -> float | None:
        """Which part of the guesses was right; None without any."""
        return self.accepted / self.drafted if self.drafted else None


class Recent:
    """Speed and acceptance of the last ten minutes: sums of five seconds each."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last = clock, -PAUSE_S
        self._sums: deque[Sums] = deque(maxlen=STEPS)

    def note(self, round_: Round) -> None:
        """Counts a round. The first after a pause has taken nobody knows how long."""
        now, step = self._clock(), int(self._clock() / STEP_S)
        if not self._sums or self._sums[-1].step != step:
            self._sums.append(Sums(step))
        sums, gap = self._sums[-1], now - self._last
        self._last = now
        if gap < PAUSE_S:
            sums.tokens += len(round_.tokens)
            sums.seconds += gap
        sums.drafted += round_.drafted
        sums.accepted += round_.accepted

    def steps(self) -> list[Sums]:
        """Returns all steps up to now, the oldest first."""
        now = int(self._clock() / STEP_S)
        known = {sums.step: sums for sums in self._sums}
        return [known.get(step, Sums(step)) for step in range(now - STEPS + 1, now + 1)]


@dataclass(frozen=True, slots=True)
class ShownModel:
    """A model in the list."""

    name: str
    status: str  # loaded, unloaded or loading
    about: str  # size, context, draft, in words
    progress: float | None  # of loading


def front_page(root: str, state: State, models: Sequence[ShownModel] | None, steps: Sequence[Sums]) -> str:
    """Returns the page. root: the address without /v1. models: None if a key is required."""
    open_, page = models is not None, (FOLDER / "page.html").read_text(encoding="utf-8")
    return string.Template(page).substitute(
        version=escape(__version__),
        needs="" if open_ else "required",
        now=now_section(state, models, steps),
        root=escape(root),
        name=escape(models[0].name if models else "MODEL"),
        key="none" if open_ else "KEY",
        any=" (any text will do)" if open_ else "",
    )


def now_section(state: State, models: Sequence[ShownModel] | None, steps: Sequence[Sums]) -> str:
    """Returns what changes on the page: state, graphs and models."""
    kind, status = STATES[state]
    shown = f'<p class="status {kind}" role="status">{escape(status)}</p>'
    if models is None:
        words = "This server requires a key. Send it as <code>Authorization: Bearer KEY</code>."
        return f"{shown}<p>{words}</p>"
    speed = _graph("Speed", [sums.speed for sums in steps], "{:.0f} tok/s", None)
    right = _graph("Guesses that were right", [sums.acceptance for sums in steps], "{:.0%}", 1.0)
    rows = "".join(map(_row, models))
    return f'{shown}<div class="graphs">{speed}{right}</div><h2>Models</h2><table>{rows}</table>'


def _graph(title: str, values: Sequence[float | None], form: str, top: float | None) -> str:
    """Returns the curve of the last minutes, the newest value on the right; gaps where there was nothing."""
    known = [value for value in values if value is not None]
    minutes = round(STEP_S * STEPS / 60)
    last = form.format(known[-1]) if known else "-"
    most = f"at most {form.format(max(known))}" if known else "none"
    top = top or max(known, default=1.0) or 1.0
    lines: list[list[str]] = [[]]
    for i, value in enumerate(values):
        if value is None:
            lines.append([])
        else:
            y = HEIGHT - 2 - (HEIGHT - 4) * min(value / top, 1.0)
            lines[-1].append(f"{WIDTH * i / max(1, len(values) - 1):.1f},{y:.1f}")
    drawn = "".join(
        f'<polyline points="{" ".join(line if len(line) > 1 else line * 2)}" stroke-linecap="round"/>'
        for line in lines
        if line
    )
    label = f"{title}: {last}, {most} in {minutes} minutes"
    return (
        f'<div><h3>{escape(title)}</h3><strong>{last}</strong> <span class="dim">{most} in '
        f'{minutes} minutes</span><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{drawn}</svg></div>'
    )


def _row(model: ShownModel) -> str:
    change, name = {"loaded": "unload", "unloaded": "load"}.get(model.status), escape(model.name)
    button = f'<button class="change" type="button" data-model="{name}">{change}</button>'
    status = "" if model.status == "unloaded" else escape(model.status)
    done = "" if model.progress is None else f" {model.progress:.0%}"
    return (
        f"<tr><td><code>{name}</code></td><td>{escape(model.about)}</td>"
        f'<td class="{escape(model.status)}">{status}{done} {button if change else ""}</td></tr>'
    )
