"""A small benchmark from within a chat: prompts of several kinds, each answered plain and speculative."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.screens.race import Race, drawn, together
from edgespec_tui.widgets.key_line import KeyLine
from edgespec_tui.widgets.panel import MeasuredSpeedUp

PROMPTS = (
    ("explain", "What does os.path.join do?"),
    ("code", "Write a function that returns the longest line of a file."),
    ("repeat", "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."),
    ("list", "List five modules of Python's standard library, with a line about each."),
    ("edit", "Rename x to total in this code:\n\nx = 0\nfor n in numbers:\n    x = x + n\nprint(x)"),
    ("talk", "How are you today?"),
    ("summary", "Say in two sentences what a context manager is for."),
    ("compare", "What is the difference between a list and a tuple?"),
)
DEFAULT_PROMPTS = 4
LONGEST = 96


class BenchScreen(ModalScreen[MeasuredSpeedUp | None]):
    """Runs the prompts; ends with the measurement, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "leave", "Back to the chat", id="bench.leave"),
    ]

    def __init__(
        self,
        endpoint: Endpoint,
        options: AnswerOptions,
        prompts: Sequence[tuple[str, str]],
        *,
        rng: random.Random,
    ) -> None:
        super().__init__()
        self._endpoint, self._prompts, self._rng = endpoint, prompts, rng
        self._options = replace(options, max_tokens=LONGEST)
        self._results: list[MeasuredSpeedUp] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="bench"):
            yield Static("Plain against speculative, with this pair on this machine", id="bench-title")
            yield DataTable(cursor_type="none", id="bench-table")
            yield Static("", id="bench-note")
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns("kind", "plain tok/s", "speculative", "speed-up", "text")
        self.run_worker(self._run(), exclusive=True)

    def _note(self, sentence: str) -> None:
        self.query_one("#bench-note", Static).update(Content(sentence))

    async def _run(self) -> None:
        try:
            for n, (kind, prompt) in enumerate(self._prompts, 1):
                self._note(f"{n} of {len(self._prompts)}: {kind}")
                race = drawn(self._endpoint, [Message("user", prompt)], self._options, rng=self._rng)
                await race.warm()
                async for _ in race.run():
                    pass
                self._show(kind, race)
        except EdgeSpecError as error:
            self._note(str(error))
            return
        self._note(summary(self._results))

    def _show(self, kind: str, race: Race) -> None:
        measured = race.measured()
        same = "same" if race.lanes["plain"].text == race.lanes["speculative"].text else "differs"
        if measured is None:
            self.query_one(DataTable).add_row(
                kind, "-", "-", "too short" if race.guessed else "no guesses", same
            )
            return
        self._results.append(measured)
        self.query_one(DataTable).add_row(
            kind,
            f"{measured.plain:.1f}",
            f"{measured.speculative:.1f}",
            f"{measured.speedup:.2f}x",
            same,
        )

    def action_leave(self) -> None:
        """Goes back; ends what still runs."""
        self.dismiss(together(self._results))


def summary(results: Sequence[MeasuredSpeedUp]) -> str:
    """Says what was measured, and how far it can be trusted."""
    mean = together(results)
    if mean is None:
        return "No answer was long enough to measure its speed."
    low, high = min(one.speedup for one in results), max(one.speedup for one in results)
    return (
        f"Measured: {mean.speedup:.2f}x on average of {mean.n} prompts (geometric), from {low:.2f}x to "
        f"{high:.2f}x. These were few and short; `edgespec bench` gives confidence intervals."
    )
