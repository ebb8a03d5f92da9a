"""How a server ends: running answers may finish, but nobody makes it wait.

Told to end, it waits for answers as long as its engine is heard, but for nobody who has sent half a request
or does not read. Told twice, it ends all answers with an error and goes.
"""

import asyncio
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn

from edgespec.commands.serve.connections import Connection
from edgespec.server.logs import say
from edgespec.server.refusal import Refusal
from edgespec.server.supervisor import Supervisor

HALF_S = 1.0  # how long clients have for the rest of a request, once the server ends
HEARD_S, SILENT_PINGS = 1.0, 2  # how long the engine may take to answer a ping meanwhile, and how often
QUEUE = 512  # connections that wait to be accepted
STOPPING = Refusal(503, "the server is stopping", type="server_error", code="server_ended")
LAST_WORDS_S = 0.5  # how long streams have to send their error


class StoppableServer(uvicorn.Server):
    """uvicorn, except that we decide how it ends, and the exit code for a signal."""

    def __init__(self, config: uvicorn.Config, worker: Supervisor) -> None:
        super().__init__(config)
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self._told_again = asyncio.Event()
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
            self._loop.call_soon_threadsafe(self._told_again.set)
        elif self.server_state.tasks:
            say("stopping: running answers may finish (press Ctrl+C again to stop now)")
        self._loop.call_soon_threadsafe(self._told.set)

    def _handle_once(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self.handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUE)  # they were given as many places as are accepted at once

    async def end_in_time(self) -> None:
        """Waits until the server is told to end, and sees to it that it does."""
        await self._told.wait()
        self._worker.close(STOPPING)
        patience = asyncio.create_task(self._end_what_hangs())
        try:
            await self._told_again.wait()
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
            silent = 0 if not self._worker.requests or await self._worker.hears(HEARD_S) else silent + 1
            if silent == SILENT_PINGS:
                sentence = "the server is stopping, and its engine does not respond"
                self._worker.dismiss(Refusal(503, sentence, type="server_error", code="server_ended"))
            await asyncio.sleep(0.1)
