"""Keeps one program alive as long as its starter, and no longer: `python keeper.py PROGRAM ARGUMENT...`

The starter holds the other end of standard input. When that closes, however the starter ended (kill -9
included), the program is ended too. Imports nothing of EdgeSpec: it runs as a file, in its own process.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

GRACE_S = 2.0
NOT_STARTED = 127


def keep(command: Sequence[str]) -> int:
    """Runs `command` until it ends or standard input closes; returns its exit code."""
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror or error}", file=sys.stderr)
        return NOT_STARTED
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code  # as shells report a death by signal


def _end_with_starter(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):  # returns nothing when the starter's end is closed
        pass
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    code = keep(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # at an orderly exit Python would wait for the thread that reads
