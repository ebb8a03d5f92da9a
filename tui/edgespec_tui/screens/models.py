"""Choosing a model: what is installed, what the catalogue has, and pulling it, without leaving the chat."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from edgespec.errors import SettingError
from edgespec_models.shelf.sizes import size_text
from edgespec_tui.screens.model_shelf import Shelf, ShelfPair
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.key_line import KeyLine

if TYPE_CHECKING:
    from edgespec_models.hub.model_pull import ModelPull

EVERY_S = 0.2
BEST = "best for this machine"
NAME, SIZE, FIT, GAIN = 23, 8, 9, 21  # widths of columns; a pair's purpose has the rest
HEADINGS = {
    "best": BEST[:1].upper() + BEST[1:],
    "installed": "Installed",
    "embedded": "Ships with EdgeSpec",
    "catalogue": "To pull",
}
HOW = "Enter switches to an installed pair or pulls another."


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of the list: those whose rows differ."""

    fit: bool
    gain: bool

    def heading(self, part: str, *, first: bool) -> Content:
        """Returns the line above a part; the first one names the columns."""
        name = HEADINGS[part]
        if not first:
            return Content.styled(name, "bold $primary")
        columns = self._row("size", "memory", "gain", "for")
        return Content.assemble((name.ljust(2 + NAME + 1), "bold $primary"), (columns, "dim"))

    def line(self, pair: ShelfPair, *, answers: bool) -> Content:
        """Returns the line of a pair. answers: it does now."""
        last = "files are gone" if pair.missing else pair.use
        if pair.best and pair.kind != "catalogue":
            last = BEST
        row = self._row(size_text(pair.size), pair.fit, pair.gain, "")
        mark, name = "> " if answers else "  ", Content(pair.name).truncate(NAME, ellipsis=True, pad=True)
        return Content.assemble((mark, "bold"), name, " ", row, (last, "dim"))

    def _row(self, size: str, fit: str, gain: str, last: str) -> str:
        cells = [size.rjust(SIZE)]
        cells += [fit.ljust(FIT)] * self.fit + [gain[:GAIN].ljust(GAIN)] * self.gain
        return "  ".join([*cells, last])


class ModelsScreen(ModalScreen[ShelfPair | None]):
    """Lists pairs; ends with the one to continue with, or None. A pull continues when the screen is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back", id="models.leave"),
        Binding("f8,ctrl+x", "stop", "Stop the pull", id="models.stop", priority=True),
        Binding("down", "app.focus('models-list')", "To the list", id="models.to_list", show=False),
    ]

    def __init__(self, shelf: Shelf, *, running: str = "") -> None:
        """running: the current target's file name."""
        super().__init__()
        self._shelf, self._file = shelf, running
        self._pairs: list[ShelfPair] = []
        self._shown: tuple[object, ...] = ()  # what is drawn of the pull
        self._choosing: ModelPull | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="models"):
            yield Input(
                placeholder="Search, or a repository to pull: owner/name-GGUF:Q4_K_M", id="models-search"
            )
            yield OptionList(id="models-list")
            yield Static("", id="models-detail")
            yield ProgressBar(id="models-bar", show_eta=False)
            yield Static("", id="models-note")
            yield KeyLine(show_command_palette=False)

    async def on_mount(self) -> None:
        self._shelf.watched = True
        await self._read()
        self.set_interval(EVERY_S, self._show_pull)

    def on_resize(self) -> None:
        """Lists them as wide as the window is now."""
        if self._pairs:
            self.call_after_refresh(self._fill)

    def on_unmount(self) -> None:
        self._shelf.watched = False

    async def _read(self) -> None:
        """Reads what there is, in a thread: the store is a file, perhaps on a slow disk."""
        try:
            self._pairs = await asyncio.to_thread(self._shelf.pairs)
        except SettingError as error:
            self._note(str(error))
        self._fill()
        if self._pairs and self._shelf.pull is None:
            self._note(HOW)

    def _fill(self) -> None:
        options, query = self.query_one(OptionList), self.query_one(Input).value
        marked = self._marked()
        options.clear_options()
        if self._choosing is not None:
            self._fill_drafts(options, self._choosing)
            return
        pairs = [pair for pair in self._pairs if "/" in query or pair.holds(query)]
        columns = _Columns(len({pair.fit for pair in pairs}) > 1, any(pair.gain for pair in pairs))
        part = ""
        width = max(20, options.content_size.width or 200)
        for pair in pairs:
            its_part = "best" if pair.best and pair.kind == "catalogue" else pair.kind
            if its_part != part:
                part = its_part
                heading = columns.heading(part, first=pair is pairs[0]).truncate(width)
                options.add_option(Option(heading, disabled=True))
            line = columns.line(pair, answers=self._answers(pair)).truncate(width, ellipsis=True)
            options.add_option(Option(line, id=pair.name))
        names = [pair.name for pair in pairs]
        here = next((pair.name for pair in pairs if pair.kind != "catalogue"), names[0] if names else None)
        first = marked.name if marked and marked.name in names else here  # Enter pulls nothing unseen
        options.highlighted = options.get_option_index(first) if first else None
        if not pairs:
            self._note("No pair matches; the name of a repository contains a slash.")

    def _answers(self, pair: ShelfPair) -> bool:
        """Returns whether a pair answers now."""
        file = pair.name if pair.kind == "embedded" else pair.target.stem if pair.target else ""
        return bool(self._file) and file == self._file

    def _fill_drafts(self, options: OptionList, pull: ModelPull) -> None:
        for i, draft in enumerate(pull.choices):
            line = Content.assemble(str(draft.candidate), f"  {size_text(draft.size)}  ", (draft.why, "dim"))
            options.add_option(Option(line, id=f"draft {i}"))
        options.add_option(Option("no draft: guesses come from the text", id="draft none"))
        options.highlighted = 0
        options.focus()

    def _marked(self) -> ShelfPair | None:
        option = self.query_one(OptionList).highlighted_option
        return next((pair for pair in self._pairs if option and pair.name == option.id), None)

    def _note(self, sentence: str) -> None:
        self.query_one("#models-note", Static).update(Content(sentence))

    # -- the list

    @on(Input.Changed)
    def _search(self) -> None:
        self._note("")
        self._fill()

    @on(Input.Submitted)
    def _submit(self, event: Input.Submitted) -> None:
        if "/" in event.value:
            self._begin(event.value.strip())
        elif (pair := self._marked()) is not None:
            self._take(pair)

    @on(OptionList.OptionHighlighted)
    def _detail(self) -> None:
        pair = self._marked()
        self.query_one("#models-detail", Static).update(Content("\n".join(pair.detail) if pair else ""))

    @on(OptionList.OptionSelected)
    def _select(self, event: OptionList.OptionSelected) -> None:
        id = event.option.id or ""
        if self._choosing is not None and id.startswith("draft "):
            pull, self._choosing = self._choosing, None
            number = id.removeprefix("draft ")
            pull.choose(None if number == "none" else pull.choices[int(number)])
            self._fill()
        elif (pair := self._marked()) is not None:
            self._take(pair)

    def _take(self, pair: ShelfPair) -> None:
        """Continues with a pair that is here; pulls one that is not."""
        if pair.kind == "catalogue":
            self._begin(pair.name)
        elif pair.missing:
            self._note(f"{pair.name} has lost files: pull it again, or run `edgespec rm {pair.name}`.")
        else:
            self.dismiss(pair)

    # -- pulling

    def _begin(self, what: str) -> None:
        try:
            self._shelf.begin_pull(what)
        except SettingError as error:
            self._note(str(error))

    def action_stop(self) -> None:
        """Stops the pull; files that are whole are kept."""
        pull = self._shelf.pull
        if pull is None or pull.over:
            self._note("Nothing is being pulled.")
        else:
            self._choosing = None
            pull.cancel()

    async def _show_pull(self) -> None:
        """Draws the pull's progress."""
        pull = self._shelf.pull
        if pull is None:
            return
        now = (pull, pull.stage, pull.sentence)
        if now == self._shown:
            return
        before, self._shown = self._shown, now
        self._note(pull.sentence)
        bar = self.query_one(ProgressBar)
        bar.display = pull.stage == "pulling"
        if pull.progress is not None:
            bar.update(total=pull.progress.total or None, progress=pull.progress.done)
        if pull.stage == "choosing" and self._choosing is None:
            self._choosing = pull
            self._fill()
        elif pull.over and before[:2] != now[:2]:
            self._choosing = None
            await self._read()
            self._mark(pull)

    def _mark(self, pull: ModelPull) -> None:
        """Marks what was pulled, for Enter to continue with."""
        if pull.stage == "done" and pull.pair is not None:
            options = self.query_one(OptionList)
            with self.prevent(Input.Changed):  # it would remove the sentence
                self.query_one(Input).value = ""
            self._fill()
            options.highlighted = options.get_option_index(pull.pair.name)
            options.focus()
            self._note(f"{pull.sentence} Press Enter to resume.")
