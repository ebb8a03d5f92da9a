"""`edgespec rpc`: lends this machine to another one, which puts layers of its model here with --rpc."""

import argparse
import ipaddress
import os
import socket
import sys

from edgespec.commands.flag_table import THREADS, add_flags
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.system.cores import threads_wanted
from edgespec.system.machines import PORT

DESCRIPTION = """Runs llama.cpp's RPC server, so that another machine can put layers of its target on this
one's graphics cards or processor, with --rpc THIS_MACHINE:PORT. No model file is needed here."""
EPILOG = """llama.cpp's RPC has no encryption and no authentication: anyone who reaches the port can use or
crash this program. Use it on your own network only, for one machine at a time. Ctrl+C stops it."""
FLAGS = {
    "--host ADDRESS 127.0.0.1": "this machine's address on your network (127.0.0.1)",
    f"--port N {PORT}": f"port to listen on ({PORT})",
    "--public": "allow an address that can be reached from outside private networks",
    "--device NAME,...": "devices to lend, by llama.cpp's names (default: graphics cards, else CPU)",
    "--cache": "keep received weights on disk, so that they are sent only once",
    **THREADS,
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    add_flags(command, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Serves until it is ended. Raises SettingError, EdgeSpecError if it cannot listen."""
    from edgespec.llama.remote import lending  # it loads llama.cpp
    from edgespec.pairs.settings import check_threads
    from edgespec.system.config import cache_folder

    check_threads(arguments.threads)
    _check_address(arguments.host, arguments.port, public=arguments.public)
    cache = cache_folder() / "rpc" if arguments.cache else None
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
    at = f"{arguments.host}:{arguments.port}"
    lend = lending(
        arguments.host,
        arguments.port,
        threads=arguments.threads or threads_wanted(),
        chosen=[name.strip() for name in arguments.device.split(",")] if arguments.device else (),
        cache=cache,
    )
    print(f"edgespec: lending this machine at {at}; on the other one: --rpc {at}", file=sys.stderr)
    lend()
    raise EdgeSpecError(f"llama.cpp's RPC server ended at {at}: see its messages above")


def _check_address(host: str, port: int, *, public: bool) -> None:
    """Raises SettingError for an address that others could reach, EdgeSpecError for one that is in use."""
    if not 1 <= port <= 65535:
        raise SettingError(f"--port is {port}: it must be from 1 to 65535")
    try:
        ip = ipaddress.IPv4Address(host)
    except ValueError:
        raise SettingError(
            f"--host {host} is not an IPv4 address, the only kind that llama.cpp's RPC "
            "listens on: 127.0.0.1 is this machine itself"
        ) from None
    if (ip.is_global or ip.is_unspecified or ip.is_multicast) and not public:
        whose = "all addresses of this machine" if ip.is_unspecified else "outside private networks"
        raise SettingError(
            f"--host {ip} is {whose}, and llama.cpp's RPC asks nobody who they are: name this machine's "
            "address in your own network, or say with --public that you mean it"
        )
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise EdgeSpecError(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
