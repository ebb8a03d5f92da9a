"""Keeps an engine worker running, and passes its messages to the requests that wait for them.

There is one pair at a time, and one worker has one pair: to unload is to end the worker, which frees
all its memory, and to load another is to start another worker. A request for a pair takes a `lease`;
while one is held, or a request is answered, no other pair comes. Leases are served in order, so that
two clients that want different pairs both get them.

A worker that ended by itself is restarted: at once the first time, then after pauses that double. If it
lost another machine that evaluated layers for it, it is restarted when that is back; if it ran out of a
graphics card's memory, with less on the card. Requests that were waiting get the reason and the worker's
last lines; new requests are told when to come again.
A worker that runs and does not answer is no better than a dead one: it is pinged all the time, and killed
if it stays silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from edgespec.core.values import Emitted, Reading, Started
from edgespec.engine.messages import (
    MOST_TOKENS,
    Accepted,
    Cancel,
    LargeBodies,
    Loaded,
    LoadFailed,
    Loading,
    LoadRequest,
    Ping,
    Pong,
    Refused,
    Spell,
    Spelt,
    StepReport,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
)
from edgespec.server.refusal import Refusal, from_worker, unavailable
from edgespec.server.situation import Situation, State
from edgespec.server.worker_process import WorkerProcess, new_worker
from edgespec.system.isolate import card_was_full, cause_of_death, kills_for_memory, telling
from edgespec.system.machines import absent

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 30.0
STEADY_S = 60.0  # a worker that lived this long did not die of its start
LAST_LINES_S = 1.0
LAST_LINES = 8
PING_S, SILENT_PINGS = 5.0, 4  # how often it is pinged, and how many pings in a row it may miss
MACHINE_S = 1.0  # how often a lost machine is tried, and how long that may take
LONGEST_STEP_S = 1800.0  # of the engine; a step of a large model that is read from a slow disk takes minutes

SWITCHED = Refusal(
    503,
    "the model was unloaded by force: try again, or name the model you want",
    type="unavailable_error",
    code="model_switched",
    retry_s=1,
)
Said = Accepted | Started | Reading | Emitted | Tokenized | Spelt | Refusal
Listener = Callable[[str, Said, float], None]  # id, what, the worker's clock


class Supervisor:
    """One worker at a time, and its requests. All on one event loop."""

    def __init__(
        self,
        load: LoadRequest,
        *,
        tell: Callable[[str], None] = lambda _: None,
        ping_s: float = PING_S,
    ) -> None:
        """tell: takes messages for the person at the terminal. ping_s: how often the worker is pinged."""
        self._load, self._tell, self._ping_s = load, tell, ping_s
        self._idle_s: float | None = None
        self._heard: dict[int, asyncio.Event] = {}  # pings that wait for their answer
        self._killed_for: str | None = None  # why we killed it
        self._kills: int | None = None  # by the kernel, before it was started
        self._plans_failed = 0  # plans with which a graphics card ran out of memory
        self._good: LoadRequest | None = None  # what was loaded last
        self._settled = False  # the current pair has been ready once
        self._loading: Loading | None = None
        self._next: LoadRequest | None = None
        self._turn = asyncio.Lock()  # fair: first come, first served
        self._letting_go = asyncio.Lock()
        self._leases = 0
        self._refusing: Refusal | None = None  # during a forced switch
        self._news = asyncio.Event()  # set, and replaced, at every change
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.state: State = "loading"
        self.about: Loaded | None = None
        self.failed: LoadFailed | None = None  # the first load failed: there is nothing to wait for
        self.settled = asyncio.Event()  # the first load has succeeded or failed
        self.restarts = 0
        self.busy = (0.0, 0.0)
        self.decodes = self.in_slots = 0  # sums over the steps of all workers
        self.lines: Iterable[str] = ()  # the worker's last lines
        self.pid: int | None = None
        self._listeners: dict[str, Listener] = {}
        self._process: WorkerProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._why, self._noticed = "", False  # whether a draft's failure was told, once for each load
        self._numbers = itertools.count(1)
        self._large_bodies = 0

    @property
    def requests(self) -> int:
        """How many requests are running or waiting."""
        return len(self._listeners)

    @property
    def waiting(self) -> int:
        """How many of them wait for a slot."""
        return max(0, self.requests - (self.about.slots if self.about else 0))

    @property
    def ended(self) -> bool:
        """True if no more workers will be started."""
        return self.state == "stopped"

    @property
    def situation(self) -> Situation:
        """The current state."""
        stage, progress = (self._loading.stage, self._loading.progress) if self._loading else (None, 0.0)
        if self.state != "loading":
            stage, progress = None, float(self.state == "ready")
        error = self.failed.message if self.failed else None
        return Situation(self.state, self._load, stage, progress, self._next, self.requests, error)

    async def changes(self) -> AsyncIterator[Situation]:
        """Yields the state now and after each change; ends with the supervisor."""
        last = None
        while True:
            news, now = self._news, self.situation
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

    # -- pairs

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

    def _become(self, state: State) -> None:
        self.state = state
        self._moved()

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

    # -- requests

    def submit(self, message: Submit, listener: Listener) -> None:
        """Submits a request to the worker; raises Refusal if there is none. Do it under a `lease`."""
        if self._refusing:
            raise self._refusing
        if self.state != "ready":
            raise self.absence()
        self._listeners[message.id] = listener
        self._send(message)

    def cancel(self, id: str) -> None:
        """Forgets a request, here and in the worker."""
        if self._listeners.pop(id, None) and self.state == "ready":
            self._send(Cancel(id))
            self._moved()

    def count_large_body(self, change: int) -> None:
        """Notes that one large body more, or less, is being read: the engine leaves it a core."""
        self._large_bodies += change
        if self.state == "ready":
            self._send(LargeBodies(self._large_bodies))

    async def tokenize(self, prompt: str, *, add_bos: bool, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text; raises Refusal if no worker answers, or they are too many."""
        said = await self._tokenized(prompt, add_bos, special)
        if said.n > MOST_TOKENS:
            sentence = f"the text has {said.n:,} tokens, and {MOST_TOKENS:,} are handled at once: shorten it"
            raise Refusal(400, sentence, code="invalid_value")
        return tuple(said.tokens)

    async def n_tokens(self, prompt: str, *, add_bos: bool) -> int:
        """Returns how many tokens a text has; raises Refusal as `tokenize` does."""
        return (await self._tokenized(prompt, add_bos, special=True)).n

    async def _tokenized(self, prompt: str, add_bos: bool, special: bool) -> Tokenized:
        said = await self._ask(Tokenize(f"t{next(self._numbers)}", prompt, add_bos, special))
        assert isinstance(said, Tokenized)
        return said

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """Returns the bytes of each token; raises Refusal, also for a token that does not exist."""
        said = await self._ask(Spell(f"t{next(self._numbers)}", tuple(tokens)))
        assert isinstance(said, Spelt)
        return said.pieces

    async def _ask(self, message: Tokenize | Spell) -> Said:
        if self.state != "ready":
            raise self.absence()
        answer: asyncio.Future[Said] = asyncio.get_running_loop().create_future()

        def hear(_id: str, said: Said, _at: float) -> None:
            if isinstance(said, Refusal) and not answer.done():
                answer.set_exception(said)
            elif not answer.done():
                answer.set_result(said)

        self._listeners[message.id] = hear
        self._send(message)
        try:
            return await answer
        finally:
            self.cancel(message.id)

    def dismiss(self, reason: Refusal) -> None:
        """Ends all waiting requests, with the reason."""
        waiting, self._listeners = self._listeners, {}
        for id, listener in waiting.items():
            if self.state == "ready":
                self._send(Cancel(id))
            listener(id, reason, 0.0)

    def absence(self) -> Refusal:
        """Returns why there is no engine now, and when to come again."""
        if self.state == "loading" and not self._why:
            return unavailable("the model is being loaded: try again in a moment")
        if self.state == "stopped":
            return unavailable("the server is stopping")
        wait = max(1.0, self._retry_at - time.monotonic())
        return unavailable(f"the engine is being restarted ({self._why}): try again in a moment", wait)

    def _send(self, message: ToWorker) -> None:
        if self._process:
            self._process.send(message)

    async def hears(self, seconds: float) -> bool:
        """Returns whether the worker answers within `seconds`."""
        if self.state != "ready":
            return False
        number = next(self._numbers)
        heard = self._heard[number] = asyncio.Event()
        self._send(Ping(number))
        try:
            await asyncio.wait_for(heard.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            del self._heard[number]
        return True

    # -- the worker's life

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
            self._mourn(code, pause)
            if self._load.settings.rpc:
                await self._until_machines_are_there(self._load.settings.rpc)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 4, LONGEST_PAUSE_S)

    async def _until_machines_are_there(self, machines: tuple[str, ...]) -> None:
        """Waits for lost machines; other errors are retried every second."""
        told: list[str] = []
        while gone := await asyncio.to_thread(absent, machines, MACHINE_S):
            if gone != told:
                self._why = f"waiting for the machine of --rpc at {', '.join(gone)}"
                self._tell(self._why)
                told = gone
            await asyncio.sleep(MACHINE_S)
        await asyncio.sleep(MACHINE_S)

    def _give_up(self, code: int) -> bool:
        """Returns whether to stop retrying. A pair that never was ready gives way to the one before."""
        if self._good is None:  # the very first
            if not self.failed:
                return False
            self._become("stopped")
            self.settled.set()
            return True
        if not self.failed:
            self.failed = LoadFailed(self._cause(code), 1)
        self._load = self._good
        self._become("unloaded")
        return True

    async def _watch(self, process: WorkerProcess) -> None:
        """Kills a worker that stops answering, once it has been ready."""
        silent = 0
        while True:
            await asyncio.sleep(self._ping_s)
            if self.state != "ready":
                continue
            silent = 0 if await self.hears(self._ping_s) else silent + 1
            if silent >= SILENT_PINGS:  # counted, not timed: our own process may have been stopped meanwhile
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
            self._process = process = await new_worker()
        except OSError as error:  # such as no memory for a process: that passes
            self._killed_for = f"its process cannot be started ({error.strerror or error})"
            return 1
        self.pid, self.lines = process.pid, process.lines
        watching = asyncio.create_task(self._watch(process))
        try:
            settings = replace(self._load.settings, plans_failed=self._plans_failed)
            process.send(replace(self._load, settings=settings))
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
            for happening in message.happenings:
                said = from_worker(happening) if isinstance(happening, Refused) else happening
                at = message.began if isinstance(said, Started) else message.at
                self._hand_on(happening.id, said, at)
                if isinstance(said, Emitted) and said.round.notice and not self._noticed:
                    self._noticed = True
                    self._tell(said.round.notice)
        elif isinstance(message, Accepted | Tokenized | Spelt):
            self._hand_on(message.id, message, 0.0)
        elif isinstance(message, Refused):
            self._hand_on(message.id, from_worker(message), 0.0)
        elif isinstance(message, Pong):
            if heard := self._heard.get(message.number):
                heard.set()
        elif isinstance(message, LoadFailed):
            self.failed = message
        elif isinstance(message, Loading):
            self._loading = message
            self._moved()
        elif isinstance(message, Loaded):
            if self._why:
                self._tell("the engine is running again")
            self._why, self._noticed = "", False
            self.about, self._good, self._settled = message, self._load, True
            self._become("ready")
            self.settled.set()

    def _hand_on(self, id: str, said: Said, at: float) -> None:
        listener = self._listeners.get(id)
        if not listener:
            return
        if isinstance(said, Refusal) or (isinstance(said, Emitted) and said.round.finish):
            del self._listeners[id]
            self._moved()
        listener(id, said, at)

    def _mourn(self, code: int, pause: float) -> None:
        """Tells all requests that the worker is gone, and why."""
        self.restarts += 1
        self._retry_at = time.monotonic() + pause
        self._why = self.failed.message if self.failed else self._cause(code)
        self._become("down")
        last = "".join(f"\n  | {line}" for line in telling(self.lines)[-LAST_LINES:])
        again = "it is being restarted"
        if card_was_full(code, "\n".join(self.lines)) and self._load.settings.n_gpu_layers < 0:
            self._plans_failed += 1
            again += " with less on the graphics card"
        self._tell(f"{self._why}; {again}" + (f"; its last lines:{last}" if last else ""))
        self.dismiss(
            Refusal(
                503,
                f"the engine stopped while answering: {self._why}",
                type="server_error",
                code="engine_died",
                retry_s=1,
            )
        )
