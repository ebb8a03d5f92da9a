"""The process of an engine worker, and what it knows of its surroundings."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping

PRIVATE = (
    "EDGESPEC_API_KEY",
    "EDGESPEC_NOISE_FILE",
    "EDGESPEC_PARENT_PIPE",
)  # none of the child's business


async def new_process() -> asyncio.subprocess.Process:
    """Starts a worker; none is left behind where this is cancelled meanwhile."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "edgespec.worker",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(os.environ),
            start_new_session=True,
        )  # fmt: skip
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.communicate()
        raise


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the child's environment: llama.cpp's log goes to the pipe, and no key with it."""
    kept = {name: value for name, value in environment.items() if name not in PRIVATE}
    return {**kept, "EDGESPEC_LOG": "1"}
