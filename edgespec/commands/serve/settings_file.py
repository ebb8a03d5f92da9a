"""The settings file of `edgespec serve`: its flags, written once, for a server that starts by itself.

Each key is a flag without its dashes. The command line overrides it; a model named on the command line
replaces the file's. Paths are relative to the file.
"""

import argparse
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import SettingError
from edgespec.system import config
from edgespec.system.named_file import read_text

NAME = "serve.toml"
LONGEST = 2**20  # characters
OF_MODEL = ("pair", "target", "draft", "no-draft", "grow")
PATHS = ("target", "draft", "chat-template-file", "api-key-file", "slot-save-path")
NOT_HERE = ("config", "owned", "help")


def default_file() -> Path | None:
    """Returns the file that is read if none is named; None if there is none."""
    path = config.settings_folder() / NAME
    return path if path.is_file() else None


def flags_in(path: Path, command: argparse.ArgumentParser, *, model: bool) -> list[str]:
    """Returns the content as flags of `command`. model: with those of the model. Raises SettingError."""
    flags: list[str] = []
    pair = next((action for action in command._actions if action.dest == "pair"), None)
    actions = command._option_string_actions | ({"--pair": pair} if pair else {})
    for key, value in _read(path).items():
        name = key.replace("_", "-")
        action = actions.get(_flag(name))
        if action is None or name in NOT_HERE:
            names = {flag.lstrip("-") for flag in actions if flag.startswith("--") or flag == "-n"}
            known = ", ".join(sorted(names - set(NOT_HERE)))
            raise SettingError(f"{path}: there is no setting {key!r}; there are {known}")
        if model or name not in OF_MODEL:
            flags += _as_flags(path, key, name, value, action)
    return flags


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_text("--config", path, most=LONGEST))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingError(f"--config {path} is not TOML: {error or 'it is nested too deeply'}") from None


def _flag(name: str) -> str:
    return "-n" if name == "n" else f"--{name}"


def _as_flags(path: Path, key: str, name: str, value: object, action: argparse.Action) -> list[str]:
    def wrong(wanted: str) -> SettingError:
        return SettingError(f"{path}: {key} is {value!r}: it must be {wanted}")

    flag = _flag(name)
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise wrong("true or false")
        return [flag] if value else []
    several = isinstance(action, argparse._AppendAction)
    values = value if several and isinstance(value, list) else [value]
    flags: list[str] = []
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise wrong("a list of texts" if several else "a text or a number")
        text = (
            str(path.parent / os.path.expanduser(one)) if name in PATHS and isinstance(one, str) else str(one)
        )
        if action.choices is not None and text not in action.choices:
            raise wrong(f"one of {', '.join(map(str, action.choices))}")
        if callable(action.type):
            try:
                action.type(text)
            except (TypeError, ValueError):
                raise wrong("a whole number" if action.type is int else "a number") from None
        flags += [text] if name == "pair" else [f"{flag}={text}"] if flag != "-n" else [flag, text]
    return flags
