"""Where things are kept, and what the environment says. Flags beat the environment, which beats defaults."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Returns the folder for what can be made again (grown pairs); EDGESPEC_CACHE_DIR moves it."""
    return Path(
        os.environ.get("EDGESPEC_CACHE_DIR") or platformdirs.user_cache_path("edgespec", appauthor=False)
    )


def data_folder() -> Path:
    """Returns the folder for what cannot be made again (conversations); EDGESPEC_DATA_DIR moves it."""
    return Path(
        os.environ.get("EDGESPEC_DATA_DIR") or platformdirs.user_data_path("edgespec", appauthor=False)
    )


def settings_folder() -> Path:
    """Returns the folder for what a person may write by hand; EDGESPEC_CONFIG_DIR moves it."""
    return Path(
        os.environ.get("EDGESPEC_CONFIG_DIR") or platformdirs.user_config_path("edgespec", appauthor=False)
    )


def state_folder() -> Path:
    """Returns the folder for what is true only while something runs; EDGESPEC_STATE_DIR moves it."""
    return Path(
        os.environ.get("EDGESPEC_STATE_DIR") or platformdirs.user_state_path("edgespec", appauthor=False)
    )


def default_target() -> str | None:
    """Returns the target named by EDGESPEC_TARGET, if any."""
    return os.environ.get("EDGESPEC_TARGET") or None


def default_draft() -> str | None:
    """Returns the draft named by EDGESPEC_DRAFT, if any."""
    return os.environ.get("EDGESPEC_DRAFT") or None
