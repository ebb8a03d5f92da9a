"""The HTTP server: how long a client may be silent, how many there may be, and how it ends.

Asked to end, it waits for running answers as long as its engine responds, but for nobody who has sent half a
request or does not read. Asked twice, it ends all answers with an error and goes.
"""

import asyncio
import logging
import signal
import socket
import time
from contextlib import suppress
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.server.logs import say
from edgespec.server.refusal import Refusal
from edgespec.server.supervisor import Supervisor

HEAD_S = 30.0  # how long a client may take for the head of its first request
READ_S = 2.0  # how long a client may leave what it is sent unread, once the server ends
AT_ONCE = 16  # connections that are accepted at once
SPARE = 64  # file descriptors for everything else
WANTED = 4096  # file descriptors, where the system allows so many
WITHOUT_LIMITS = 400  # connections, where the system does not say what it allows
HALF_S = 1.0  # how long clients have for the rest of a request, once the server ends
RESPONSE_S, SILENT_PINGS = 1.0, 2  # how long the engine may take to answer a ping at the end, and how often
QUEUE = 512  # connections that wait to be accepted
STOPPING = Refusal(503, "the server is stopping", type="server_error", code="server_ended")
LAST_WORDS_S = 0.5  # how long streams have to send their error


class Connection(H11Protocol):
    """HTTP/1.1; a client that is silent at first, or sends half of a head, loses its connection.

    If there are `most` connections, a new one takes the place of the one that has waited longest for a
    request: without file descriptors, nobody could connect, not even to ask for `/health`.
    """

    most, head_s = WITHOUT_LIMITS, HEAD_S
    _silence: asyncio.TimerHandle | None = None  # until a head is whole
    _since = 0.0
    _unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        self._wait_for_head()
        if len(self.connections) > self.most:
            self._make_room()

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        waiting = [one for one in others if one.waits_for_request and not one.transport.is_closing()]
        victim = min(waiting, key=lambda one: one._since, default=self)
        victim.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.waits_for_request:  # what came is not a whole head yet
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def waits_for_request(self) -> bool:
        """True before a request and between two."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def lags(self) -> bool:
        """True if its client has sent half a request, or does not read."""
        unread = self._unread_since is not None and time.monotonic() - self._unread_since > READ_S
        return unread or self.transport.is_closing() or (self.cycle is not None and self.cycle.more_body)

    def pause_writing(self) -> None:
        self._unread_since = time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def drop(self) -> None:
        """Ends it, whatever is still to be sent."""
        if self.transport.is_closing() or self._unread_since is not None:
            self.transport.abort()
        else:
            self.transport.close()

    def _wait_for_head(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(self.head_s, self._end_silence)

    def _stop_waiting(self) -> None:
        if self._silence:
            self._silence.cancel()
            self._silence = None

    def _end_silence(self) -> None:
        self._silence = None
        if self.waits_for_request:
            self.transport.close()


def room_for_connections() -> int:
    """Returns how many connections the system's limit of file descriptors allows; raises it if it is low."""
    try:
        import resource
    except ImportError:  # Windows
        return WITHOUT_LIMITS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptors_wanted(soft, None if hard == resource.RLIM_INFINITY else hard)
    with suppress(ValueError, OSError):
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return connections(soft)


def descriptors_wanted(soft: int, hard: int | None) -> int:
    """Returns how many file descriptors to ask for. hard: the most that there may be; None without one."""
    return max(soft, WANTED if hard is None else min(WANTED, hard))


def connections(descriptors: int) -> int:
    """Returns how many connections so many file descriptors allow."""
    return max(AT_ONCE, min(descriptors, WANTED) - SPARE - AT_ONCE)


class StoppableServer(uvicorn.Server):
    """uvicorn, except that we decide how it ends, and the exit code for a signal."""

    def __init__(self, config: uvicorn.Config, worker: Supervisor) -> None:
        super().__init__(config)
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn has them later, and raises them at its end
            signal.signal(number, self._handle_once)

    @property
    def signals(self) -> list[int]:
        return self._captured_signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit
        self._captured_signals.append(sig)
        self.should_exit = True
        if again:
            self._loop.call_soon_threadsafe(self._stopping_now.set)
        elif self.server_state.tasks:
            say("stopping: running answers may finish (press Ctrl+C again to stop now)")
        self._loop.call_soon_threadsafe(self._stopping.set)

    def _handle_once(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self.handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # they were given as many places as are accepted at once

    async def end_in_time(self) -> None:
        """Waits until the server is asked to end, and sees to it that it does."""
        await self._stopping.wait()
        self._worker.close(STOPPING)
        patience = asyncio.create_task(self._end_what_hangs())
        try:
            await self._stopping_now.wait()
        finally:
            patience.cancel()
        await self.end_now(STOPPING)

    async def end_now(self, reason: Refusal, seconds: float = LAST_WORDS_S) -> None:
        """Ends all answers with a reason, which clients have some time to read."""
        self._worker.dismiss(reason)
        self.should_exit = True
        await asyncio.sleep(seconds)
        logging.disable(logging.CRITICAL)  # what is cut off now is no fault
        self.force_exit = True
        for connection in tuple(self.server_state.connections):
            if connection.transport:
                connection.transport.abort()  # since Python 3.12, a server that closes waits for all of them

    async def _end_what_hangs(self) -> None:
        began, silent = time.monotonic(), 0
        while True:
            for connection in tuple(self.server_state.connections):
                late = time.monotonic() - began > HALF_S
                if late and isinstance(connection, Connection) and connection.lags:
                    connection.drop()
            silent = 0 if not self._worker.requests or await self._worker.responds(RESPONSE_S) else silent + 1
            if silent == SILENT_PINGS:
                sentence = "the server is stopping, and its engine does not respond"
                self._worker.dismiss(Refusal(503, sentence, type="server_error", code="server_ended"))
            await asyncio.sleep(0.1)
