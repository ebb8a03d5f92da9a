"""What the command palette lists: all that keys do, and all that may be typed after a slash."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.screen import Screen

from edgespec_tui.slash_commands import COMMANDS

if TYPE_CHECKING:
    from edgespec_tui.app import ChatApp


def entries(app: ChatApp, screen: Screen[object]) -> Iterable[SystemCommand]:
    """Yields what can be done on a screen."""
    for node in (screen, app):
        for _, binding in node._bindings:
            if binding.id and binding.description:  # Textual's own have no id
                does = functools.partial(app.run_action, binding.action, node)
                told = f"{binding.tooltip or ''} ({app.get_key_display(binding)})".strip()
                yield SystemCommand(binding.description, told, does)
    if screen is app.chat:
        for command in COMMANDS:
            begin = functools.partial(app.chat.begin_command, command)
            yield SystemCommand(f"{command.name} {command.wants}".strip(), command.does, begin)
