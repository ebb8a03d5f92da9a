"""Runs the engine worker of a pair, and another when that has ended by itself.

To unload a pair is to end its worker, which frees all its memory. One that dies is restarted at once the
first time, then after pauses that quadruple. If it lost another machine that evaluated layers for it, it is
restarted when that is back; if it ran out of a graphics card's memory, with less on the card. Requests that
were waiting get the reason and the worker's last lines; new requests are answered with when to try again.
A worker that runs and does not answer is no better than a dead one: it is pinged all the time, and killed
if it stays silent.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Literal

from edgespec.core.values import Emitted, Started
from edgespec.protocol.messages import (
    Accepted,
    Loaded,
    LoadFailed,
    Loading,
    LoadRequest,
    Pong,
    Refused,
    SlotDone,
    Spelt,
    Stage,
    StepReport,
    Tokenized,
    ToWorker,
)
from edgespec.server.engine_status import State
from edgespec.server.refusal import Refusal, from_worker, unavailable
from edgespec.server.worker_process import WorkerProcess, new_worker
from edgespec.server.worker_requests import WorkerRequests
from edgespec.system.isolate import card_was_full, cause_of_death, kills_for_memory, telling
from edgespec.system.machines import absent

LAST_LINES_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
END_S, WRITING_S = 2.0, 12.0  # how long a worker may take to end, and one that keeps prompts on disk
STEADY_S = 60.0  # a worker that lived this long did not die of its start
LAST_LINES = 8
PING_S, SILENT_PINGS = 5.0, 4  # how often it is pinged, and how many pings in a row it may miss
MACHINE_S = 1.0  # how often a lost machine is tried, and how long that may take
LONGEST_STEP_S = 1800.0  # of the engine; a step of a large model that is read from a slow disk takes minutes


class WorkerLife:
    """One pair, and its worker while it is in memory."""

    def __init__(
        self,
        load: LoadRequest,
        changed: Callable[[], None],
        *,
        first: bool,
        tell: Callable[[str], None],
        ping_s: float,
        new: Callable[[], Awaitable[WorkerProcess]] = new_worker,
    ) -> None:
        """changed: called at each change of the state, or of who uses it. first: there is nothing else to
        answer, so it is tried until it has been loaded. tell: takes messages for the person at the terminal.
        ping_s: how often the worker is pinged. new: starts a process."""
        self.state: State = "unloaded"
        self.about: Loaded | None = None
        self.engine = WorkerRequests(self._send, self._refuse, self._moved)
        self._process: WorkerProcess | None = None
        self._refusing: Refusal | None = None  # why no request is taken now
        self.load, self._tell, self._ping_s, self._new = load, tell, ping_s, new
        self._changed = changed
        self.first = first
        self.leases = 0  # of those who are about to ask
        self.used = self.begun = 0.0  # when that was last so, and when it was last wanted in memory
        self.idle_s: float | None = None  # after so long unused, it is unloaded
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()
        self._killed_for: str | None = None  # why we killed it
        self._kills: int | None = None  # by the kernel, before it was started
        self._plans_failed = 0  # plans with which a graphics card ran out of memory
        self._settled = False  # it has been ready since it was loaded
        self._loading: Loading | None = None
        self._retry_at = 0.0
        self.why, self._noticed = "", False  # whether a draft's failure was logged, once for each load
        self.failed: LoadFailed | None = None  # it could not be loaded: there is nothing to wait for
        self.settled = asyncio.Event()  # the first load has succeeded or failed
        self.restarts = 0
        self.busy = (0.0, 0.0)
        self.decodes = self.in_slots = 0  # sums over the steps of all workers
        self.lines: Iterable[str] = ()  # the worker's last lines
        self.pid: int | None = None

    @property
    def ended(self) -> bool:
        """True if no more workers will be started."""
        return self.state == "stopped"

    @property
    def in_memory(self) -> bool:
        """True from the beginning of loading on."""
        return self.state not in ("unloaded", "stopped")

    @property
    def there(self) -> bool:
        """True if it answers, or does so again soon."""
        return self.in_memory and self._settled

    @property
    def requests(self) -> int:
        """How many requests are running or waiting."""
        return len(self.engine)

    @property
    def waiting(self) -> int:
        """How many of them wait for a slot."""
        return max(0, self.requests - (self.about.slots if self.about else 0))

    def loaded(self) -> Loaded:
        """Returns what is known of the pair; raises Refusal if it is not loaded."""
        if self.about is None or self.state != "ready":
            raise self.absence()
        return self.about

    def check(self) -> None:
        """Raises Refusal if no request is taken now."""
        if self._refusing:
            raise self._refusing

    def _refuse(self) -> None:
        self.check()
        self.loaded()

    def _send(self, message: ToWorker) -> None:
        if self._process and self.state == "ready":
            self._process.send(message)

    async def responds(self, seconds: float) -> bool:
        """Returns whether the worker is ready, and answers within `seconds`."""
        return self.state == "ready" and await self.engine.responds(seconds)

    @property
    def idle(self) -> bool:
        """True if nobody is answered or about to ask."""
        return not (self.requests or self.leases)

    @property
    def loading(self) -> tuple[Stage | None, float]:
        """Returns the stage of loading, and which part of it is done."""
        if self.state == "loading":
            return (self._loading.stage, self._loading.progress) if self._loading else (None, 0.0)
        return None, float(self.state == "ready")

    def lease(self, change: Literal[1, -1]) -> None:
        """Counts one more who is about to ask, or one less."""
        self.leases += change
        self._moved()

    def absence(self) -> Refusal:
        """Returns why there is no engine now, and when to come again."""
        if self.state in ("loading", "unloaded") and not self.why:
            return unavailable("the model is being loaded: try again in a moment")
        if self.state == "stopped":
            return unavailable("the server is stopping")
        wait = max(1.0, self._retry_at - time.monotonic())
        return unavailable(f"the engine is being restarted ({self.why}): try again in a moment", wait)

    def begin(self) -> None:
        """Starts a worker in the background. There must be none."""
        self._settled, self.failed, self._loading, self._refusing = False, None, None, None
        self.why, self._plans_failed, self.begun = "", 0, time.monotonic()
        self._become("loading")
        self._task = asyncio.create_task(self._keep_running())

    def refuse(self, reason: Refusal) -> None:
        """Ends all requests, and takes no more until it is loaded again."""
        self._refusing = reason
        self.engine.dismiss(reason)
        self._moved()

    async def end(self, state: Literal["unloaded", "stopped"]) -> None:
        """Ends the worker: at once if it is loading, else after its step."""
        seconds = WRITING_S if self.load.settings.cache_disk else END_S
        seconds = 0.0 if self.state == "loading" else seconds
        self._become(state)
        async with self._ending:
            process, task = self._process, self._task
            self._process = self._task = None
            if process:
                await process.end(seconds)
            if task:
                if process:  # it ended by itself, and its last lines are read
                    await asyncio.wait((task,), timeout=LAST_LINES_S)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _moved(self) -> None:
        self.used = time.monotonic()
        self._changed()

    def _become(self, state: State) -> None:
        self.state = state
        self._moved()

    async def _keep_running(self) -> None:
        pause = FIRST_PAUSE_S
        while not self.ended:
            began = time.monotonic()
            code = await self._run_once()
            if self.state in ("stopped", "unloaded"):
                return
            if not self._settled and self._give_up(code):
                return
            if time.monotonic() - began > STEADY_S:
                pause = FIRST_PAUSE_S
            self._report_death(code, pause)
            if self.load.settings.rpc:
                await self.until_there(self.load.settings.rpc)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 4, LONGEST_PAUSE_S)

    async def until_there(
        self,
        machines: tuple[str, ...],
        *,
        missing: Callable[[tuple[str, ...], float], list[str]] = absent,
        every_s: float = MACHINE_S,
    ) -> None:
        """Waits for machines that are `missing`; other errors are retried every second."""
        logged: list[str] = []
        while gone := await asyncio.to_thread(missing, machines, every_s):
            if gone != logged:
                self.why = f"waiting for the machine of --rpc at {', '.join(gone)}"
                self._tell(self.why)
                logged = gone
            await asyncio.sleep(every_s)
        await asyncio.sleep(every_s)

    def _give_up(self, code: int) -> bool:
        """Returns whether to stop retrying a pair that never was ready."""
        if self.first:
            if not self.failed:
                return False
            self._become("stopped")
            self.settled.set()
            return True
        self.failed = self.failed or LoadFailed(self._cause(code), 1)
        self.begun = 0.0
        self._become("unloaded")
        return True

    async def _watch(self, process: WorkerProcess) -> None:
        """Kills a worker that stops answering, once it has been ready."""
        silent = 0
        while True:
            await asyncio.sleep(self._ping_s)
            if self.state != "ready":
                continue
            silent = 0 if await self.responds(self._ping_s) else silent + 1
            if silent >= SILENT_PINGS:  # counted, not timed: our own process may have been stopped, too
                self._kill(process, f"the engine has not answered for {2 * silent * self._ping_s:g} s")
                return

    def _kill(self, process: WorkerProcess, why: str) -> None:
        self._killed_for = why
        process.kill()

    def _cause(self, code: int) -> str:
        if self._killed_for:
            return self._killed_for
        return cause_of_death(code, "\n".join(self.lines), self._kills) or f"it ended with exit code {code}"

    async def _run_once(self) -> int:
        self.failed = self._loading = self._killed_for = None
        self._kills = kills_for_memory()
        self._become("loading")
        try:
            self._process = process = await self._new()
        except OSError as error:  # such as no memory for a process: that passes
            self._killed_for = f"its process cannot be started ({error.strerror or error})"
            return 1
        self.pid, self.lines = process.pid, process.lines
        watching = asyncio.create_task(self._watch(process))
        try:
            settings = replace(self.load.settings, plans_failed=self._plans_failed)
            process.send(replace(self.load, settings=settings))
            async for message in process.messages():
                self._note(message)
                if isinstance(message, Pong) and message.step_s > LONGEST_STEP_S:
                    self._kill(process, f"the engine has been in one step for {message.step_s:.0f} s")
            return await process.ended()
        finally:
            watching.cancel()
            process.forget()

    def _note(self, message: object) -> None:
        if isinstance(message, StepReport):
            self.busy = message.busy
            self.decodes += message.decodes
            self.in_slots += message.in_slots
            self.about = self.about and self.about._replace(plain_s=message.plain_s)
            for event in message.events:
                given = from_worker(event) if isinstance(event, Refused) else event
                at = message.began if isinstance(given, Started) else message.at
                self.engine.pass_on(event.id, given, at)
                if isinstance(given, Emitted) and given.round.notice and not self._noticed:
                    self._noticed = True
                    self._tell(given.round.notice)
        elif isinstance(message, Accepted | Tokenized | Spelt | SlotDone):
            self.engine.pass_on(message.id, message, 0.0)
        elif isinstance(message, Refused):
            self.engine.pass_on(message.id, from_worker(message), 0.0)
        elif isinstance(message, Pong):
            self.engine.pong(message.number)
        elif isinstance(message, LoadFailed):
            self.failed = message
        elif isinstance(message, Loading):
            self._loading = message
            self._moved()
        elif isinstance(message, Loaded):
            if self.why:
                self._tell("the engine is running again")
            self.why, self._noticed = "", False
            self.about, self._settled, self.first = message, True, False
            self._become("ready")
            self.settled.set()

    def _report_death(self, code: int, pause: float) -> None:
        """Tells all requests that the worker is gone, and why."""
        self.restarts += 1
        self._retry_at = time.monotonic() + pause
        self.why = self.failed.message if self.failed else self._cause(code)
        self._become("down")
        last = "".join(f"\n  | {line}" for line in telling(self.lines)[-LAST_LINES:])
        again = "it is being restarted"
        if card_was_full(code, "\n".join(self.lines)) and self.load.settings.n_gpu_layers < 0:
            self._plans_failed += 1
            again += " with less on the graphics card"
        self._tell(f"{self.why}; {again}" + (f"; its last lines:{last}" if last else ""))
        sentence = f"the engine stopped while answering: {self.why}"
        self.engine.dismiss(Refusal(503, sentence, type="server_error", code="engine_died", retry_s=1))
