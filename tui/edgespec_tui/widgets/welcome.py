"""What an empty chat shows: who answers, and what to know at the start."""

from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from edgespec_tui.endpoint.engine_state import LENT, KnownEngine
from edgespec_tui.endpoint.model_notes import PULL, note_of
from edgespec_tui.terminal.shown_text import Content

KEYS = (
    ("Enter", "send", "Ctrl+J", "new line"),
    ("/", "list commands", "@", "add a file"),
    ("Esc", "stop, keep the text", "Ctrl+R", "answer again"),
    ("F4", "speculation on/off", "F5", "race against plain"),
    ("F3", "tint: what made each token", "F2", "panel"),
    ("Ctrl+O", "chats", "Ctrl+L", "models"),
    ("Ctrl+P", "all actions and commands", "F1", "help"),
)
DEMO = ("F12", "see in a minute what this is for")
KEY, DOES, DOES_2 = 8, 29, 24  # widths of columns


class Welcome(VerticalScroll, can_focus=False):
    """The screen before the first question."""

    def compose(self) -> ComposeResult:
        yield Static("EdgeSpec", id="welcome-name")
        yield Static("", id="welcome-model")
        yield Static("", id="welcome-notice")
        yield Static("", id="welcome-offer")
        yield Static("", id="welcome-asks")
        yield Static("", id="welcome-keys")

    def on_resize(self, event: events.Resize) -> None:
        """Lists keys side by side if there is room, else one below the other."""
        rows: list[tuple[str, str, str, str]] = list(KEYS)
        if event.size.width < KEY + DOES + KEY + DOES_2 + 4:
            rows = [(*row[:2], "", "") for row in KEYS] + [(*row[2:], "", "") for row in KEYS]
        lines = [
            Content.assemble((key.ljust(KEY), "bold"), does.ljust(DOES), (key_2.ljust(KEY), "bold"), does_2)
            for key, does, key_2, does_2 in rows
        ]
        self.query_one("#welcome-keys", Static).update(Content("\n").join(line.rstrip() for line in lines))

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
        told = [f"{note.what} For {note.better} press Ctrl+L, or {PULL}."] if note else []
        self._tell("#welcome-notice", [Content(line) for line in (*told, *(info.told if info else ()))])
        tries = [*(("Try", ask) for ask in (note.asks if note else ())), DEMO]
        self._tell("#welcome-asks", [Content.assemble((key.ljust(KEY), "bold"), does) for key, does in tries])

    def offer(self, pair: str) -> None:
        """Offers a pair that is here, in words; "" offers none."""
        line = Content.assemble(("Alt+U".ljust(KEY), "bold"), ("Already here: ", "bold"), pair)
        self._tell("#welcome-offer", [line] if pair else [])

    def _tell(self, where: str, lines: list[Content]) -> None:
        static = self.query_one(where, Static)
        static.display = bool(lines)
        static.update(Content("\n").join(lines))
