"""Keys and commands, as they are now: remapped keys show their new place."""

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from edgespec_tui.settings.slash_commands import COMMANDS
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.key_line import KeyLine
from edgespec_tui.widgets.turn_view import SHOWN_KEYS

GROUPS = {
    "input": "While writing",
    "chat": "In a chat",
    "app": "Anywhere",
    "turn": "On a turn",
    "code": "On code",
}
WHILE_WRITING = (
    ("@FILE", "in a question: add a text file or picture; its path is completed"),
    ("/", "at its beginning: commands, below"),
    ("up down", "earlier questions; in the list above the input: move"),
)
ALSO = (("f2 del ^z", "in the list of chats: rename, delete, undo"),)
ON_TURNS = (
    ("tab", "move between input, turns and code; Shift+Tab: backwards; or click"),
    (
        " ".join(key for key, _ in SHOWN_KEYS.values()),
        f"on a turn: {', '.join(word for _, word in SHOWN_KEYS.values())}",
    ),
    ("[ ]", "on a turn with several versions: previous, next"),
)
LEAST = 24  # columns next to a key: else what it does is below it


class HelpScreen(ModalScreen[None]):
    """Shows all keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,f1", "dismiss", "Back", id="help.leave"),
    ]

    def __init__(self, bindings: Sequence[ActiveBinding]) -> None:
        super().__init__()
        self._bindings_shown = bindings

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            with VerticalScroll():
                yield Static("", id="help-keys")
            yield KeyLine(show_command_palette=False)

    def on_resize(self) -> None:
        """Wraps what keys do next to them."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        room = self.query_one(VerticalScroll).scrollable_content_region.width - 1
        self.query_one("#help-keys", Static).update(Content("\n").join(self._lines(max(room, 1))))

    def _lines(self, room: int) -> list[Content]:
        """Returns the lines of a page so wide."""
        lines: list[Content] = []
        for group, title in GROUPS.items():
            if rows := [*self._rows(group), *(WHILE_WRITING if group == "input" else ())]:
                lines += _part(title, rows, room)
        lines += _part("Turns", ON_TURNS, room) + _part("Also", ALSO, room)
        commands = [(f"{c.name} {c.wants}".strip(), c.does) for c in COMMANDS]
        return lines + _part("Commands", commands, room, width=24)

    def _rows(self, group: str) -> list[tuple[str, str]]:
        rows: dict[str, tuple[list[str], str]] = {}
        for active in sorted(self._bindings_shown, key=_rank):
            binding = active.binding
            if (binding.id or "").partition(".")[0] == group and binding.description:
                new = list[str](), active.tooltip or binding.description
                rows.setdefault(binding.description, new)[0].append(self.app.get_key_display(binding))
        return [(" ".join(dict.fromkeys(keys)), does) for keys, does in rows.values()]


def _rank(active: ActiveBinding) -> tuple[bool, bool, bool]:
    """Returns the order of rows: keys of the footer, then those of the order in which they were made."""
    binding = active.binding
    return "scroll" in binding.action, not binding.show, binding.priority


def _part(title: str, rows: Sequence[tuple[str, str]], room: int, width: int = 14) -> list[Content]:
    """Returns a title, and rows of a key and what it does; below it, if there is no room next to it."""
    lines = [Content.styled(title, "bold")]
    wide = room >= width + LEAST
    indent = " " * (width + 3 if wide else 4)
    for key, does in rows:
        wrapped = [indent + line for line in textwrap.wrap(does, max(room - len(indent), 1))] or [""]
        if wide:
            lines.append(Content.assemble("  ", (key.ljust(width), "$primary"), wrapped.pop(0)[width + 2 :]))
        else:
            lines.append(Content.assemble("  ", (key, "$primary")))
        lines += [Content(line) for line in wrapped]
    return [*lines, Content("")]
