"""The way to a server, with bounds: its process or its address, and messages of a limited size.

The library's own transports hold a message of any length in memory, and join its pieces anew with each; what
a server writes is a stranger's.
"""

import asyncio
import codecs
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream, create_memory_object_stream
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from edgespec.system.end_process import end_with_children
from edgespec_tui.tools.server_list import ToolServer

LARGEST_MESSAGE = 8 * 2**20  # bytes
LARGEST_LOG = 2**18
READ = 2**14
PAUSE_S = 0.001  # after each message: a server that floods slows nothing but itself
GONE = (BrokenResourceError, ClosedResourceError, EndOfStream)
Incoming = SessionMessage | Exception
Streams = tuple[ObjectReceiveStream[Incoming], ObjectSendStream[SessionMessage]]


class Log:
    """A file with the last of what a server wrote that is no message; older text goes."""

    def __init__(self, path: Path, most: int = LARGEST_LOG) -> None:
        """most: bytes."""
        self.path, self._most = path, most
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")

    def add(self, data: bytes) -> None:
        if self._file.tell() + len(data) > self._most:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(b"[older lines are left out]\n")
        self._file.write(data[-self._most :])
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@asynccontextmanager
async def process_streams(
    server: ToolServer, log: Path, ended: asyncio.Event, end_s: float
) -> AsyncIterator[Streams]:
    """Starts a server; yields the streams of its messages, and ends it. Raises OSError.

    ended: is set when no more messages can come. end_s: how long it has to end once its input has.
    """
    process = await asyncio.create_subprocess_exec(
        shutil.which(server.command) or server.command,
        *server.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | dict(server.env),
        cwd=os.path.expanduser(server.cwd) or None,
        limit=LARGEST_MESSAGE,
        start_new_session=sys.platform != "win32",
    )
    file = Log(log)
    put, received = create_memory_object_stream[Incoming](0)
    to_send, taken = create_memory_object_stream[SessionMessage](0)
    work = [
        asyncio.create_task(_read(process, put, file, ended)),
        asyncio.create_task(_write(process, taken, put)),
        asyncio.create_task(_log(process, file)),
    ]
    try:
        yield received, to_send
    finally:
        assert process.stdin
        process.stdin.close()  # which asks it to end
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(end_s):
                await process.wait()
        await end_with_children(process)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        for stream in (received, to_send, put, taken):
            await stream.aclose()
        process._transport.close()  # type: ignore[attr-defined]  # else a pipe that nobody read stays open
        file.close()


async def _read(
    process: asyncio.subprocess.Process, put: ObjectSendStream[Incoming], log: Log, ended: asyncio.Event
) -> None:
    """Passes on messages, until the server ends, writes one that is too long, or nobody listens."""
    assert process.stdout
    async with put:
        with contextlib.suppress(*GONE):
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    log.add(f"[ended: a message of more than {LARGEST_MESSAGE:,} bytes]\n".encode())
                    break
                if not line:
                    break
                if (message := _message(line)) is None:
                    log.add(line)
                else:
                    await put.send(message)
                await asyncio.sleep(PAUSE_S)
    ended.set()


def _message(line: bytes) -> SessionMessage | None:
    """Returns the message of a line; None for what is none, which some servers print at their start."""
    text = line.decode("utf-8", "replace")
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        return None


async def _write(
    process: asyncio.subprocess.Process,
    taken: ObjectReceiveStream[SessionMessage],
    put: ObjectSendStream[Incoming],
) -> None:
    assert process.stdin
    try:
        async with taken:
            async for message in taken:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                await process.stdin.drain()
    except OSError:  # it has ended, or closed its input: nobody would answer
        await put.aclose()


async def _log(process: asyncio.subprocess.Process, log: Log) -> None:
    assert process.stderr
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := await process.stderr.read(READ):
        log.add(decoder.decode(data).encode())
        await asyncio.sleep(PAUSE_S)


class _Limited(httpx2.AsyncByteStream):
    """A body that ends with an error once it is too long."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = LARGEST_MESSAGE
        async for piece in self._body:
            room -= len(piece)
            if room < 0:
                raise httpx2.ReadError(f"an answer of more than {LARGEST_MESSAGE:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


async def _limit(response: httpx2.Response) -> None:
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        response.stream = _Limited(response.stream)  # events are limited one by one, by the library


def http_client(server: ToolServer) -> httpx2.AsyncClient:
    """Returns what asks a server at its address."""
    client = create_mcp_http_client(headers=dict(server.headers))
    client.event_hooks["response"].append(_limit)
    return client
