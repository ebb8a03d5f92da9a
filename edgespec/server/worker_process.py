"""The process of an engine worker: messages to it and from it, its last lines and its end."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator

from edgespec.protocol.messages import HEAD, ToWorker, packed, unpacked
from edgespec.system.isolate import PRIVATE

LINES_KEPT = 40


class WorkerProcess:
    """A worker that runs, or has ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """process: with pipes for all it reads and writes."""
        assert process.stdin and process.stdout and process.stderr
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self.pid = process.pid
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)  # its last lines on stderr
        self._listening = asyncio.create_task(self._keep_lines(process.stderr))

    def send(self, message: ToWorker) -> None:
        """Sends a message; ignored if the worker no longer listens."""
        if not self._stdin.is_closing():
            self._stdin.write(packed(message))

    async def messages(self) -> AsyncIterator[object]:
        """Yields its messages until its end."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = HEAD.unpack(await self._stdout.readexactly(HEAD.size))
                yield unpacked(await self._stdout.readexactly(length))

    async def ended(self) -> int:
        """Waits for its end and its last lines; returns its exit code."""
        code = await self._process.wait()
        await self._listening
        return code

    async def end(self, seconds: float) -> None:
        """Ends it: after its step or, if that takes longer than some seconds, by killing it."""
        if self._process.returncode is None:
            self._stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), seconds)
            self.kill()
            await self._process.wait()  # its memory is free

    def kill(self) -> None:
        """Kills it, if it has not ended."""
        if self._process.returncode is None:
            self._process.kill()

    def forget(self) -> None:
        """Cleans up after a worker that nobody waits for."""
        self._listening.cancel()
        self.kill()

    async def _keep_lines(self, stream: asyncio.StreamReader) -> None:
        rest = ""
        while data := await stream.read(65536):
            text = data.decode("utf-8", "replace")
            if os.environ.get("EDGESPEC_LOG"):
                sys.stderr.write(text)
            *whole, rest = (rest + text).split("\n")
            self.lines.extend(line.rstrip() for line in whole if line.strip(" ."))
            rest = rest[-1000:]
        if rest.strip():
            self.lines.append(rest)


async def new_worker(kind: type[WorkerProcess] = WorkerProcess) -> WorkerProcess:
    """Starts a worker, which logs to its pipe and gets no key; if this is cancelled, none is left."""
    shared = {name: value for name, value in os.environ.items() if name not in PRIVATE}
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "edgespec.engine.worker",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=shared | {"EDGESPEC_LOG": "1"},
            start_new_session=True,
        )
    )
    try:
        return kind(await asyncio.shield(starting))
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.communicate()
        raise
