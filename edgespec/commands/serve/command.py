"""`edgespec serve`: from flags to a server that listens, and its end."""

import argparse
import asyncio
import os
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from edgespec.commands.serve import flags
from edgespec.commands.serve.listening import (
    addresses,
    in_ollamas_place,
    listening,
    refuse_strangers,
)
from edgespec.commands.serve.settings_in_force import SettingsInForce
from edgespec.core.values import FREE, DrafterName
from edgespec.errors import EdgeSpecError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.pairs.files import chat_template, pair_files, pair_settings
from edgespec.protocol.messages import LoadRequest
from edgespec.sampling.settings import IN_FILE, Sampling
from edgespec.server.announcing import ParentProcess
from edgespec.server.logs import say, set_up
from edgespec.server.pairs import Pairs
from edgespec.server.settings import PROGRAMS, RequestDefaults, ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.system import config
from edgespec.system.cores import threads_wanted
from edgespec.system.named_file import read_text
from edgespec_models.gguf.header import HeaderError, read_file
from edgespec_models.shelf.store import Store

DESCRIPTION = """Answers OpenAI-style requests over HTTP, at http://HOST:PORT/v1, once the model is loaded."""
EPILOG = """Every user of this machine can read a key given on the command line; --api-key-file and
EDGESPEC_API_KEY keep it private. Ctrl+C lets running answers finish; a second Ctrl+C does not wait."""
SLOTS = 4  # without --slots
add = flags.add_all
RANK = 4  # the pooling of a reranker, in its file
LONGEST_KEYS = 2**16  # characters of a file of keys


def run(arguments: argparse.Namespace) -> int:
    """Listens, loads and answers until it is asked to end; returns the exit code."""
    parent = ParentProcess() if arguments.owned else None
    file = SettingsInForce(arguments, _settings) if arguments.config else None
    if arguments.slots is None:
        arguments.slots = 1 if arguments.reproducible or arguments.byte_identical else SLOTS
    if arguments.reproducible and arguments.threads is None:  # else fewer while the machine is busy
        arguments.threads = threads_wanted()
    settings = _settings(arguments)
    if file:
        file.keys = settings.keys
    if parent:
        settings = replace(settings, keys=(*settings.keys, parent.key))
    load = _load(arguments)
    wants_draft = not arguments.no_draft and arguments.drafter not in ("none", *FREE)
    pairs = Pairs(load, Store(config.data_folder()), alias=settings.alias, drafts=wants_draft)
    set_up(settings.log)
    with ExitStack() as opened:
        listeners = listening(arguments.host, arguments.port, opened)
        for listener in listeners:
            refuse_strangers(listener, settings)
        if arguments.ollama:
            listeners += in_ollamas_place(opened)
        return asyncio.run(_serve(listeners, load, settings, pairs, parent, file))


async def _serve(
    listeners: list[socket.socket],
    load: LoadRequest,
    settings: ServerSettings,
    pairs: Pairs,
    parent: ParentProcess | None,
    file: SettingsInForce | None,
) -> int:
    """Starts the engine's worker, then the web application: each takes half a second to import."""
    if file:
        say(f"using the settings in {file.path}")
    worker = Supervisor(load, most=settings.models_max, tell=say)
    ended = _cancelled_by_sigterm()
    worker.start()
    try:
        from edgespec.local.attach import lock_for_starting  # late: the worker is loading by now

        lock = None if parent else lock_for_starting()  # a parent has it
        web = await asyncio.to_thread(import_module, "edgespec.commands.serve.web_process")
    except BaseException as error:
        await worker.stop()
        if isinstance(error, asyncio.CancelledError) and ended:
            say("stopped before the model was loaded")
            return 0
        raise
    code: int = await web.serve(worker, listeners, settings, pairs, parent, lock, file)
    return code


def _cancelled_by_sigterm() -> list[int]:
    """Has SIGTERM cancel the current task, until the server has its own way to end; notes that it came."""
    task, came = asyncio.current_task(), list[int]()
    loop = asyncio.get_running_loop()
    assert task

    def cancel(number: int, _: object) -> None:
        came.append(number)
        loop.call_soon_threadsafe(task.cancel)

    signal.signal(signal.SIGTERM, cancel)
    return came


def _settings(arguments: argparse.Namespace) -> ServerSettings:
    """Returns the web process's settings; raises SettingError."""
    for flag, value, low, high in (
        ("--port", arguments.port, 0, 65535),
        ("--slots", arguments.slots, 1, 32),
        ("--queue", arguments.queue, 0, 100_000),
        ("--models-max", arguments.models_max, 1, 100),
        ("--cache-ram", arguments.cache_ram or 0, 0, 2**24),
        ("--cache-disk", arguments.cache_disk, 0, 2**20),
        ("--keep-texts", arguments.keep_texts, 0, 2**20),
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
        embed=_pooling_model(arguments.embed, "--embed") if arguments.embed else None,
        rerank=_pooling_model(arguments.rerank, "--rerank") if arguments.rerank else None,
        hosts=frozenset([*arguments.allowed_host, *addresses(arguments.host)]),
        media_hosts=frozenset(
            filter(None, map(str.strip, (arguments.media_url_hosts or "").lower().split(",")))
        ),
        origins=tuple(origin.rstrip("/") for origin in arguments.cors_origin + [PROGRAMS] * arguments.ollama),
        max_body=arguments.max_body * 2**20,
        request_s=arguments.max_seconds,
        canary=arguments.canary,
        defaults=_defaults(arguments),
        share_lookup=arguments.share_lookup,
        strict_calls=not arguments.no_strict_calls,
        normalize=not arguments.no_normalize,
        verbose=arguments.verbose,
        slot_folder=_slot_folder(arguments.slot_save_path) if arguments.slot_save_path else None,
        no_slots=arguments.no_slots,
        no_metrics=arguments.no_metrics,
        log=arguments.log,
        idle_s=arguments.idle_unload * 60 or None,
        models_max=arguments.models_max,
    )


def _slot_folder(name: str) -> Path:
    """Returns where slots' texts may be saved. Raises SettingError."""
    path = Path(name).resolve()
    if not path.is_dir():
        raise SettingError(f"--slot-save-path {name} is no folder: make it, or name another")
    return path


def _pooling_model(name: str, flag: str) -> Path:
    """Returns the file of an embedding model or a reranker. Raises ModelFileError, ModelUnsupportedError."""
    path = Path(name).absolute()  # not resolved: in the hub's cache, the link has the name
    try:
        header = read_file(path)
    except HeaderError as error:
        raise ModelFileError(f"{flag}: {error}") from None
    pooling = header.of_architecture("pooling_type")
    ranks = pooling == RANK and any(tensor.name.startswith("cls") for tensor in header.tensors)
    if flag == "--rerank" and not ranks:
        raise ModelUnsupportedError(f"{flag}: {path.name} is no reranker: its file has no pooling by rank")
    if flag == "--embed" and pooling in (None, 0, RANK):
        raise ModelUnsupportedError(f"{flag}: {path.name} is no embedding model: its file names no pooling")
    return path


def _defaults(arguments: argparse.Namespace) -> RequestDefaults:
    """Returns the defaults of requests; raises SettingError."""
    longest = None if arguments.n == -1 else arguments.n  # llama.cpp's way to write "what fits"
    if longest is not None and not 1 <= longest <= 2**31 - 1:
        raise SettingError(f"-n is {longest}: it must be 1 or more, or -1 for what fits")
    if arguments.seed is not None and not -(2**63) <= arguments.seed < 2**64:
        raise SettingError(f"--seed is {arguments.seed}: it must have 64 bits at most")
    sampling = {}
    if arguments.temperature is not None:
        Sampling(temperature=arguments.temperature)
        sampling[IN_FILE + "temp"] = str(arguments.temperature)
    # byte-identical pairs may guess, and reuse prompts
    restricted: bool = arguments.reproducible and not arguments.byte_identical
    if restricted and (arguments.slots > 1 or arguments.drafter != "auto"):
        flag = f"--slots {arguments.slots}" if arguments.slots > 1 else f"--drafter {arguments.drafter}"
        raise SettingError(f"--reproducible answers one at a time and without drafts: leave out {flag}")
    plain = arguments.no_draft or restricted
    drafter: DrafterName = "none" if plain else arguments.drafter
    thinking = {"auto": None, "on": True, "off": False}[arguments.reasoning]
    return RequestDefaults(sampling, arguments.seed, longest, drafter, thinking, fresh=restricted)


def _keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the keys that open; raises SettingError if a file of keys has none."""
    given = [arguments.api_key, os.environ.get("EDGESPEC_API_KEY") or None]
    for name, key in zip(("--api-key", "EDGESPEC_API_KEY"), given, strict=True):
        if key is not None and not key.strip():
            raise SettingError(f"{name} is empty: give a key, or leave it out")
    if arguments.api_key_file:
        lines = read_text("--api-key-file", arguments.api_key_file, most=LONGEST_KEYS).splitlines()
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise SettingError(f"--api-key-file {arguments.api_key_file} holds no key: write one into it")
        given += keys
    found = tuple(key.strip() for key in given if key)  # as clients' keys are read
    if not all(key.isascii() and key.isprintable() for key in found):
        raise SettingError("an API key has characters that HTTP cannot carry: use letters, digits and signs")
    return found


def _load(arguments: argparse.Namespace) -> LoadRequest:
    """Returns what the worker loads; raises SettingError or an error of the files."""
    target, draft = pair_files(arguments)
    for file in filter(None, (target, draft)):
        if not file.exists():
            raise EdgeSpecError(f"there is no file {file}: check the path")
    return LoadRequest(
        target=str(target),
        draft=str(draft) if draft else None,
        settings=pair_settings(
            arguments,
            slots=arguments.slots,
            cache_tokens=arguments.cache_tokens,
            cache_ram=None if arguments.cache_ram is None else arguments.cache_ram * 2**20,
            cache_disk=arguments.cache_disk * 2**30,
            keep_texts=arguments.keep_texts * 2**20,
        ),
        queue=arguments.queue,
    )
