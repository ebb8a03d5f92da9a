"""Connections: how long they may be silent, and that there is always room for one more."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from commands import posix

from edgespec.commands.serve import http_server
from edgespec.commands.serve.http_server import Connection, connections, descriptors_wanted

pytestmark = posix
WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/slow":
        await asyncio.sleep(60)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(
    kind: type[Connection] = Connection,
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, Any]]]:
    """Yields a function that connects to a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, http=kind, lifespan="off", log_level="error"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    yield connect
    for writer in writers:
        writer.close()
    server.should_exit = server.force_exit = True
    await task


def test_half_a_head_does_not_keep_a_connection_that_has_been_used() -> None:
    """Only the first request of a connection had a time for its head."""

    class Impatient(Connection):
        head_s = 0.3

    async def play() -> None:
        async with serving(Impatient) as connect:
            reader, writer = await connect()
            for _ in range(3):
                writer.write(WHOLE)
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(0.2)
            await asyncio.sleep(0.4)
            writer.write(WHOLE)  # silence between requests is no half a head
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.write(WHOLE[:10])
            assert await asyncio.wait_for(reader.read(), 5) == b""

    asyncio.run(play())


def test_silent_connections_make_room_for_new_ones() -> None:
    """400 of them used up the file descriptors: 215,000 lines of log in 30 seconds, and /health was deaf."""

    class Few(Connection):
        most = 4

    async def play() -> None:
        async with serving(Few) as connect:
            slow, writer = await connect()
            writer.write(WHOLE.replace(b"/", b"/slow", 1))
            await asyncio.sleep(0.1)
            silent = [await connect() for _ in range(9)]
            reader, writer = await connect()
            writer.write(WHOLE)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            dropped = [one.at_eof() for one, _ in silent]
            assert dropped == [True] * 7 + [False] * 2  # those that had waited longest
            assert not slow.at_eof(), "it is being answered"

    asyncio.run(play())


def test_a_low_limit_of_file_descriptors_is_raised_as_far_as_it_may_be() -> None:
    assert descriptors_wanted(256, 1024) == 1024
    assert connections(1024) == 1024 - http_server.SPARE - http_server.AT_ONCE
    assert descriptors_wanted(64, 64) == 64 and connections(64) == http_server.AT_ONCE
    assert descriptors_wanted(256, None) == http_server.WANTED
    assert descriptors_wanted(10**6, 10**6) == 10**6, "it is not lowered"
    code = """
import resource
from edgespec.commands.serve.http_server import connections, room_for_connections
hard = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
assert room_for_connections() == connections(hard)
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
