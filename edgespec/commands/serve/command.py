"""`edgespec serve`: from flags to a server that listens, and its end."""

from __future__ import annotations

import argparse
import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn
from sse_starlette.sse import AppStatus
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgespec.chat.renderer import RENDERER
from edgespec.engine.messages import DrafterChoice, Load
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.pairs.files import chat_template, pair_files, pair_settings
from edgespec.sampling.sampler import Sampling
from edgespec.server.announcing import Announcer, first_state
from edgespec.server.app import make_app
from edgespec.server.logs import say, set_up
from edgespec.server.owner import Owner
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import Refusal
from edgespec.server.settings import ServerSettings, Unsaid
from edgespec.server.supervisor import Supervisor
from edgespec.system import config
from edgespec.system.isolate import INTERRUPTED
from edgespec_models.shelf.store import Store

HEAD_S = 30.0  # how long a client may take for the head of its first request
LARGEST_HEAD = 64 * 1024
LAST_WORDS_S = 2.0  # what who is attached to a private engine has to read that it ends
SLOTS = 4  # where nobody says


def serve(arguments: argparse.Namespace) -> int:
    """Listens, loads and answers until it is told to end; returns the exit code."""
    owner = Owner() if arguments.owned else None
    if arguments.slots is None:
        arguments.slots = 1 if arguments.reproducible else SLOTS
    settings = _settings(arguments)
    if owner:
        settings = replace(settings, keys=(*settings.keys, owner.key))
    load = _load(arguments)
    wants_draft = not arguments.no_draft and arguments.drafter not in ("lookup", "none")
    pairs = Pairs(load, Store(config.data_folder()), alias=settings.alias, drafts=wants_draft)
    with ExitStack() as opened:
        listeners = _listening(arguments.host, arguments.port, opened)
        for listener in listeners:
            _refuse_strangers(listener, settings)
        return asyncio.run(_serve(listeners, load, settings, pairs, owner, arguments.config))


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    """Returns the web process's settings; raises SettingError."""
    for flag, value, low, high in (
        ("--port", arguments.port, 0, 65535),
        ("--slots", arguments.slots, 1, 32),
        ("--queue", arguments.queue, 0, 100_000),
        ("--cache-ram", arguments.cache_ram or 0, 0, 2**24),
        ("--max-body", arguments.max_body, 1, 4096),
        ("--max-seconds", arguments.max_seconds, 1, 10**7),
        ("--canary", arguments.canary, 0, 1),
        ("--idle-unload", arguments.idle_unload, 0, 10**6),
    ):
        if not low <= value <= high:
            raise SettingError(f"{flag} is {value}: it must be from {low} to {high}")
    return ServerSettings(
        alias=arguments.alias,
        keys=_keys(arguments),
        chat_template=chat_template(arguments),
        hosts=frozenset([*arguments.allowed_host, *_addresses(arguments.host)]),
        origins=tuple(origin.rstrip("/") for origin in arguments.cors_origin),
        max_body=arguments.max_body * 2**20,
        request_s=arguments.max_seconds,
        canary=arguments.canary,
        unsaid=_unsaid(arguments),
        verbose=arguments.verbose,
        no_slots=arguments.no_slots,
        no_metrics=arguments.no_metrics,
        log=arguments.log,
        idle_s=arguments.idle_unload * 60 or None,
    )


def _unsaid(arguments: argparse.Namespace) -> Unsaid:
    """Returns what holds where a request says nothing; raises SettingError."""
    longest = None if arguments.n == -1 else arguments.n  # as llama.cpp writes "what fits"
    if longest is not None and not 1 <= longest <= 2**31 - 1:
        raise SettingError(f"-n is {longest}: it must be 1 or more, or -1 for what fits")
    if arguments.seed is not None and not -(2**63) <= arguments.seed < 2**64:
        raise SettingError(f"--seed is {arguments.seed}: it must have 64 bits at most")
    sampling = {}
    if arguments.temperature is not None:
        Sampling(temperature=arguments.temperature)
        sampling["general.sampling.temp"] = str(arguments.temperature)
    if arguments.reproducible and (arguments.slots > 1 or arguments.drafter != "auto"):
        flag = f"--slots {arguments.slots}" if arguments.slots > 1 else f"--drafter {arguments.drafter}"
        raise SettingError(f"--reproducible answers one at a time and without drafts: leave out {flag}")
    plain = arguments.no_draft or arguments.reproducible
    drafter: DrafterChoice = "none" if plain else arguments.drafter
    thinking = {"auto": None, "on": True, "off": False}[arguments.reasoning]
    return Unsaid(sampling, arguments.seed, longest, drafter, thinking, arguments.reproducible)


def _keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the keys that open; raises SettingError where a file of keys holds none."""
    given = [arguments.api_key, os.environ.get("EDGESPEC_API_KEY")]
    if arguments.api_key == "":
        raise SettingError("--api-key is empty: give a key, or leave it out")
    if arguments.api_key_file:
        lines = _text("--api-key-file", arguments.api_key_file).splitlines()
        keys = [line.strip() for line in lines if line.strip()]
        if not keys:
            raise SettingError(f"--api-key-file {arguments.api_key_file} holds no key: write one into it")
        given += keys
    if not all(key.isascii() and key.isprintable() for key in given if key):
        raise SettingError("an API key has characters that HTTP cannot carry: use letters, digits and signs")
    return tuple(key for key in given if key)


def _text(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(f"{flag} {path} cannot be read: {reason}") from None


def _load(arguments: argparse.Namespace) -> Load:
    """Returns what the worker has to load; raises SettingError or what the files are lacking."""
    target, draft = pair_files(arguments)
    for file in filter(None, (target, draft)):
        if not file.exists():
            raise EdgeSpecError(f"there is no file {file}: check the path")
    return Load(
        target=str(target),
        draft=str(draft) if draft else None,
        settings=pair_settings(
            arguments,
            slots=arguments.slots,
            cache_tokens=arguments.cache_tokens,
            cache_ram=None if arguments.cache_ram is None else arguments.cache_ram * 2**20,
        ),
        queue=arguments.queue,
    )


def _addresses(host: str) -> list[str]:
    """Returns the addresses to listen on; raises SettingError for none."""
    found = [address.strip() for address in host.split(",")]
    if not all(found):
        raise SettingError(f"--host {host!r} has an empty address: give one, or several with commas between")
    return found


def _listening(hosts: str, port: int, opened: ExitStack) -> list[socket.socket]:
    """Returns a socket for each address; port 0 is one free port for all. Raises SettingError."""
    listeners: list[socket.socket] = []
    for host in _addresses(hosts):
        listeners.append(opened.enter_context(_listener(host, port)))
        port = listeners[0].getsockname()[1]
    return listeners


def _listener(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; raises SettingError where the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        raise SettingError(f"--host {host} is not an address of this machine: 127.0.0.1 is itself") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere it would let two programs share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = "another program listens there: end it, or choose another with --port (0: any free one)"
        elif error.errno in (errno.EACCES, errno.EPERM):
            reason = "this port is not for everyone: choose one above 1023 with --port"
        else:
            reason = f"{error.strerror}: 127.0.0.1 is this machine itself, 0.0.0.0 all of its addresses"
        raise EdgeSpecError(f"cannot listen on {host}:{port}: {reason}") from None
    return listener


def _refuse_strangers(listener: socket.socket, settings: ServerSettings) -> None:
    """Raises SettingError where others could reach an endpoint that asks for no key."""
    address = listener.getsockname()[0]
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback and not settings.keys:
        raise SettingError(
            f"{address} can be reached from other machines, and there is no API key: give one with "
            "--api-key-file or EDGESPEC_API_KEY, or listen on 127.0.0.1"
        )


class _Protocol(H11Protocol):
    """HTTP/1.1; a client that says nothing at first, or half of a head, does not keep its connection."""

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
    """uvicorn, that leaves what a signal means for the exit code to us."""

    @property
    def signals(self) -> list[int]:
        return self._captured_signals

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        again = self.should_exit
        super().handle_exit(sig, frame)
        if again:
            self.force_exit = True
            logging.disable(logging.CRITICAL)  # what is cut off now is not a fault
        elif self.server_state.tasks:
            say("ending: running answers may finish (Ctrl+C again does not wait)")


async def _serve(
    listeners: list[socket.socket],
    load: Load,
    settings: ServerSettings,
    pairs: Pairs,
    owner: Owner | None,
    settings_file: str | None,
) -> int:
    AppStatus.enable_automatic_graceful_drain = False  # else every stream is cut when we are told to end
    set_up(settings.log)
    if settings_file:
        say(f"settings are those of {settings_file}")
    worker = Supervisor(load, tell=say, idle_s=settings.idle_s)
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
    for number in (signal.SIGINT, signal.SIGTERM):  # what uvicorn raises again at its end does nothing then
        signal.signal(number, lambda *_: None)
    worker.start()
    RENDERER.warm()
    announcer = Announcer(worker, pairs, state, owner)
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
        RENDERER.close()  # threads that wait for it would hold up the end
        await worker.stop()
    if worker.failed and not worker.about:
        say(worker.failed.message)
        if owner:
            owner.tell("failed", message=worker.failed.message)
        return worker.failed.exit_code
    return INTERRUPTED if signal.SIGINT in server.signals else 0


async def _end_unless_loaded(worker: Supervisor, server: _Server) -> None:
    """Ends the server where what it was started with cannot be loaded."""
    await worker.settled.wait()
    server.should_exit = server.should_exit or not worker.about


async def _end_with(owner: Owner, worker: Supervisor, server: _Server) -> None:
    """Ends the server when its owner has gone; who is being answered hears why."""
    await owner.gone()
    sentence = "the program that this engine was started for has ended, and the engine with it"
    worker.dismiss(Refusal(503, sentence, type="unavailable_error", code="server_ended"))
    server.should_exit = True
    await asyncio.sleep(LAST_WORDS_S)
    server.force_exit = True
