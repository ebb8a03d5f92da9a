"""Tells whether .venv serves this tree as it is now. Every make target asks: it imports next to nothing.

The record `.venv/ready` is what set_up.py writes last. Run by the Python of .venv, exit status 0 means ready,
10 that an update in place will do (pyproject.toml has changed, or other CMAKE_ARGS are asked for), and 11
that .venv is useless: half made, of another Python, or of a folder that has moved.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping

READY, OUTDATED, USELESS = 0, 10, 11


def wanted(root: str, env: Mapping[str, str]) -> dict[str, str]:
    """Describe the .venv that this tree needs, and what the user asks for."""
    with open(os.path.join(root, "pyproject.toml"), encoding="utf-8") as file:
        needs = {
            "root": root,
            "version": f"{sys.version_info.major}.{sys.version_info.minor}",
            "pyproject": file.read(),
        }
    return needs | {name: env[name] for name in ("PYTHON", "CMAKE_ARGS") if env.get(name)}


def recorded(root: str) -> dict[str, str]:
    """Read what .venv was made for: nothing if it was not finished."""
    try:
        with open(os.path.join(root, ".venv", "ready"), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def state(record: Mapping[str, str], want: Mapping[str, str]) -> int:
    """Compare the two. No CMAKE_ARGS now means: those of the last time."""
    differs = {key for key in want if record.get(key) != want[key]}
    if not record or differs & {"root", "version", "PYTHON"}:
        return USELESS
    return OUTDATED if differs else READY


if __name__ == "__main__":
    here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    sys.exit(state(recorded(here), wanted(here, os.environ)))
