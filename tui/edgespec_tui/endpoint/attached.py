"""The app's endpoint over `edgespec.client`, whose calls block: each gets a thread.

Threads are daemons, so that a server which does not answer keeps nobody from ending the program. An answer
is cancelled by shutting its connection, which its thread sees at once.
"""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from edgespec.client.answer import AnswerOptions, Ended, EngineState, Info
from edgespec.client.client import AnswerStream, Client
from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError, EngineDiedError
from edgespec.local.attach import Attached, OnProgress, Progress, WantedEngine, attach, connect
from edgespec_models.shelf.store import EMBEDDED
from edgespec_tui.endpoint.endpoint import Message, StreamEvent
from edgespec_tui.endpoint.media import content_of

_T = TypeVar("_T")
DYING_S = 1.0
LOOK_AGAIN_S = 0.02
LOOK_S = 0.5
COMING_BACK = "; it is being started again"
Cancelled = Callable[[], bool]
Opening = Callable[[OnProgress, Cancelled], Attached]


def connecting(url: str, key: str | None, model: str = "") -> Opening:
    """Returns how to reach a server by its address. Raises SettingError for an invalid address.

    model: which of its models answers; "" is its only one.
    """
    client = Client.at(url, key)
    client.model = model or None

    def open_(_on_progress: OnProgress, _cancelled: Cancelled) -> Attached:
        try:
            return connect(client)
        except EndpointError as error:
            if error.status not in (401, 403):
                raise
            problem = f"refuses the API key ({error}): give one" if key else "wants an API key: give it"
            how = "with EDGESPEC_API_KEY, --api-key-file, or --api-key - to be asked for it"
            raise EndpointError(f"{client.where} {problem} {how}", status=error.status) from None

    return open_


class Begun:
    """An opening in progress: an engine loads while the app is still being imported.

    The first call waits for it; later ones open anew. A program that ends before takes the
    engine with it.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening, self._given_up = opening, threading.Event()
        self._progress: queue.SimpleQueue[Progress] = queue.SimpleQueue()
        self._begun: Future[Attached] | None = _begun(
            lambda: opening(self._progress.put, self._given_up.is_set)
        )

    def __call__(self, on_progress: OnProgress, cancelled: Cancelled) -> Attached:
        begun, self._begun = self._begun, None
        if begun is None:
            return self._opening(on_progress, cancelled)
        while not begun.done():
            if cancelled():
                self._given_up.set()
            with suppress(queue.Empty):
                on_progress(self._progress.get(timeout=LOOK_AGAIN_S))
        return begun.result()


class AttachedEndpoint:
    """An `Endpoint`. on_progress: called, on the event loop, with what happens before there is an engine."""

    def __init__(
        self,
        opening: Opening,
        *,
        wanted: WantedEngine | None = None,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        """wanted: how other pairs are loaded (`use`)."""
        self._opening, self._wanted, self.on_progress = opening, wanted or WantedEngine(), on_progress
        self._attached: Attached | None = None

    async def start(self) -> Info:
        """Prepares it; raises EndpointError, EngineDiedError."""
        return await self._open(self._opening)

    async def restart(self) -> Info:
        """Attaches or starts anew, if the engine is gone."""
        return await self._open(self._attached.again if self._attached else self._opening)

    async def use(self, target: Path, draft: Path | None) -> Info:
        """Releases this engine and continues with one for these files, loaded as the first one was."""
        await self.close()
        self._opening = partial(attach, replace(self._wanted, target=target, draft=draft))
        return await self.start()

    async def models(self) -> tuple[Info, ...]:
        """Returns what the server can answer with; raises EndpointError."""
        return await in_thread(self._ready().client.models)

    async def choose(self, model: str) -> Info:
        """Lets a model of the server answer from now on; raises EndpointError."""
        attached = self._ready()
        attached.client.model = model
        attached.info = await in_thread(attached.client.info)
        return attached.info

    async def _open(self, opening: Opening) -> Info:
        loop = asyncio.get_running_loop()
        given_up = threading.Event()

        def tell(progress: Progress) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.on_progress, progress)

        def open_() -> Attached:
            attached = opening(tell, given_up.is_set)
            if given_up.is_set():  # nobody waits for it any more
                attached.close()
            return attached

        try:
            self._attached = await in_thread(open_)
        except asyncio.CancelledError:
            given_up.set()
            raise
        info = self._attached.info
        return replace(info, model=EMBEDDED if info.embedded else info.model, lent=self._attached.lent)

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yields rounds, and last the end; closing the generator cancels the answer in the engine."""
        attached = self._ready()
        answer = attached.client.chat(_as_json(messages), options)
        events: asyncio.Queue[StreamEvent | EdgeSpecError] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(event: StreamEvent | EdgeSpecError) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(events.put_nowait, event)

        threading.Thread(target=_listen, args=(answer, attached, put), daemon=True).start()
        try:
            while True:
                event = await events.get()
                if isinstance(event, EdgeSpecError):
                    raise event
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            answer.cancel()

    async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = lambda _: None) -> int | None:
        """Returns how many tokens the prompt of these messages has; None if the endpoint cannot say.

        An engine that another program had lent us, and took with it, is replaced by one of our own. One that
        its server loads again is waited for (`Patience`), and on_wait is called.
        """
        patience = Patience(asyncio.get_running_loop().time)
        while True:
            try:
                return await self._counted(messages)
            except EndpointError as error:
                if error.status != 503 or error.retry_s is None:
                    raise
                engine = await in_thread(self._ready().client.engine)
                if not patience.lasts(engine):
                    raise
                on_wait(awaited(engine))
                await asyncio.sleep(min(error.retry_s, LOOK_S))

    async def _counted(self, messages: Sequence[Message]) -> int | None:
        def count() -> int | None:
            attached = self._ready()
            with _explained(attached):
                return attached.client.count(_as_json(messages))

        try:
            return await in_thread(count)
        except (EndpointLostError, EngineDiedError):
            if not self._ready().lent:
                raise
        await self.restart()
        return await in_thread(count)

    async def close(self) -> None:
        """Releases it; a server that was started for this app ends."""
        attached, self._attached = self._attached, None
        if attached is not None:
            await in_thread(attached.close)

    def _ready(self) -> Attached:
        if self._attached is None:
            raise EndpointError("there is no engine yet: wait until it is loaded, or start it again")
        return self._attached


async def in_thread(work: Callable[[], _T]) -> _T:
    """Does blocking work in a thread of its own; cancelling waits for nothing."""
    return await asyncio.wrap_future(_begun(work))


def _begun(work: Callable[[], _T]) -> Future[_T]:
    """Begins blocking work in a thread of its own that keeps nobody from ending the program."""
    future: Future[_T] = Future()
    future.set_running_or_notify_cancel()  # cancelling it from now on changes nothing

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # it belongs to whoever waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _listen(
    answer: AnswerStream, attached: Attached, put: Callable[[StreamEvent | EdgeSpecError], None]
) -> None:
    """Passes on the events of an answer; in a thread of its own."""
    try:
        with _explained(attached):
            for event in answer:
                put(event)
    except EdgeSpecError as error:
        put(error)
    except Exception as error:  # the answer must end, whatever has come
        put(EndpointError(f"an answer of {attached.client.where} cannot be read ({error!r}): ask again"))


@contextmanager
def _explained(attached: Attached) -> Iterator[None]:
    """Raises, for a lost connection, what has ended the engine; a server that reports it restarts it."""
    try:
        yield
    except EngineDiedError as error:
        raise EndpointError(f"{error}{COMING_BACK}", status=503, retry_s=LOOK_S) from None
    except EndpointLostError:
        end = time.monotonic() + (DYING_S if attached.private else 0.0)
        while (reason := attached.fault()) is None and time.monotonic() < end:
            time.sleep(0.02)  # connections close before the process is gone
        if reason is None:
            raise
        raise EngineDiedError(reason) from None


def _as_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {
            "role": message.role,
            "content": content_of(message.text, message.media, message.digests),
            **message.extra,
        }
        for message in messages
    ]


AGAIN_S = 30.0  # how long a server may take to begin
STALLED_S = 120.0  # for the next hundredth: large models come from slow disks


class Patience:
    """Decides whether to wait on. An engine that dies again each time it is loaded is not waited for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: returns seconds."""
        self._clock, self._furthest = clock, -1.0
        self._until = clock() + AGAIN_S

    def lasts(self, engine: EngineState | None) -> bool:
        """Returns whether to wait on. engine: its state now; None if that is unknown."""
        if engine is not None and engine.state == "loading" and engine.progress > self._furthest:
            self._furthest = engine.progress
            self._until = self._clock() + STALLED_S
        return self._clock() < self._until


def awaited(engine: EngineState | None) -> Progress:
    """Returns what is waited for, in words."""
    if engine is not None and engine.state == "loading":
        model = "the embedded pair" if engine.model == EMBEDDED else engine.model
        return Progress("loading", f"waiting for the engine: it is loading {model}", engine.progress)
    return Progress("waiting", "waiting for the engine: it stopped, and is being started again")
