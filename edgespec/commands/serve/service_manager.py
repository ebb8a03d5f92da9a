"""What systemd hears of a server that it started: it is ready, still alive, or stopping (sd_notify(3))."""

import asyncio
import os
import socket
from contextlib import suppress

from edgespec.server.supervisor import Supervisor

HEARS_S = 10.0  # how long the engine may take to answer: it may be in the middle of a long evaluation
LOADING_S = 10.0  # between two words that it still loads
LONGEST_S = 3600.0  # between two signs of life


def tell(*words: str) -> None:
    """Sends words such as READY=1 to the service manager; does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or os.name != "posix":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way, suppress(OSError):
        way.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        way.send("\n".join(words).encode())


def between_signs() -> float | None:
    """Returns the seconds between two signs of life: half of what the manager waits; None if it does not."""
    wanted, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or process not in ("", str(os.getpid())) or not int(wanted):
        return None
    return min(int(wanted) / 2e6, LONGEST_S)


async def keep_told(worker: Supervisor) -> None:
    """Tells that the first model is loaded, and from then on that the engine is heard. Ends when cancelled.

    While a model loads, or none is loaded, nobody needs to hear the engine: that is the supervisor's care.
    """
    settled = asyncio.ensure_future(worker.settled.wait())
    while not (await asyncio.wait({settled}, timeout=LOADING_S))[0]:
        tell(f"EXTEND_TIMEOUT_USEC={round(4e6 * LOADING_S)}")  # large models take longer than it waits
    if worker.current.about is None:
        return
    tell("READY=1", f"MAINPID={os.getpid()}")
    pause = between_signs()
    while pause is not None:
        if worker.current.state != "ready" or await worker.hears(min(HEARS_S, pause)):
            tell("WATCHDOG=1")
        await asyncio.sleep(pause)
