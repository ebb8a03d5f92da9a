"""Says which pair is loaded: one at a time, for those who hold a lease of it.

There is one pair at a time, and one worker has one pair: to unload is to end the worker, which frees
all its memory, and to load another is to start another worker. A request for a pair takes a `lease`;
while one is held, or a request is answered, no other pair comes. Leases are served in order, so that
two clients that want different pairs both get them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Literal

from edgespec.engine.messages import Loaded, LoadRequest
from edgespec.server.engine_status import EngineStatus
from edgespec.server.refusal import Refusal
from edgespec.server.worker_life import PING_S, WorkerLife

LAST_LINES_S = 1.0
SWITCHED = Refusal(
    503,
    "the model was unloaded by force: try again, or name the model you want",
    type="unavailable_error",
    code="model_switched",
    retry_s=1,
)


class Supervisor(WorkerLife):
    """The pairs of one worker at a time. All on one event loop."""

    def __init__(
        self,
        load: LoadRequest,
        *,
        tell: Callable[[str], None] = lambda _: None,
        ping_s: float = PING_S,
    ) -> None:
        super().__init__(load, tell=tell, ping_s=ping_s)
        self._idle_s: float | None = None
        self._next: LoadRequest | None = None
        self._turn = asyncio.Lock()  # fair: first come, first served
        self._letting_go = asyncio.Lock()
        self._leases = 0
        self._news = asyncio.Event()  # set, and replaced, at every change
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> EngineStatus:
        """The current state."""
        stage, progress = (self._loading.stage, self._loading.progress) if self._loading else (None, 0.0)
        if self.state != "loading":
            stage, progress = None, float(self.state == "ready")
        error = self.failed.message if self.failed else None
        return EngineStatus(self.state, self._load, stage, progress, self._next, self.requests, error)

    async def changes(self) -> AsyncIterator[EngineStatus]:
        """Yields the state now and after each change; ends with the supervisor."""
        last = None
        while True:
            news, now = self._news, self.status
            if now != last:
                last = now
                yield now
            if self.ended:
                return
            await news.wait()

    def start(self) -> None:
        """Starts the first worker, in the background."""
        self._task = asyncio.create_task(self._keep_running())

    def close(self, reason: Refusal) -> None:
        """Takes no more requests: those that wait for a pair get the reason, what is running goes on."""
        self._refusing = reason
        self._moved()

    def unload_after(self, idle_s: float | None) -> None:
        """Unloads a pair that nobody uses for so long, from now on; the next request loads it again."""
        self._idle_s = idle_s
        self._moved()

    async def stop(self) -> None:
        """Releases the worker, which ends after its step."""
        await self._end("stopped")
        for task in self._tasks:
            task.cancel()

    @contextlib.asynccontextmanager
    async def lease(self, load: LoadRequest | None = None) -> AsyncIterator[Loaded]:
        """Loads a pair, and keeps it until the block ends; what was submitted in it keeps it loaded.

        load: which; None is the current one, or the last. If another is loaded, this waits until
        all answers have ended, then switches; later requests queue behind it. Raises Refusal if the
        pair cannot be loaded, if the first one is still being loaded, if a worker that died is
        being restarted, and if a forced switch came in between.

            async with supervisor.lease() as about:
                supervisor.submit(..., listener)
        """
        about = await self._take(load, force=False)
        try:
            yield about
        finally:
            self._leases -= 1
            self._moved()

    async def load(self, load: LoadRequest | None = None, *, force: bool = False) -> Loaded:
        """Loads a pair, as `lease` does, and returns its description once it is loaded.

        force: ends running and waiting requests with a Refusal instead of waiting for them.
        `changes` reports progress. If this is cancelled, loading continues.
        """
        about = await self._take(load, force=force)
        self._leases -= 1
        self._moved()
        return about

    async def unload(self, *, force: bool = False) -> None:
        """Unloads the pair when all answers have ended; the next request loads it again.

        force: as for `load`. Does nothing if no pair is loaded.
        """
        async with self._my_turn(force):
            await self._quiet(force)
            if self.state != "unloaded":
                await self._end("unloaded")

    async def _take(self, load: LoadRequest | None, force: bool) -> Loaded:
        """Loads the pair, and counts one lease of it."""
        async with self._my_turn(force and load not in (None, self._load)):
            wanted = load or self._load
            if wanted != self._load or self.state == "unloaded":
                self._next = wanted
                self._moved()
                try:
                    await self._quiet(force)
                    await self._end("unloaded")
                finally:
                    self._next = None
                    self._moved()
                self._begin(wanted)
            while self.state == "loading" and self._good and not self._why:
                await self._different(force)
            if self.state == "unloaded":
                assert self.failed
                raise Refusal(503, self.failed.message, type="server_error", code="model_load_failed")
            if self.state != "ready" or not self.about:
                raise self.absence()
            self._leases += 1
            self._moved()
            return self.about

    @contextlib.asynccontextmanager
    async def _my_turn(self, force: bool) -> AsyncIterator[None]:
        """Waits for the turn; if forced, others give theirs up."""
        if force:
            self._refusing = SWITCHED
            self.dismiss(SWITCHED)
            self._moved()
        try:
            async with self._turn:
                if self._refusing and not force:
                    raise self._refusing
                yield
        finally:
            if force:
                self._refusing = None

    async def _quiet(self, force: bool) -> None:
        """Waits until nothing runs, and nobody is about to ask."""
        while self.requests or self._leases:
            await self._different(force)
        if self.ended:
            raise self.absence()

    async def _different(self, force: bool) -> None:
        await self._news.wait()
        if self._refusing and not force:
            raise self._refusing

    def _begin(self, load: LoadRequest) -> None:
        """Starts a worker for a pair, in the background. There must be none."""
        self._load, self._settled, self.failed, self._loading = load, False, None, None
        self._why, self._plans_failed = "", 0
        self._become("loading")
        self._task = asyncio.create_task(self._keep_running())

    async def _end(self, state: Literal["unloaded", "stopped"]) -> None:
        """Ends the worker: at once if it is loading, else after its step. If cancelled, that continues."""
        at_once = self.state == "loading"
        self._become(state)
        await asyncio.shield(self._apart(self._let_go(at_once)))

    async def _let_go(self, at_once: bool) -> None:
        async with self._letting_go:
            process, task = self._process, self._task
            self._process = self._task = None
            if process:
                await process.end(at_once=at_once)
            if task:
                if process:  # it ended by itself, and its last lines are read
                    await asyncio.wait((task,), timeout=LAST_LINES_S)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _moved(self) -> None:
        """Wakes who waits for changes, and restarts the idle timer of the pair."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._idle_s and self.state == "ready" and not (self.requests or self._leases):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, lambda: self._apart(self._sleep()))

    async def _sleep(self) -> None:
        with contextlib.suppress(Refusal):
            async with self._my_turn(force=False):
                if self.state == "ready" and not (self.requests or self._leases):
                    await self._end("unloaded")

    def _apart(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
