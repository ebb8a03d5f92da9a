"""Keys and commands, as they are now: remapped keys show their new place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from edgespec_tui.widgets.slash_commands import COMMANDS

GROUPS = {
    "chat": "In a chat",
    "app": "Anywhere",
    "input": "While writing",
    "turn": "On a turn",
    "code": "On code",
}
ALSO = (
    ("up down", "in the input: earlier questions; in the list above it: move"),
    ("@FILE", "in a question: add a text file; its path is completed"),
    ("f2 del ^z", "in the list of chats: rename, delete, undo"),
)
ON_TURNS = (
    ("tab", "move between input, turns and code; Shift+Tab: backwards; or click"),
    ("c e r g b", "on a turn: copy, edit, answer again, continue, branch"),
    ("[ ]", "on a turn with several versions: previous, next"),
)


class HelpScreen(ModalScreen[None]):
    """Shows all keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,f1", "app.pop_screen", "Back", id="help.leave"),
    ]

    def __init__(self, bindings: Sequence[ActiveBinding]) -> None:
        super().__init__()
        self._bindings_shown = bindings

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            with VerticalScroll():
                yield Static(self._keys())
            yield Footer(show_command_palette=False)

    def _keys(self) -> Content:
        lines: list[Content] = []
        for group, title in GROUPS.items():
            rows = self._rows(group)
            if rows:
                lines += [Content.styled(title, "bold"), *rows, Content("")]
        lines += [Content.styled("Turns", "bold"), *(_row(key, does) for key, does in ON_TURNS), Content("")]
        lines += [Content.styled("Also", "bold"), *(_row(key, does) for key, does in ALSO), Content("")]
        lines.append(Content.styled("Commands", "bold"))
        lines += [_row(f"{c.name} {c.wants}".strip(), c.does, width=24) for c in COMMANDS]
        return Content("\n").join(lines)

    def _rows(self, group: str) -> list[Content]:
        keys: dict[str, list[str]] = {}
        said: dict[str, str] = {}
        for active in sorted(self._bindings_shown, key=lambda active: "scroll" in active.binding.action):
            binding = active.binding
            if (binding.id or "").partition(".")[0] == group and binding.description:
                keys.setdefault(binding.description, []).append(self.app.get_key_display(binding))
                said[binding.description] = active.tooltip or binding.description
        return [_row(" ".join(dict.fromkeys(keys[name])), said[name]) for name in keys]


def _row(key: str, does: str, width: int = 14) -> Content:
    return Content.assemble("  ", (key.ljust(width), "$primary"), " ", does)
