"""Folders, and environment variables. Flags override the environment, which overrides defaults."""

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from edgespec.errors import SettingError


def cache_folder() -> Path:
    """Returns the folder for what can be made again (grown pairs); EDGESPEC_CACHE_DIR moves it."""
    return _folder("EDGESPEC_CACHE_DIR", platformdirs.user_cache_path)


def data_folder() -> Path:
    """Returns the folder for what cannot be made again (conversations); EDGESPEC_DATA_DIR moves it."""
    return _folder("EDGESPEC_DATA_DIR", platformdirs.user_data_path)


def settings_folder() -> Path:
    """Returns the folder for what a person may write by hand; EDGESPEC_CONFIG_DIR moves it."""
    return _folder("EDGESPEC_CONFIG_DIR", platformdirs.user_config_path)


def state_folder() -> Path:
    """Returns the folder for what is true only while something runs; EDGESPEC_STATE_DIR moves it."""
    return _folder("EDGESPEC_STATE_DIR", platformdirs.user_state_path)


def _folder(variable: str, usual: Callable[..., Path]) -> Path:
    if named := os.environ.get(variable):
        return Path(named)
    try:
        return usual("edgespec", appauthor=False)
    except RuntimeError:  # HOME is not set, and the system knows no such user: in containers, for example
        raise SettingError(f"there is no home folder: set HOME, or {variable}, to a folder") from None


def default_target() -> str | None:
    """Returns the target named by EDGESPEC_TARGET, if any."""
    return os.environ.get("EDGESPEC_TARGET") or None


def default_draft() -> str | None:
    """Returns the draft named by EDGESPEC_DRAFT, if any."""
    return os.environ.get("EDGESPEC_DRAFT") or None
