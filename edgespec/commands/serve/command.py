"""`edgespec serve`: from flags to a server that listens, and its end."""

import argparse
import asyncio
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module

from edgespec.commands.serve.flags import add_all, load_request, server_settings
from edgespec.commands.serve.listening import in_ollamas_place, listening, refuse_strangers
from edgespec.commands.serve.settings_in_force import SettingsInForce
from edgespec.pairs.files import wants_draft
from edgespec.protocol.messages import LoadRequest
from edgespec.server.announcing import ParentProcess
from edgespec.server.logs import say, set_up
from edgespec.server.pairs import Pairs
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.system import config
from edgespec.system.cores import threads_wanted
from edgespec_models.shelf.store import Store

DESCRIPTION = """Answers OpenAI-style requests over HTTP, at http://HOST:PORT/v1, once the model is loaded."""
EPILOG = """Every user of this machine can read a key given on the command line; --api-key-file and
EDGESPEC_API_KEY keep it private. Ctrl+C lets running answers finish; a second Ctrl+C does not wait."""
SLOTS = 4  # without --slots
add = add_all


def run(arguments: argparse.Namespace) -> int:
    """Listens, loads and answers until it is asked to end; returns the exit code."""
    parent = ParentProcess() if arguments.owned else None
    file = SettingsInForce(arguments) if arguments.config else None
    if arguments.slots is None:
        arguments.slots = 1 if arguments.reproducible or arguments.byte_identical else SLOTS
    if arguments.reproducible and arguments.threads is None:  # else fewer while the machine is busy
        arguments.threads = threads_wanted()
    settings = server_settings(arguments)
    if file:
        file.keys = settings.keys
    if parent:
        settings = replace(settings, keys=(*settings.keys, parent.key))
    load = load_request(arguments)
    pairs = Pairs(load, Store(config.data_folder()), alias=settings.alias, drafts=wants_draft(arguments))
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
