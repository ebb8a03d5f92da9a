"""Asks the child that loads llama.cpp, and survives what happens to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from edgespec.system.isolate import cause_of_death

LONGEST_S = 600.0  # loading a model from a slow disk may take minutes


def ask(asked: dict[str, Any], *, timeout: float = LONGEST_S) -> dict[str, Any]:
    """Returns what the child says; {"error": sentence} where it refuses, dies or takes too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edgespec.commands.doctor.llama_child"],
            input=json.dumps(asked), capture_output=True, text=True, timeout=timeout, errors="replace",
            env={**os.environ, "EDGESPEC_LOG": ""},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"nothing came of it in {timeout:.0f} seconds"}
    try:
        said: dict[str, Any] = json.loads(done.stdout)
        return said
    except ValueError:
        cause = cause_of_death(done.returncode, done.stderr)
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return {"broken" if not cause else "error": cause or last}
