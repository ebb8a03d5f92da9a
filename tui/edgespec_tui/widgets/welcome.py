"""What an empty chat shows: who answers, and what to know at the start."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from edgespec_tui.endpoint.engine_state import LENT, KnownEngine
from edgespec_tui.endpoint.model_notes import PULL, note_of
from edgespec_tui.terminal.shown_text import Content

DEMO = ("F12", "see in a minute what this is for")
REST = ("F1", "keys and commands; / lists commands, @ adds a file")
KEY = 8  # width of a column


class Welcome(VerticalScroll, can_focus=False):
    """The screen before the first question."""

    def compose(self) -> ComposeResult:
        yield Static("EdgeSpec", id="welcome-name")
        yield Static("", id="welcome-model")
        yield Static("", id="welcome-notice")
        yield Static("", id="welcome-offer")
        yield Static("", id="welcome-best")
        yield Static("", id="welcome-asks")

    def show(self, engine: KnownEngine) -> None:
        """Shows what answers, as far as that is known."""
        info = engine.info
        if info is None:
            words = "The engine is loading; you can start typing." if engine.state == "starting" else ""
        elif not info.speculates:
            name = info.model or "Ctrl+L chooses the model"
            words = f"{name} at {info.where}. This server reports no speculation data."
        elif info.embedded:
            words = "The embedded pair answers."
        else:
            drafts = f", {info.draft} drafts." if info.draft else ", without a draft model."
            words = f"{info.model} answers{drafts}"
        if info is not None and info.lent:
            words += " " + LENT
        self.query_one("#welcome-model", Static).update(Content(words))
        note = note_of(info) if info else None
        hints = [f"{note.what} For {note.better} press Ctrl+L, or {PULL}."] if note else []
        self._tell("#welcome-notice", [Content(line) for line in (*hints, *(info.notices if info else ()))])
        tries = [*(("Try", ask) for ask in (note.asks[:1] if note else ())), DEMO, REST]
        self._tell("#welcome-asks", [Content.assemble((key.ljust(KEY), "bold"), does) for key, does in tries])

    def recommend(self, sentence: str) -> None:
        """Names the pair that gains here, and the key that pulls it."""
        line = Content.assemble(("Alt+P".ljust(KEY), "bold"), sentence)
        self._tell("#welcome-best", [line])

    def offer(self, pair: str) -> None:
        """Offers a pair that is here, in words; "" offers none."""
        line = Content.assemble(("Alt+U".ljust(KEY), "bold"), ("Already here: ", "bold"), pair)
        self._tell("#welcome-offer", [line] if pair else [])

    def _tell(self, where: str, lines: list[Content]) -> None:
        static = self.query_one(where, Static)
        static.display = bool(lines)
        static.update(Content("\n").join(lines))
