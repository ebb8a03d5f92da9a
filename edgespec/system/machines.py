"""Other machines that run llama.cpp's RPC server: their addresses, and whether one answers there.

llama.cpp aborts if a machine does not answer, speaks another version or goes away, so each is
asked here first, in the few bytes of its protocol that this takes (ggml-rpc.cpp, protocol 7).
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgespec.errors import MachineLostError, SettingError

if TYPE_CHECKING:
    from edgespec_models.fit.need import Device

PORT = 50052  # llama.cpp's
MOST_MACHINES = 16  # GGML_RPC_MAX_SERVERS
MAJOR, MINOR = 7, 0  # of the protocol (ggml-rpc.h); a server of an older minor version serves
CONNECT_S = 3.0
ANSWER_S = 5.0  # how long a server may take; one that serves somebody else never answers
LOST = 76  # exit code of a process that lost a machine (EX_PROTOCOL)
LOST_WORDS = "lost the machine of --rpc at "
_HELLO, _DEVICE_COUNT, _DEVICE_MEMORY = 14, 15, 11  # commands
_ABILITIES = bytes(24)  # other transports than TCP: none


def addresses(text: str, *, public: bool = False) -> tuple[str, ...]:
    """Returns the machines that `HOST:PORT,...` names, each as IPV4:PORT.

    public: also those that the internet could reach. Raises SettingError for what is no such list.
    """
    named = [part.strip() for part in text.split(",")]
    if len(named) > MOST_MACHINES:
        raise SettingError(f"--rpc names {len(named)} machines: llama.cpp takes {MOST_MACHINES} at most")
    found = tuple(_address(part, public) for part in named)
    for address in found:
        if found.count(address) > 1:
            raise SettingError(f"--rpc names {address} twice: give each machine once")
    return found


def _address(part: str, public: bool) -> str:
    host, colon, number = part.rpartition(":")
    if not colon:
        host, number = part, str(PORT)
    if not host or not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
        raise SettingError(f"--rpc {part!r} is not an address: write HOST:PORT, as in 192.168.1.20:{PORT}")
    try:
        found = socket.getaddrinfo(host, int(number), socket.AF_INET, socket.SOCK_STREAM)
        ip = ipaddress.ip_address(str(found[0][4][0]))
    except (OSError, UnicodeError, ValueError):
        raise SettingError(
            f"--rpc {part}: {host} is not the address or name of a machine with IPv4, which llama.cpp's "
            "RPC needs"
        ) from None
    if (ip.is_global or ip.is_multicast) and not public:
        raise SettingError(
            f"--rpc {part}: {ip} is outside loopback and private networks, and llama.cpp's RPC neither "
            "encrypts nor asks who is there, so anybody on the way could read and change what is computed: "
            "use a tunnel (ssh -L), or say with --rpc-public that you mean it"
        )
    return f"{ip}:{number}"


def remote_devices(machines: Iterable[str]) -> list[Device]:
    """Returns the devices of all machines, in their order; none may be in use, each has one client at a time.

    Raises MachineLostError if one cannot serve.
    """
    return [device for machine in machines for device in ask(machine)]


def ask(machine: str, *, answer_s: float = ANSWER_S) -> list[Device]:
    """Returns the devices of one machine. Raises MachineLostError if it cannot serve us now."""
    host, _, port = machine.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_S) as connection:
            connection.settimeout(answer_s)
            return _devices(machine, connection)
    except ConnectionRefusedError:
        why = "nothing listens there: start `edgespec rpc`, or llama.cpp's rpc-server, on that machine"
    except TimeoutError:
        why = (
            "it does not answer: it is switched off, behind a firewall, or serves another program (a server "
            "has one client at a time)"
        )
    except ConnectionError:
        why = "it closed the connection: check that an RPC server of llama.cpp listens there"
    except OSError as error:
        why = f"{error.strerror}: check that it can be reached from here"
    raise MachineLostError(f"the machine of --rpc at {machine} cannot be used: {why}")


def _devices(machine: str, connection: socket.socket) -> list[Device]:
    from edgespec_models.fit.need import Device  # late: every command imports this module

    major, minor = struct.unpack_from("<BB", _answer(connection, _HELLO, _ABILITIES, 4 + len(_ABILITIES)))
    if major != MAJOR or minor > MINOR:
        raise MachineLostError(
            f"the machine of --rpc at {machine} speaks version {major}.{minor} of llama.cpp's RPC, and this "
            f"one {MAJOR}.{MINOR}: run the same version of EdgeSpec, or of llama.cpp, on both"
        )
    (count,) = struct.unpack("<I", _answer(connection, _DEVICE_COUNT, b"", 4))
    if not 0 < count <= 64:
        raise MachineLostError(f"the machine of --rpc at {machine} has {count} devices to offer")
    found = []
    for i, name in enumerate(device_names(machine, count)):
        free, total = struct.unpack("<QQ", _answer(connection, _DEVICE_MEMORY, struct.pack("<I", i), 16))
        found.append(Device(name, free, total, "on another machine"))
    return found


def device_names(machine: str, count: int) -> list[str]:
    """Returns the names of a machine's devices: its address, with their numbers where it has several."""
    return [machine] if count == 1 else [f"{machine}/{i}" for i in range(count)]


def _answer(connection: socket.socket, command: int, body: bytes, size: int) -> bytes:
    """Returns a server's answer to one command. Raises ConnectionResetError if it hangs up."""
    connection.sendall(struct.pack("<BQ", command, len(body)) + body)
    (announced,) = struct.unpack("<Q", _exactly(connection, 8))
    if announced != size:
        raise ConnectionResetError
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def absent(machines: Iterable[str], seconds: float) -> list[str]:
    """Returns the machines where nobody accepts a connection within `seconds`; tries all at once."""
    missing, trying, end = list(machines), {}, time.monotonic() + seconds
    try:
        for machine in missing:
            host, _, port = machine.rpartition(":")
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            trying[connection] = machine
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        waiting = list(trying)
        while waiting and (left := end - time.monotonic()) > 0:
            for connection in select.select([], waiting, [], left)[1]:
                waiting.remove(connection)
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    missing.remove(trying[connection])
    finally:
        for connection in trying:
            connection.close()
    return missing


def lost_sentence(lines: str) -> str | None:
    """Returns what a process reported about a lost machine; None if it reported none."""
    found = [line for line in lines.splitlines() if LOST_WORDS in line]
    return found[-1].removeprefix("edgespec: ").strip() if found else None
