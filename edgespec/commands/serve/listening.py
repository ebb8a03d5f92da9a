"""The sockets on which the server listens, and who may reach them."""

import errno
import ipaddress
import os
import socket
from contextlib import ExitStack

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.server.logs import say
from edgespec.server.settings import ServerSettings

OLLAMA = 11434  # Ollama's port


def addresses(host: str) -> list[str]:
    """Returns the addresses to listen on; raises SettingError for none."""
    found = [address.strip() for address in host.split(",")]
    if not all(found):
        raise SettingError(f"--host {host!r} has an empty address: give one, or several with commas between")
    return found


def listening(hosts: str, port: int, opened: ExitStack) -> list[socket.socket]:
    """Returns a socket for each address; port 0 is one free port for all. Raises SettingError."""
    listeners: list[socket.socket] = []
    for host in addresses(hosts):
        listeners.append(opened.enter_context(_listener(host, port)))
        port = listeners[0].getsockname()[1]
    return listeners


def _listener(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises SettingError if the address is unavailable."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise SettingError(f"--host {host} is not an address of this machine: try 127.0.0.1") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere it would let two programs share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there: stop it, or choose another --port (0: any free one)"
        elif error.errno in (errno.EACCES, errno.EPERM):
            reason = "this port needs administrator rights: choose one above 1023 with --port"
        else:
            reason = f"{error.strerror}: 127.0.0.1 is local only, 0.0.0.0 all addresses"
        raise EdgeSpecError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


def in_ollamas_place(opened: ExitStack) -> list[socket.socket]:
    """Returns a socket where programs look for Ollama; none, and says so, if that place is taken."""
    try:
        return [opened.enter_context(_listener("127.0.0.1", OLLAMA))]
    except EdgeSpecError:
        say(f"127.0.0.1:{OLLAMA} is taken, probably by Ollama: stop that, and start again, to answer there")
        return []


def refuse_strangers(listener: socket.socket, settings: ServerSettings) -> None:
    """Raises SettingError if others could reach an endpoint that requires no key."""
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback and not settings.keys:
        raise SettingError(
            f"{address} can be reached from other machines, and there is no API key: give one with "
            "--api-key-file or EDGESPEC_API_KEY, or listen on 127.0.0.1"
        )
