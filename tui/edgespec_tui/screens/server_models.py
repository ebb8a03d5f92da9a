"""Choosing among the models of another server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from edgespec.client.answer import Info
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.key_line import KeyLine


class ServerModelsScreen(ModalScreen[str | None]):
    """Lists what a server can answer with; ends with the name of a model, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="models.leave"),
        Binding("down", "app.focus('models-list')", "To the list", id="models.to_list", show=False),
    ]

    def __init__(self, models: Sequence[Info], *, running: str = "") -> None:
        """running: the model that answers now."""
        super().__init__()
        self._models, self._running = sorted(models, key=lambda info: info.model.lower()), running
        self._listed: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="models"):
            yield Input(placeholder="Search the models of this server", id="models-search")
            yield OptionList(id="models-list")
            yield Static("Enter lets a model answer from now on.", id="models-note", markup=False)
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        self._fill()

    @on(Input.Changed)
    def _fill(self) -> None:
        query = self.query_one(Input).value.lower()
        options = self.query_one(OptionList)
        options.clear_options()
        shown = [info for info in self._models if query in info.model.lower()]
        self._listed = [info.model for info in shown]
        for info in shown:
            mark = "> " if info.model == self._running else "  "
            context = f"  {info.n_ctx:,} tokens" if info.n_ctx else ""
            options.add_option(Option(Content.assemble((mark, "bold"), info.model, (context, "dim"))))
        options.highlighted = 0 if shown else None

    @on(Input.Submitted)
    @on(OptionList.OptionSelected)
    def _choose(self) -> None:
        marked = self.query_one(OptionList).highlighted
        if marked is not None:
            self.dismiss(self._listed[marked])
