"""Devices of other machines, by llama.cpp's RPC back end: found, watched, and this machine's own offered.

They are never registered, only given to a model, so that all else (the draft, the self-test) stays on this
machine. llama.cpp ends its process if a machine goes away; it is made to say which one.
"""

import ctypes
import os
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import edgespec.llama.model  # noqa: F401 - it catches llama.cpp's log, which would go to the terminal
from edgespec.errors import MachineLostError, ModelUnsupportedError, SettingError
from edgespec.llama.ggml import ABORT, libraries, local_devices
from edgespec.system.builds import REBUILD
from edgespec.system.machines import LOST, LOST_WORDS, absent, ask, device_names

LOOK_S = 0.3  # how long machines have to accept a connection when one of them was lost
QUIET_S, AGAIN_S, TIMES = 3, 1, 3  # probing a silent connection: after, every, how often
_OWN_FILES = "/dev/fd"  # this process's open files, on Linux and macOS
_RPC_FAULTS = ("RPC server", "RPC handshake", "Failed to connect to", "RPC transport")

_used: list[str] = []  # machines that this process has devices of
names: dict[str, str] = {}  # what llama.cpp's log calls these -> what we call them


def has_rpc() -> bool:
    """Returns whether this build of llama.cpp has the RPC back end."""
    return bool(_registry())


def _registry() -> int | None:
    found: int | None = libraries()[0].ggml_backend_reg_by_name(b"RPC")
    return found


def _function(name: bytes, kind: Any) -> Any:
    registry = _registry()
    if not registry:
        raise ModelUnsupportedError(
            "this build of llama.cpp cannot use other machines, or serve them: build it with RPC, as "
            f"{REBUILD} says"
        )
    return kind(libraries()[1].ggml_backend_reg_get_proc_address(registry, name))


def add(machine: str) -> list[int]:
    """Returns the devices of one machine, as pointers for a model. Ask the machine before.

    Raises ModelUnsupportedError if this build has no RPC, MachineLostError if there is no device.
    """
    server = _function(b"ggml_backend_rpc_add_server", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p))
    base = libraries()[1]
    base.ggml_set_abort_callback(_on_abort)
    found = server(machine.encode())
    if not found:
        raise MachineLostError(
            f"the machine of --rpc at {machine} has no device to offer: start `edgespec rpc` there"
        )
    count = base.ggml_backend_reg_dev_count(found)
    pointers = [base.ggml_backend_reg_dev_get(found, i) for i in range(count)]
    if machine not in _used:
        _used.append(machine)
        names.update(zip(map(_name, pointers), device_names(machine, count), strict=True))
    return pointers


def devices(machines: Sequence[str]) -> list[int]:
    """Returns the devices of all machines, once each has answered that it can serve us.

    Raises MachineLostError if one cannot, ModelUnsupportedError if this build has no RPC.
    """
    found = []
    for machine in machines:
        if has_rpc():
            ask(machine)
        found += add(machine)
    return found


def _name(device: int) -> str:
    name: bytes = libraries()[1].ggml_backend_dev_name(device)
    return name.decode("utf-8", "replace")


@ABORT  # type: ignore[untyped-decorator,unused-ignore]
def _on_abort(message: bytes) -> None:
    """Says which machine was lost, if that is why llama.cpp aborts; then ends the process."""
    text = message.decode("utf-8", "replace")
    os.write(2, text.encode() + b"\n")
    if any(fault in text for fault in _RPC_FAULTS):
        closed = [machine for machine in _used if machine not in _connected(_used)]
        missing = absent(closed or _used, LOOK_S)  # while a model is loaded, some have no connection yet
        _end([machine for machine in _used if machine in text] or missing or closed or _used)


def _end(gone: Sequence[str]) -> NoReturn:
    """Ends the process at once, with the machines that were lost as its last words."""
    os.write(2, f"edgespec: {LOST_WORDS}{', '.join(gone)}\n".encode())
    os._exit(LOST)


def watch(machines: Sequence[str]) -> None:
    """Has the system probe silent machines, so that one without power is noticed.

    Do it once a model is loaded. Does nothing where sockets are no files (Windows).
    """
    for connection, _ in _connections(machines):
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                ("TCP_KEEPIDLE", QUIET_S),
                ("TCP_KEEPALIVE", QUIET_S),  # its name on macOS
                ("TCP_KEEPINTVL", AGAIN_S),
                ("TCP_KEEPCNT", TIMES),
                (
                    "TCP_USER_TIMEOUT",
                    1000 * (QUIET_S + AGAIN_S * TIMES),
                ),  # for unacknowledged data
            ):
                if hasattr(socket, option):
                    with suppress(OSError):
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def end_if_lost(machines: Sequence[str]) -> None:
    """Ends the process if a machine has hung up while a model is loaded and nothing is evaluated.

    llama.cpp would notice at the next evaluation, which somebody waits for. Some 50 system calls.
    """
    if not machines or not os.path.isdir(_OWN_FILES):
        return
    there = _connected(machines)
    if gone := [machine for machine in machines if machine not in there]:
        _end(gone)


def _connected(machines: Sequence[str]) -> set[str]:
    """Returns the machines that this process has an open connection to."""
    found = set()
    for connection, machine in _connections(machines):
        with connection, suppress(ConnectionError):
            try:
                answer = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:  # nothing to read, so it is open
                found.add(machine)
            else:
                found.update([machine] if answer else [])
    return found


def _connections(machines: Sequence[str]) -> list[tuple[socket.socket, str]]:
    """Returns duplicates of this process's connections to machines; close them."""
    found = []
    for name in os.listdir(_OWN_FILES) if os.path.isdir(_OWN_FILES) else ():
        with suppress(OSError):  # closed by now, or by the other side
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            connection = socket.socket(fileno=os.dup(int(name)))
            machine = _peer(connection)
            if machine in machines:
                found.append((connection, machine))
            else:
                connection.close()
    return found


def _peer(connection: socket.socket) -> str:
    """Returns the other end as IPV4:PORT; "" if it is none."""
    try:
        return "{}:{}".format(*connection.getpeername()) if connection.family == socket.AF_INET else ""
    except OSError:
        return ""


def lending(
    host: str, port: int, *, threads: int, chosen: Sequence[str] = (), cache: Path | None = None
) -> Callable[[], None]:
    """Returns what lends this machine to others until the process ends: its cards, else its processor.

    chosen: llama.cpp's names of devices. cache: a folder for weights that were sent. The function returns
    only if nobody can listen there. Raises ModelUnsupportedError if this build has no RPC, SettingError
    for a device that does not exist here.
    """
    text, size, pointers = ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    start = _function(
        b"ggml_backend_rpc_start_server", ctypes.CFUNCTYPE(None, text, text, size, size, pointers)
    )
    offered = _offered(chosen)
    listed = (ctypes.c_void_p * len(offered))(*offered)
    kept = os.fsencode(cache) if cache else None
    return lambda: start(f"{host}:{port}".encode(), kept, threads, len(offered), listed)


def _offered(chosen: Sequence[str]) -> list[int]:
    known = {_name(device): device for device in local_devices()}
    for name in chosen:
        if name not in known:
            raise SettingError(f"--device {name} is not here: there are {', '.join(known)}")
    return [known[name] for name in chosen] or local_devices("gpu", "igpu") or local_devices("cpu")
