"""The web process from its first request to its last."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from sse_starlette.sse import AppStatus
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.chat.renderer import RENDERER
from edgespec.engine.messages import Load
from edgespec.server.announcing import Announcer, first_state
from edgespec.server.app import make_app
from edgespec.server.logs import say
from edgespec.server.owner import Owner
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import Refusal
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.system.isolate import INTERRUPTED

HEAD_S = 30.0  # how long a client may take for the head of its first request
LARGEST_HEAD = 64 * 1024
LAST_WORDS_S = 2.0  # how long programs attached to a private engine have to read that it ends


class _Protocol(H11Protocol):
    """HTTP/1.1; a client that is silent at first, or sends half of a head, loses its connection."""

    _silence: asyncio.TimerHandle | None = None  # until a head is whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._between_requests():  # what came is not a whole head yet
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._silence is None:
            self._silence = self.loop.call_later(HEAD_S, self._end_silence)

    def _stop_waiting(self) -> None:
        if self._silence:
            self._silence.cancel()
            self._silence = None

    def _end_silence(self) -> None:
        self._silence = None
        if self._between_requests():
            self.transport.close()


class _Server(uvicorn.Server):
    """uvicorn, except that we decide the exit code for a signal."""

    @property
    def signals(self) -> list[int]:
        return self._captured_signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit
        super().handle_exit(sig, frame)
        if again:
            self.force_exit = True
            logging.disable(logging.CRITICAL)  # what is cut off now is no fault
        elif self.server_state.tasks:
            say("stopping: running answers may finish (press Ctrl+C again to stop now)")


async def serve(
    worker: Supervisor,
    listeners: list[socket.socket],
    load: Load,
    settings: ServerSettings,
    pairs: Pairs,
    owner: Owner | None,
    lock: Any,
) -> int:
    """Answers requests until it is told to end, and ends the worker; returns the exit code.

    lock: under which the engine is started, if we have it.
    """
    AppStatus.enable_automatic_graceful_drain = False  # else every stream is cut when we are told to end
    host, port = listeners[0].getsockname()[:2]
    state = first_state(
        load,
        pairs,
        host=host,
        port=port,
        pid=os.getpid(),
        private=owner is not None,
        template=settings.chat_template,
    )
    how = uvicorn.Config(
        make_app(worker, settings, state, pairs),
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    server = _Server(how)
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises these again at its end
        signal.signal(number, lambda *_: None)
    RENDERER.warm()
    announcer = Announcer(worker, pairs, state, owner, lock)
    serving = asyncio.create_task(server.serve(sockets=listeners))
    watching = [
        asyncio.create_task(announcer.follow()),
        asyncio.create_task(_end_unless_loaded(worker, server)),
    ]
    if owner:
        watching.append(asyncio.create_task(_end_with(owner, worker, server)))
    try:
        await serving
    finally:
        for task in watching:
            task.cancel()
        announcer.close()
        RENDERER.close()  # threads that wait for it would delay the end
        await worker.stop()
    if worker.failed and not worker.about:
        say(worker.failed.message)
        if owner:
            owner.tell("failed", message=worker.failed.message)
        return worker.failed.exit_code
    return INTERRUPTED if signal.SIGINT in server.signals else 0


async def _end_unless_loaded(worker: Supervisor, server: _Server) -> None:
    """Ends the server if what it was started with cannot be loaded."""
    await worker.settled.wait()
    server.should_exit = server.should_exit or not worker.about


async def _end_with(owner: Owner, worker: Supervisor, server: _Server) -> None:
    """Ends the server when its owner has gone; requests in progress learn why."""
    await owner.gone()
    sentence = "the program that started this engine has ended, so the engine ended too"
    worker.dismiss(Refusal(503, sentence, type="unavailable_error", code="server_ended"))
    server.should_exit = True
    await asyncio.sleep(LAST_WORDS_S)
    server.force_exit = True
