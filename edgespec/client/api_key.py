"""The key for a server that somebody named."""

import argparse
import getpass
import os
import sys

from edgespec.errors import SettingError
from edgespec.system.named_file import read_text

LONGEST_KEY = 2**12  # characters
FLAGS = {
    "--api-key KEY": "its key (or EDGESPEC_API_KEY); - prompts for it in the terminal",
    "--api-key-file FILE": "a file with its key",
}


def api_key(arguments: argparse.Namespace) -> str | None:
    """Returns the key of a named server: asked for (`--api-key -`), from the command line, a file or the
    environment. Raises SettingError."""
    if arguments.api_key == "-":
        if not sys.stdin.isatty():
            raise SettingError("--api-key - prompts in the terminal, but there is none: use EDGESPEC_API_KEY")
        return getpass.getpass("API key: ") or None
    if arguments.api_key_file:
        lines = read_text("--api-key-file", arguments.api_key_file, most=LONGEST_KEY).split()
        if len(lines) != 1:
            raise SettingError(
                f"--api-key-file {arguments.api_key_file} must hold one key and nothing else: remove the rest"
            )
        return lines[0]
    return arguments.api_key or os.environ.get("EDGESPEC_API_KEY") or None
