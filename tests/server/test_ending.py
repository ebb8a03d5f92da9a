"""The end of a server: answers may finish, everybody is told, and nobody makes it wait."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import uvicorn
from commands import EDGESPEC, posix
from served import Served, post, served, until

from edgespec.commands.serve.http_server import STOPPING, Connection, StoppableServer

pytestmark = posix
STREAM = {"prompt": "a", "stream": True, "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDS_S = 25.0  # what hung took 35 seconds or more; a busy machine gets some time


def streaming(server: Served) -> socket.socket:
    connection = server.raw(post("/v1/completions", STREAM))
    assert b"200 OK" in connection.recv(100)
    return connection


def everything(connection: socket.socket) -> bytes:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def gone(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


def family(server: Served) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


@pytest.mark.slow
def test_half_a_request_delays_no_end(tmp_path: Path) -> None:
    """The server waited 35 seconds for the rest, and as long for an answer that nobody reads."""
    with served(tmp_path) as server:
        children = family(server)
        halves = [
            server.raw(post("/v1/chat/completions", {}, length=1000)),
            server.raw(CHUNKED + b'5\r\n{"pro'),
            server.raw(CHUNKED[:30]),
            server.raw(b""),
        ]
        unread = server.raw(post("/v1/completions", {**STREAM, "edgespec": {"events": True}}))
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        until(
            lambda: server.metric("edgespec_requests_running") == 0, 60
        )  # what is left waits for its reader
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(ENDS_S) == 0
        until(lambda: gone(children))
        assert [everything(half) for half in halves] == [b""] * 4
        unread.close()


@pytest.mark.slow
def test_reported_twice_it_ends_streams_with_an_error(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        stream = streaming(server)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "running answers may finish" in server.logged())
        server.process.send_signal(signal.SIGTERM)
        assert b"the server is stopping" in everything(stream)
        assert server.process.wait(ENDS_S) == 0
        assert "Traceback" not in server.logged()


@pytest.mark.slow
def test_a_client_that_does_not_read_delays_no_forced_end() -> None:
    """Since Python 3.12, a server that closes waits for all connections."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
            await asyncio.sleep(0.01)

    async def play() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        worker = SimpleNamespace(dismiss=lambda reason: None)
        config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None)
        server = StoppableServer(config, cast(Any, worker))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(10):
                while not any(one.lags for one in server.server_state.connections):
                    await asyncio.sleep(0.1)
                await server.end_now(STOPPING, 0)
                await serving
            assert not server.server_state.connections, "the one that does not read as well"

    try:
        asyncio.run(play())
    finally:
        logging.disable(logging.NOTSET)


def suspended(server: Served) -> None:
    worker = server.worker
    worker.suspend()
    until(lambda: worker.status() == psutil.STATUS_STOPPED)


@pytest.mark.slow
def test_a_stopped_engine_delays_no_end(tmp_path: Path) -> None:
    """The server waited 40 seconds for an answer that could not come."""
    with served(tmp_path) as server:
        children = family(server)
        stream = streaming(server)
        suspended(server)
        server.process.send_signal(signal.SIGTERM)
        assert b"its engine does not respond" in everything(stream)
        assert server.process.wait(ENDS_S) == 0
        until(lambda: gone(children))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="only Linux tells a child of its parent's end")
def test_a_stopped_engine_does_not_outlive_its_owner(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        children = family(server)
        suspended(server)
        server.process.kill()
        server.process.wait()
        until(lambda: gone(children))


def _begins_to_load(process: psutil.Process) -> bool:
    return any("edgespec.engine.worker" in child.cmdline() for child in process.children())


@pytest.mark.parametrize("begun", [_begins_to_load])
def test_reported_while_it_starts_it_says_so_and_leaves_nothing(
    begun: Callable[[psutil.Process], bool],
) -> None:
    """It ended without a word, and its engine two seconds later."""
    process = subprocess.Popen(
        [*EDGESPEC, "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    told = psutil.Process(process.pid)
    until(lambda: begun(told), 30)
    children = told.children(recursive=True)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=ENDS_S)
    assert process.returncode == 0 and said, "not a word"
    time.sleep(0.1)
    assert gone(children)
