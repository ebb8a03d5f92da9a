"""Says which pairs are in memory: as many as fit, each with a worker of its own.

A request for a pair takes a `lease`; while one is held, or a request is answered, that pair stays. Room for
another is made by unloading those that nobody uses, the least recently used first. Who needs room that others
have to give is served in order, so that two clients that want different pairs both get them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path

from edgespec.protocol.messages import LoadRequest
from edgespec.server.engine_status import EngineStatus
from edgespec.server.refusal import Refusal
from edgespec.server.worker_life import PING_S, WorkerLife
from edgespec.server.worker_process import WorkerProcess, new_worker

_SWITCHED = "the model was unloaded by force: try again, or name the model you want"
SWITCHED = Refusal(503, _SWITCHED, code="model_switched", retry_s=1)


def fits_alongside(load: LoadRequest, processes: list[int]) -> bool:
    """Returns whether a pair fits with those of other processes as it does alone; asks llama.cpp."""
    from edgespec.memory.at_load import fits_with  # late: with one pair, nobody asks

    return fits_with(Path(load.target), Path(load.draft) if load.draft else None, load.settings, processes)


class Supervisor:
    """The pairs in memory, and those that were. All on one event loop."""

    def __init__(
        self,
        load: LoadRequest,
        *,
        most: int = 1,
        tell: Callable[[str], None] = lambda _: None,
        ping_s: float = PING_S,
        new: Callable[[], Awaitable[WorkerProcess]] = new_worker,
        fits: Callable[[LoadRequest, list[int]], bool] = fits_alongside,
    ) -> None:
        """load: the first. most: how many may be in memory at once. fits: whether a pair does, alongside
        processes that have others. The rest is as in `WorkerLife`."""
        self._most, self._tell, self._ping_s, self._new, self._fits = most, tell, ping_s, new, fits
        self._idle_s: float | None = None
        self._next: LoadRequest | None = None
        self._turn = asyncio.Lock()  # fair: first come, first served
        self._closed: Refusal | None = None  # why no request is taken any more
        self._forced = 0  # loads by force: who waits for a turn gives it up
        self._large_bodies = 0
        self._news = asyncio.Event()  # set, and replaced, at every change
        self._timer: asyncio.TimerHandle | None = None
        self._sleeping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.workers: dict[LoadRequest, WorkerLife] = {}
        self._first = self._last = self.of(load, first=True)  # the last that was begun
        self.settled = self._first.settled  # the first load has succeeded or failed

    def of(self, load: LoadRequest | None, *, first: bool = False) -> WorkerLife:
        """Returns a pair, in memory or not; None is the current one."""
        if load is None:
            return self.current
        if load not in self.workers:

            def tell(sentence: str) -> None:
                several = len(self._in_memory()) > 1
                self._tell(f"{Path(load.target).name}: {sentence}" if several else sentence)

            made = WorkerLife(load, self._moved, first=first, tell=tell, ping_s=self._ping_s, new=self._new)
            made.idle_s = self._idle_s
            self.workers[load] = made
        return self.workers[load]

    @property
    def current(self) -> WorkerLife:
        """Who answers a request that names no pair: of those that are there, the one wanted last."""
        return max(self.workers.values(), key=lambda worker: (worker.there, worker.begun))

    def _in_memory(self) -> list[WorkerLife]:
        return [worker for worker in self.workers.values() if worker.in_memory]

    @property
    def ended(self) -> bool:
        """True if no more workers will be started."""
        return any(worker.ended for worker in self.workers.values())

    @property
    def requests(self) -> int:
        """How many requests are running or waiting."""
        return sum(worker.requests for worker in self.workers.values())

    def status_of(self, load: LoadRequest | None = None) -> EngineStatus:
        """Returns the state of a pair; None is the current one."""
        worker = self.of(load)
        error = self._last.failed.message if self._last.failed else None
        return EngineStatus(worker.state, worker.load, *worker.loading, self._next, worker.requests, error)

    async def changes(self, load: LoadRequest | None = None) -> AsyncIterator[EngineStatus]:
        """Yields the states now and after each change, of one pair or of all; ends with the supervisor."""
        last: dict[LoadRequest, EngineStatus] = {}
        while True:
            news = self._news
            for worker in [self.of(load)] if load else [*self.workers.values()]:
                now = self.status_of(worker.load)
                if now != last.get(worker.load):
                    last[worker.load] = now
                    yield now
            if self.ended:
                return
            await news.wait()

    def start(self) -> None:
        """Starts the first worker, in the background."""
        self._first.begin()

    def close(self, reason: Refusal) -> None:
        """Takes no more requests: those that wait for a pair get the reason, what is running goes on."""
        self._closed = reason
        self._moved()

    def dismiss(self, reason: Refusal) -> None:
        """Ends all requests, with the reason."""
        for worker in self.workers.values():
            worker.engine.dismiss(reason)

    async def responds(self, seconds: float) -> bool:
        """Returns whether all workers answer within `seconds`, of those that should."""
        asked = [worker for worker in self.workers.values() if worker.state == "ready" or worker.requests]
        return all(await asyncio.gather(*(worker.responds(seconds) for worker in asked)))

    def count_large_body(self, change: int) -> None:
        """Notes that one large body more, or less, is being read."""
        self._large_bodies += change
        for worker in self.workers.values():
            worker.engine.note_large_bodies(self._large_bodies)

    def unload_after(self, idle_s: float | None) -> None:
        """Unloads pairs that nobody uses for so long, from now on; the next request loads them again."""
        self._idle_s = idle_s
        for worker in self.workers.values():
            worker.idle_s = idle_s
        self._moved()

    def keep(self, worker: WorkerLife, idle_s: float | None) -> None:
        """Unloads one pair after another time; 0: as soon as nobody uses it, None: never."""
        worker.idle_s = idle_s
        self._moved()

    async def stop(self) -> None:
        """Releases the workers, which end after their step."""
        ending = (self.apart(worker.end("stopped")) for worker in self.workers.values())
        await asyncio.shield(asyncio.gather(*ending))
        for task in self._tasks:
            task.cancel()

    @contextlib.asynccontextmanager
    async def lease(
        self, load: LoadRequest | None = None, *, waits: bool = False
    ) -> AsyncIterator[WorkerLife]:
        """Loads a pair, and keeps it until the block ends; what was submitted in it keeps it loaded.

        load: which; None is the current one. If there is no room, this waits until others are not used, and
        unloads them; later requests queue behind it. Raises Refusal if the pair cannot be loaded, or is
        unloaded by force, while a worker that died is restarted, and, unless `waits`, while the first one is
        being loaded.
        """
        worker = await self._take(load, force=False, waits=waits)
        try:
            yield worker
        finally:
            worker.lease(-1)

    async def load(self, load: LoadRequest | None = None, *, force: bool = False) -> WorkerLife:
        """Loads a pair, as `lease` does; it is the current one then. If this is cancelled, loading continues.

        force: ends running and waiting requests with a Refusal where their room is needed.
        """
        worker = await self._take(load, force=force)
        worker.begun = time.monotonic()
        worker.lease(-1)
        return worker

    async def unload(self, load: LoadRequest | None = None, *, force: bool = False) -> None:
        """Unloads a pair, or all, if loaded, once their answers have ended. force: as for `load`."""
        async with self._my_turn(force):
            for worker in [one for one in self._in_memory() if load in (None, one.load)]:
                if force:
                    worker.refuse(SWITCHED)
                while not worker.idle:
                    await self._different(force)
                if worker.in_memory:
                    await self._end(worker)

    async def _take(self, load: LoadRequest | None, force: bool, *, waits: bool = False) -> WorkerLife:
        """Loads a pair, and counts one lease of it."""
        async with self._my_turn(force and self.of(load).state == "unloaded"):
            worker = self.of(load)
            if self.ended:
                raise worker.absence()
            if worker.state == "unloaded":
                self._next = worker.load
                self._moved()
                try:
                    await self._make_room(worker, force)
                finally:
                    self._next = None
                    self._moved()
                worker.idle_s = self._idle_s
                self._last = worker
                worker.begin()
            worker.lease(1)
        try:
            while worker.state == "loading" and (waits or not worker.first) and not worker.why:
                await self._different(force=True)
                worker.check()
            if worker.state == "unloaded":
                assert worker.failed
                raise Refusal(503, worker.failed.message, type="server_error", code="model_load_failed")
            if worker.state != "ready":
                raise worker.absence()
        except BaseException:
            worker.lease(-1)
            raise
        return worker

    async def _make_room(self, wanted: WorkerLife, force: bool) -> None:
        """Unloads others until a pair fits with them."""
        before, room = -1, False
        while others := self._in_memory():
            if len(others) != before:
                before = len(others)
                pids = [one.pid for one in others if one.pid]
                room = before < self._most and await asyncio.to_thread(self._fits, wanted.load, pids)
            if room:
                return
            idle = [one for one in others if one.idle]
            least = min(idle or others, key=lambda one: one.used)
            if force and not idle:
                least.refuse(SWITCHED)
            if least.idle:
                await self._end(least)
            else:
                await self._different(force)

    @contextlib.asynccontextmanager
    async def _my_turn(self, force: bool) -> AsyncIterator[None]:
        """Waits for the turn; if forced, others give theirs up."""
        if force:
            self._forced += 1
            self._moved()
        try:
            async with self._turn:
                self._check(force)
                yield
        finally:
            if force:
                self._forced -= 1

    def _check(self, force: bool) -> None:
        """Raises Refusal to whom there is no use in waiting."""
        if self._closed:
            raise self._closed
        if self._forced and not force:
            raise SWITCHED

    async def _different(self, force: bool) -> None:
        await self._news.wait()
        self._check(force)

    async def _end(self, worker: WorkerLife) -> None:
        """Unloads a pair. If cancelled, that continues."""
        await asyncio.shield(self.apart(worker.end("unloaded")))

    def _moved(self) -> None:
        """Wakes who waits for changes, and restarts the idle timer."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        if self._timer:
            self._timer.cancel()
        if not (self._sleeping or self._closed) and (due := self._due()):
            wait = max(0.0, min(due.values()) - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, lambda: self.apart(self._sleep()))

    def _due(self) -> dict[WorkerLife, float]:
        """Returns when pairs that nobody uses are to be unloaded."""
        ready = [one for one in self.workers.values() if one.state == "ready" and one.idle]
        return {one: one.used + one.idle_s for one in ready if one.idle_s is not None}

    async def _sleep(self) -> None:
        """Unloads what nobody has used for long enough."""
        self._sleeping = True
        with contextlib.suppress(Refusal):
            async with self._my_turn(force=False):
                for worker, at in self._due().items():
                    if at <= time.monotonic():
                        await self._end(worker)
        self._sleeping = False
        self._moved()

    def apart(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Does what may go on when its caller has left, until the supervisor stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
