"""What an empty chat shows: who answers, and what to know to begin."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from edgespec_tui.engine_state import EngineState

EMBEDDED = (
    "This is the tiny pair that ships with EdgeSpec: it knows a little about Python's library, nothing else. "
    "A real one: Ctrl+L, or `edgespec pull`."
)
KEYS = (
    ("Enter", "asks", "Ctrl+J", "new line"),
    ("Esc", "stops, keeps what came", "Ctrl+R", "answers again"),
    ("F4", "speculation off and on", "F5", "race: plain and speculative"),
    ("F3", "tint: who wrote which token", "F2", "panel"),
    ("Ctrl+O", "sessions", "Ctrl+L", "models"),
    ("Ctrl+P", "all commands", "F1", "help"),
)


class Welcome(VerticalScroll, can_focus=False):
    """The screen before the first question."""

    def compose(self) -> ComposeResult:
        yield Static("EdgeSpec", id="welcome-name")
        yield Static("", id="welcome-model")
        yield Static("", id="welcome-notice")
        yield Static(self._keys(), id="welcome-keys")

    def show(self, engine: EngineState) -> None:
        """Says what answers, as far as that is known."""
        info = engine.info
        if info is None:
            words = "The engine is being loaded; you can write already." if engine.state == "starting" else ""
        elif not info.speculates:
            words = f"{info.model} at {info.where}. It tells nothing of speculation."
        elif info.embedded:
            words = "The embedded pair answers."
        else:
            drafts = f", {info.draft} drafts." if info.draft else ", without a draft model."
            words = f"{info.model} answers{drafts}"
        self.query_one("#welcome-model", Static).update(Content(words))
        notice = self.query_one("#welcome-notice", Static)
        notice.display = bool(info and info.embedded)
        notice.update(Content(EMBEDDED))

    def _keys(self) -> Content:
        lines = []
        for key, does, key2, does2 in KEYS:
            lines.append(
                Content.assemble((key.ljust(8), "bold"), does.ljust(29), (key2.ljust(8), "bold"), does2)
            )
        return Content("\n").join(lines)
