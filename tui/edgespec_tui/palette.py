"""The entries of the command palette: all that keys do, and all slash commands."""

import functools
from collections.abc import Awaitable, Callable, Container, Iterable

from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.command import DiscoveryHit, Hits
from textual.screen import Screen
from textual.system_commands import SystemCommandsProvider

from edgespec_tui.settings.slash_commands import COMMANDS, SlashCommand


class Entries(SystemCommandsProvider):
    """The entries in their own order, what is used most first: Textual's begin with the letter A."""

    async def discover(self) -> Hits:
        """Yields all entries, before anything is searched."""
        for title, text, does, shown in self.app.get_system_commands(self.screen):
            if shown:
                yield DiscoveryHit(title, does, help=text)


def entries(
    app: App[int],
    screen: Screen[object],
    begin: Callable[[SlashCommand], Awaitable[None]] | None,
    *,
    without: Container[str] = (),
) -> Iterable[SystemCommand]:
    """Yields what can be done on a screen.

    begin: runs a slash command, or puts it into the input; None if there is no input. without: actions.
    """
    for node in (app, screen):
        keys: dict[str, list[Binding]] = {}  # what several keys do is one entry
        for _, binding in sorted(node._bindings, key=lambda one: one[1].priority):  # Quit, Stop: last
            if binding.id and binding.description:  # Textual's own have no id
                keys.setdefault(binding.id, []).append(binding)
        for one, *others in keys.values():
            if one.action in without:
                continue
            does = functools.partial(app.run_action, one.action, node)
            shown = ", ".join(map(app.get_key_display, (one, *others)))
            yield SystemCommand(one.description, f"{one.tooltip or ''} ({shown})".strip(), does)
    if begin is not None:
        for command in COMMANDS:
            text = f"{command.name} {command.wants}".strip()
            yield SystemCommand(text, command.does, functools.partial(begin, command))
