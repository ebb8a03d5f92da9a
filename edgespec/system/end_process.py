"""Ending a process that leads a session of its own, and what it started: asks first."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

PATIENCE_S = 1.0  # between asking it to end and ending it


async def end_with_children(process: asyncio.subprocess.Process) -> None:
    """Ends a process and what it started; of one that has ended, what it left behind."""
    for sign in ("SIGTERM", "SIGKILL"):
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, getattr(signal, sign))
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
                return
