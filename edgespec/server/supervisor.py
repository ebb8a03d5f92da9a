"""Keeps an engine worker running, and knows which request waits for what it says.

A worker that ended by itself is started again: at once the first time, then after pauses that double. Who
was waiting hears why it died, with the last lines it said; who comes meanwhile is told when to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from edgespec.events import Emitted, Started
from edgespec.isolate import cause_of_death
from edgespec.messages import (
    HEAD,
    Accepted,
    Cancel,
    Load,
    Loaded,
    LoadFailed,
    Refused,
    Spell,
    Spelt,
    Step,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
    packed,
    unpacked,
)  # fmt: skip
from edgespec.server.refusal import Refusal, from_worker, unavailable

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
STEADY_S = 60.0  # a worker that lived this long did not die of its start
LAST_LINES = 8
LINES_KEPT = 40
PRIVATE = (
    "EDGESPEC_API_KEY",
    "EDGESPEC_NOISE_FILE",
    "EDGESPEC_PARENT_PIPE",
)  # none of the child's business

State = Literal["loading", "ready", "down", "stopped"]
Said = Accepted | Started | Emitted | Tokenized | Spelt | Refusal
Listener = Callable[[str, Said, float, tuple[str, ...]], None]  # id, what, the worker's clock, token texts


class Supervisor:
    """One worker at a time, and the requests it has. All of it on one event loop."""

    def __init__(self, load: Load, *, tell: Callable[[str], None] = lambda _: None) -> None:
        """tell: takes sentences for the person at the terminal."""
        self._load, self._tell = load, tell
        self.state: State = "loading"
        self.about: Loaded | None = None
        self.failed: LoadFailed | None = None  # the first load did not work: there is nothing to wait for
        self.settled = asyncio.Event()  # the first load has worked, or has not
        self.restarts = 0
        self.busy = (0.0, 0.0)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.pid: int | None = None
        self._listeners: dict[str, Listener] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._why = ""
        self._numbers = itertools.count(1)

    @property
    def requests(self) -> int:
        """How many requests are waiting or answered right now."""
        return len(self._listeners)

    @property
    def ended(self) -> bool:
        """True where no worker will be started any more."""
        return self.state == "stopped"

    def start(self) -> None:
        """Starts the first worker, in the background."""
        self._task = asyncio.create_task(self._keep_running())

    async def stop(self) -> None:
        """Lets go of the worker, which ends after its step."""
        self.state = "stopped"
        process = self._process
        if process and process.returncode is None:
            assert process.stdin
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 6)
            except TimeoutError:
                process.kill()
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    # -- requests

    def submit(self, message: Submit, listener: Listener) -> None:
        """Hands a request to the worker; raises Refusal where there is none."""
        if self.state != "ready":
            raise self.absence()
        self._listeners[message.id] = listener
        self._send(message)

    def cancel(self, id: str) -> None:
        """Forgets a request, here and in the worker."""
        if self._listeners.pop(id, None) and self.state == "ready":
            self._send(Cancel(id))

    async def tokenize(self, prompt: str, *, add_bos: bool, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text; raises Refusal where there is no worker, or it dies."""
        said = await self._ask(Tokenize(f"t{next(self._numbers)}", prompt, add_bos, special))
        assert isinstance(said, Tokenized)
        return said.tokens

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """Returns the bytes of each token; raises Refusal, as for one that does not exist."""
        said = await self._ask(Spell(f"t{next(self._numbers)}", tuple(tokens)))
        assert isinstance(said, Spelt)
        return said.pieces

    async def _ask(self, message: Tokenize | Spell) -> Said:
        if self.state != "ready":
            raise self.absence()
        answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()

        def hear(_id: str, said: Said, _at: float, _pieces: tuple[str, ...]) -> None:
            if isinstance(said, Refusal) and not answer.done():
                answer.set_exception(said)
            elif not answer.done():
                answer.set_result(said)

        self._listeners[message.id] = hear
        self._send(message)
        try:
            return await answer
        finally:
            self._listeners.pop(message.id, None)

    def dismiss(self, reason: Refusal) -> None:
        """Tells everyone who waits that there will be nothing more, and why."""
        waiting, self._listeners = self._listeners, {}
        for id, listener in waiting.items():
            if self.state == "ready":
                self._send(Cancel(id))
            listener(id, reason, 0.0, ())

    def absence(self) -> Refusal:
        """Returns why there is no engine now, and when to come again."""
        if self.state == "loading" and not self.restarts:
            return unavailable("the model is being loaded: try again in a moment")
        if self.state == "stopped":
            return unavailable("the server is ending")
        wait = max(1.0, self._retry_at - time.monotonic())
        return unavailable(f"the engine is being started again ({self._why}): try again in a moment", wait)

    def _send(self, message: ToWorker) -> None:
        process = self._process
        if process and process.stdin and not process.stdin.is_closing():
            process.stdin.write(packed(message))

    # -- the worker's life

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_S
        while not self.ended:
            began = time.monotonic()
            code = await self._run_once()
            if self.ended:
                return
            if not self.about and self.failed:
                self.state = "stopped"
                self.settled.set()
                return
            if time.monotonic() - began > STEADY_S:
                pause = FIRST_PAUSE_S
            self._mourn(code, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 4, LONGEST_PAUSE_S)

    async def _run_once(self) -> int:
        self.state = "loading"
        self.failed = None
        self.lines.clear()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "edgespec.worker",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=_environment(os.environ), start_new_session=True,
        )  # fmt: skip
        self.pid = process.pid
        assert process.stdout and process.stderr
        errors = asyncio.create_task(self._keep_lines(process.stderr))
        try:
            self._send(self._load)
            await self._hear(process.stdout)
            code = await process.wait()
            await errors
            return code
        finally:
            errors.cancel()
            if process.returncode is None:
                process.kill()

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

    async def _hear(self, stream: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = HEAD.unpack(await stream.readexactly(HEAD.size))
                self._note(unpacked(await stream.readexactly(length)))

    def _note(self, message: object) -> None:
        if isinstance(message, Step):
            self.busy = message.busy
            for happening in message.happenings:
                said = from_worker(happening) if isinstance(happening, Refused) else happening
                at = message.began if isinstance(said, Started) else message.at
                self._hand_on(happening.id, said, at, message.pieces)
        elif isinstance(message, Accepted | Tokenized | Spelt):
            self._hand_on(message.id, message, 0.0, {})
        elif isinstance(message, Refused):
            self._hand_on(message.id, from_worker(message), 0.0, {})
        elif isinstance(message, LoadFailed):
            self.failed = message
        elif isinstance(message, Loaded):
            self.about, self.state = message, "ready"
            if self.restarts:
                self._tell("the engine runs again")
            self.settled.set()

    def _hand_on(self, id: str, said: Said, at: float, pieces: Mapping[str, tuple[str, ...]]) -> None:
        listener = self._listeners.get(id)
        if not listener:
            return
        if isinstance(said, Refusal) or (isinstance(said, Emitted) and said.round.finish):
            del self._listeners[id]
        listener(id, said, at, pieces.get(id, ()))

    def _mourn(self, code: int, pause: float) -> None:
        """Tells everyone that the worker is gone, and why."""
        self.state, self.restarts = "down", self.restarts + 1
        self._retry_at = time.monotonic() + pause
        if self.failed:
            self._why = self.failed.message
        else:
            self._why = cause_of_death(code, "\n".join(self.lines)) or f"it ended with exit code {code}"
        last = "".join(f"\n  | {line}" for line in list(self.lines)[-LAST_LINES:])
        self._tell(f"{self._why}; it is started again" + (f"; its last lines:{last}" if last else ""))
        self.dismiss(
            Refusal(
                503,
                f"the engine stopped while answering: {self._why}",
                type="server_error",
                code="engine_died",
                retry_s=1,
            )  # fmt: skip
        )


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the child's environment: llama.cpp's log goes to the pipe, and no key with it."""
    kept = {name: value for name, value in environment.items() if name not in PRIVATE}
    return {**kept, "EDGESPEC_LOG": "1"}
