"""A running `edgespec serve`, for tests: on a free port, on the embedded pair by default."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

READY_S = 40.0
NO_END = {"0": -100, "1": -100, "2": -100}


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]


@dataclass(slots=True)
class Served:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].removesuffix("/v1"))

    @property
    def workers(self) -> list[psutil.Process]:
        """The engine worker that runs now, if one does."""
        return self.children("edgespec.engine.worker")

    def children(self, module: str) -> list[psutil.Process]:
        """Its processes that run a module, without those that have just ended."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if module in child.cmdline():
                    found.append(child)
        return found

    @property
    def worker(self) -> psutil.Process:
        """The engine worker that runs now."""
        return self.workers[0]

    def logged(self) -> str:
        """What it wrote to the terminal."""
        return self.log.read_text()

    def ask(
        self, path: str, body: object = None, *, headers: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Answered:
        """GETs a path, or POSTs JSON (or bytes) to it."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        request = urllib.request.Request(self.url.removesuffix("/v1") + path, data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answered(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, error.headers, error.read())

    def chat(self, content: str = "What is EdgeSpec?", **fields: object) -> Answered:
        return self.ask(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **fields}
        )

    def raw(self, data: bytes) -> socket.socket:
        """Returns a connection on which `data` was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        connection.sendall(data)
        return connection

    def metric(self, name: str) -> float:
        """Returns one number of /metrics."""
        text = self.ask("/metrics").body.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not in\n{text}"
        return float(found[1])


def post(path: str, body: object, *, length: int | None = None) -> bytes:
    """Returns a POST as it goes over the wire."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length or len(data)}\r\n\r\n"
    return head.encode() + data


def until(true: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits for something; fails where it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@contextmanager
def served(folder: Path, *flags: str, port: str = "0", **environment: str) -> Iterator[Served]:
    """Starts a server, waits until it answers, and ends it."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgespec", "serve", "--port", port, *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **environment},
            start_new_session=True,  # without a terminal, as a service
        )
    server = Served(process, log)
    try:
        until(lambda: process.poll() is not None or " answers at " in server.logged(), READY_S)
        assert process.poll() is None, server.logged()
        found = re.search(r" answers at (http://\S+/v1)", server.logged())
        assert found
        server.url = found[1]
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
