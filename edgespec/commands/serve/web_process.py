"""The web process from its first request to its last."""

import asyncio
import gc
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from edgespec.chat.template import RENDERER
from edgespec.client.state_file import ServerState, digest
from edgespec.commands.serve.http_server import AT_ONCE, Connection, StoppableServer, room_for_connections
from edgespec.commands.serve.listening import refuse_strangers
from edgespec.commands.serve.settings_in_force import SettingsInForce
from edgespec.errors import EdgeSpecError
from edgespec.server.announcing import Announcer, ParentProcess
from edgespec.server.app import WebApp, make_app
from edgespec.server.embeddings import Embeddings, Reranker
from edgespec.server.logs import say
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import Refusal
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.system.isolate import INTERRUPTED

LARGEST_HEAD = 64 * 1024
LAST_WORDS_S = 2.0  # how long programs attached to a private engine have to read that it ends
RESPONDS_S = 10.0  # how long the engine may take to answer: it may be in the middle of a long evaluation
LOADING_S = 10.0  # between two words that it still loads
LONGEST_S = 3600.0  # between two signs of life


async def serve(
    worker: Supervisor,
    listeners: list[socket.socket],
    settings: ServerSettings,
    pairs: Pairs,
    parent: ParentProcess | None,
    lock: Any,
    file: SettingsInForce | None,
) -> int:
    """Answers requests until it is asked to end, and ends the worker; returns the exit code.

    lock: under which the engine is started, if we have it. file: its settings, to be read again when asked.
    """
    AppStatus.enable_automatic_graceful_drain = False  # else every stream is cut when we are asked to end
    Connection.most = room_for_connections()
    host, port = listeners[0].getsockname()[:2]
    template = digest(settings.chat_template) if settings.chat_template else ""
    state = ServerState(host, port, os.getpid(), "", private=parent is not None, template=template)
    embeddings, reranker = Embeddings(settings.embed), Reranker(settings.rerank)
    for own in (embeddings, reranker):
        own.keep(settings.idle_s)
    app = make_app(worker, settings, state, pairs, embeddings, reranker)
    server = StoppableServer(_how(app), worker)
    if file and file.can_be_asked():
        renew = partial(_renew, file, app, worker, listeners)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, renew)
    worker.unload_after(settings.idle_s)  # not before: it would be unloaded before anybody could use it
    gc.collect()
    gc.freeze()  # or what is there for good is looked through again during requests, for a tenth of a second
    RENDERER.warm()
    announcer = Announcer(worker, pairs, state, parent, lock)
    serving = asyncio.create_task(server.serve(sockets=listeners))
    watching = [
        asyncio.create_task(announcer.follow()),
        asyncio.create_task(_end_unless_loaded(worker, server)),
        asyncio.create_task(server.end_in_time()),
    ]
    watching.append(asyncio.create_task(_end_with(parent, server) if parent else notify_systemd(worker)))
    try:
        await serving
    finally:
        tell("STOPPING=1")
        for task in watching:
            task.cancel()
        announcer.close()
        RENDERER.close()  # threads that wait for it would delay the end
        embeddings.close()  # the same
        reranker.close()
        await worker.stop()
    return _outcome(worker, parent, server)


def _outcome(worker: Supervisor, parent: ParentProcess | None, server: StoppableServer) -> int:
    """Says why nothing was ever loaded, if so; returns the exit code."""
    failed = worker.current.failed
    if failed and not worker.current.about:
        say(failed.message)
        if parent:
            parent.tell("failed", message=failed.message)
        return failed.exit_code
    return INTERRUPTED if signal.SIGINT in server.signals else 0


def _renew(
    file: SettingsInForce, app: WebApp, worker: Supervisor, listeners: Sequence[socket.socket]
) -> None:
    """Reads the settings file again; if anything is wrong with it, all stays as it is."""
    if worker.current.about:
        tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
    try:
        settings, changed = file.read_again()
        for listener in listeners:
            refuse_strangers(listener, settings)
        app.renew(settings)
        say(changed)
    except EdgeSpecError as error:
        say(f"the settings stay as they are: {error}")
    finally:
        if worker.current.about:
            tell("READY=1")


def _how(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        backlog=AT_ONCE,  # asyncio accepts so many at once
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )


async def _end_unless_loaded(worker: Supervisor, server: StoppableServer) -> None:
    """Ends the server if what it was started with cannot be loaded."""
    await worker.settled.wait()
    server.should_exit = server.should_exit or not worker.current.about


async def _end_with(parent: ParentProcess, server: StoppableServer) -> None:
    """Ends the server when its parent has gone; requests in progress learn why."""
    await parent.gone()
    sentence = "the program that started this engine has ended, so the engine ended too"
    reason = Refusal(503, sentence, code="server_ended")
    await server.end_now(reason, LAST_WORDS_S)


def tell(*words: str) -> None:
    """Sends words such as READY=1 to the service manager; does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or os.name != "posix":
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way, suppress(OSError):
        way.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        way.send("\n".join(words).encode())


def between_signs() -> float | None:
    """Returns the seconds between two signs of life: half of what the manager waits; None if it does not."""
    wanted, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not wanted.isdecimal() or process not in ("", str(os.getpid())) or not int(wanted):
        return None
    return min(int(wanted) / 2e6, LONGEST_S)


async def notify_systemd(worker: Supervisor) -> None:
    """Notifies systemd once the first model is loaded, and then while the engine responds, until cancelled.

    While a model loads, or none is loaded, the engine need not respond: that is the supervisor's care.
    """
    settled = asyncio.ensure_future(worker.settled.wait())
    while not (await asyncio.wait({settled}, timeout=LOADING_S))[0]:
        tell(f"EXTEND_TIMEOUT_USEC={round(4e6 * LOADING_S)}")  # large models take longer than it waits
    if worker.current.about is None:
        return
    tell("READY=1", f"MAINPID={os.getpid()}")
    pause = between_signs()
    while pause is not None:
        if worker.current.state != "ready" or await worker.responds(min(RESPONDS_S, pause)):
            tell("WATCHDOG=1")
        await asyncio.sleep(pause)
