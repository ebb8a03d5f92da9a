"""A machine of --rpc that speaks the beginning of llama.cpp's RPC: version, devices, their memory."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

HELLO, DEVICE_COUNT, DEVICE_MEMORY = 14, 15, 11


@dataclass(slots=True)
class FakeMachine:
    """What it says of itself. memory: (free, total) bytes of each device."""

    listener: socket.socket
    version: tuple[int, int, int] = (7, 0, 0)
    memory: tuple[tuple[int, int], ...] = ((3 << 30, 4 << 30),)
    busy: bool = False  # it serves somebody else: connections wait
    hangs_up: bool = False
    asked: list[int] = field(default_factory=list)  # commands
    address: str = ""

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        """Answers one client after the other until its listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                with client, suppress(OSError, struct.error):
                    while not self.hangs_up:
                        self._answer(client)

    def _answer(self, client: socket.socket) -> None:
        command, size = struct.unpack("<BQ", client.recv(9, socket.MSG_WAITALL))
        body = client.recv(size, socket.MSG_WAITALL) if size else b""
        self.asked.append(command)
        if command == HELLO:
            assert size == 24
            said = bytes((*self.version, 0)) + bytes(24)
        elif command == DEVICE_COUNT:
            said = struct.pack("<I", len(self.memory))
        else:
            assert command == DEVICE_MEMORY
            said = struct.pack("<QQ", *self.memory[struct.unpack("<I", body)[0]])
        client.sendall(struct.pack("<Q", len(said)) + said)


@contextmanager
def fake_machine(**how: object) -> Iterator[FakeMachine]:
    """Runs a machine as `how` describes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        machine = FakeMachine(listener, **how)  # type: ignore[arg-type]
        thread = threading.Thread(target=machine.serve, daemon=True)
        if not machine.busy:
            thread.start()
        yield machine
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
    if thread.ident:
        thread.join(5)


def free_address() -> str:
    """Returns an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"
