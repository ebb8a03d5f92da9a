"""llama.cpp's log: it prints to the terminal, so the last lines are kept here instead, for error messages."""

import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else an abort spawns a debugger and hangs

import llama_cpp as C

from edgespec.errors import DeviceFullError
from edgespec.system.isolate import NO_MEMORY

complaints: deque[str] = deque(maxlen=40)  # the last warnings and errors, newest at the end
_listeners: list[list[str]] = []
WARNING, CONTINUES = 3, 5  # levels of messages
_level = 0  # of the last message that continued none


@C.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
def keep_log(level: int, text: bytes, _user_data: object) -> None:
    """Takes a message of llama.cpp's."""
    global _level
    line = text.decode("utf-8", "replace").rstrip("\n")
    _level = _level if level == CONTINUES else level
    for log in (complaints, *_listeners) if _level >= WARNING else _listeners:
        if level == CONTINUES and log:
            log[-1] += line
        elif line.strip(" ."):
            log.append(line)
    if os.environ.get("EDGESPEC_LOG"):
        sys.stderr.write(text.decode("utf-8", "replace"))


def take_log(mtmd: Any = None) -> None:
    """Redirects llama.cpp's log here, and that of `mtmd_cpp`, also if something else has taken it."""
    C.llama_log_set(keep_log, ctypes.c_void_p(0))
    if mtmd:
        mtmd.mtmd_helper_log_set(keep_log, ctypes.c_void_p(0))


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collects what llama.cpp logs inside the `with` in a list."""
    lines: list[str] = []
    _listeners.append(lines)
    try:
        yield lines
    finally:
        _listeners[:] = [log for log in _listeners if log is not lines]


def refuse_full_device(lines: Iterable[str], name: str) -> None:
    """Raises DeviceFullError if llama.cpp reported that memory was refused. lines: its lines."""
    if line := next((line.strip() for line in lines if NO_MEMORY.search(line)), ""):
        raise DeviceFullError(
            f"a device has too little memory for {name} ({line}): put fewer layers on the graphics card with "
            "--gpu-layers, or ask for a shorter --ctx"
        )


def last_complaint() -> str:
    """Returns llama.cpp's last words about a failure, for an error message.

    `complaints` is cleared before whatever may fail: older words are about something else.
    """
    wrong = [line for line in complaints if "error" in line.lower() or "fail" in line.lower()]
    return (wrong[0] if wrong else complaints[-1] if complaints else "it gave no reason").strip()


take_log()
C.llama_backend_init()
