"""The settings of a running server, and its settings file read again (SIGHUP): what can change, changes."""

import argparse
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy

from edgespec.commands.serve.flags import LIVE, server_settings
from edgespec.errors import SettingError
from edgespec.server.settings import ServerSettings


class SettingsInForce:
    """The flags that are in force, of the command line and the file."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.path: str = arguments.config
        self._again: Callable[[], argparse.Namespace] = arguments.read_again
        self._first = self._now = copy(arguments)
        self.keys: tuple[str, ...] = ()

    def can_be_asked(self) -> bool:
        """Returns whether SIGHUP asks for that: at a terminal it says that the terminal is gone."""
        if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
            return False
        with suppress(OSError):
            os.close(os.open("/dev/tty", os.O_RDONLY))
            return False
        return True

    def read_again(self) -> tuple[ServerSettings, str]:
        """Returns the settings that the file asks for now, as far as they can change, and what has changed.

        Raises SettingError.
        """
        try:
            new, kept = self._again(), copy(self._first)
        except SystemExit:  # argparse has printed why
            raise SettingError(f"{self.path} cannot be used") from None
        kept.slots = kept.slots or 1  # that was decided at the start
        for name in LIVE:
            setattr(kept, name, getattr(new, name))
        settings = server_settings(kept)
        changed = {name for name in LIVE if getattr(new, name) != getattr(self._now, name)}
        if self.keys != settings.keys and "api_key_file" not in changed:
            changed.add("keys")
        others = vars(new).keys() - LIVE - {"read_again", "config"}
        waiting = {name for name in others if getattr(new, name) != getattr(self._first, name)}
        self._now, self.keys = new, settings.keys
        done = f"read {self.path} again: {_named(changed) or 'nothing'} changed"
        return settings, f"{done}; after a restart: {_named(waiting)}" if waiting else done


def _named(settings: Iterable[str]) -> str:
    return ", ".join(name.replace("_", "-") for name in sorted(settings))
