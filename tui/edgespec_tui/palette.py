"""The entries of the command palette: all that keys do, and all slash commands."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable

from textual.app import App, SystemCommand
from textual.screen import Screen

from edgespec_tui.widgets.slash_commands import COMMANDS, SlashCommand


def entries(
    app: App[int], screen: Screen[object], begin: Callable[[SlashCommand], Awaitable[None]] | None
) -> Iterable[SystemCommand]:
    """Yields what can be done on a screen.

    begin: runs a slash command, or puts it into the input; None if there is no input.
    """
    for node in (screen, app):
        for _, binding in node._bindings:
            if binding.id and binding.description:  # Textual's own have no id
                does = functools.partial(app.run_action, binding.action, node)
                told = f"{binding.tooltip or ''} ({app.get_key_display(binding)})".strip()
                yield SystemCommand(binding.description, told, does)
    if begin is not None:
        for command in COMMANDS:
            told = f"{command.name} {command.wants}".strip()
            yield SystemCommand(told, command.does, functools.partial(begin, command))
