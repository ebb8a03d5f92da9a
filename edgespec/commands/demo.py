"""`edgespec demo`: what speculation is for, in a minute, without a network."""

import argparse

from edgespec.commands.flag_table import add_flags
from edgespec.errors import SettingError

DESCRIPTION = """Shows in a minute, without a network, what speculation is for: the embedded pair, as slow as
a real model, answers questions plain and with speculation, in two columns that write in turn. At the end it
gives the measured speed-up and how sure that is."""
LEAST, MOST = 1.0, 600.0  # seconds that each column writes
FLAGS = {
    "--plain": "plain lines instead of a screen; the default without a terminal",
    "--seconds S 20": "how long each column writes (20)",
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    add_flags(command, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Shows the demo; returns the exit code."""
    if not LEAST <= arguments.seconds <= MOST:
        raise SettingError(f"--seconds is {arguments.seconds:g}: it must be from {LEAST:g} to {MOST:g}")
    from edgespec_tui.demo_app import show  # Textual takes 0.25 s: wrong flags are reported before

    return show(arguments)
