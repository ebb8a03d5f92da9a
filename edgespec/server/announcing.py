"""Announces the endpoint and its pair: in the terminal, in the server's file, and to its parent."""

import asyncio
import json
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.client.state_file import Announcement, ServerState
from edgespec.errors import SettingError
from edgespec.pairs.shown_name import shown_name
from edgespec.protocol.messages import LoadRequest, Stage
from edgespec.server.engine_status import EngineStatus
from edgespec.server.logs import say
from edgespec.server.pairs import Pairs
from edgespec.server.supervisor import Supervisor
from edgespec.system.self_test import self_test

NO_TEMPLATE = (
    "conversations are written as ChatML (--chat-template NAME or --chat-template-file FILE choose another)"
)
STAGES: dict[Stage, str] = {
    "target": "loading {target}",
    "draft": "loading {draft}",
    "caches": "making room for {n} answers",
    "measuring": "measuring its speed",
}


class ParentProcess:
    """The program that started this server for itself alone, at the other end of two pipes.

    Its key comes in at stdin, so that it is in no process list and no environment; the engine's state goes
    out at stdout, one JSON object a line. When the parent ends, even by kill -9, stdin closes and the server
    ends. Other attached programs are notified.
    """

    def __init__(self) -> None:
        """Takes stdin and stdout and reads the key; raises SettingError if none comes."""
        self._words = os.fdopen(os.dup(0), "rb")
        self._ears = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # nothing else that is printed gets between the objects
        self.key = self._words.readline(1000).decode("ascii", "replace").strip()
        if not self.key:
            raise SettingError("--owned is for programs that hand over a key: leave it out")

    def tell(self, event: str, **about: Any) -> None:
        """Sends the parent a message; ignores a parent that no longer listens."""
        with suppress(OSError):
            self._ears.write(json.dumps({"event": event, **about}).encode() + b"\n")
            self._ears.flush()

    async def gone(self) -> None:
        """Waits until the parent has gone."""
        loop, end = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            with suppress(OSError):
                while self._words.read(4096):
                    pass
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(end.set)

        threading.Thread(target=listen, daemon=True).start()
        await end.wait()


class Announcer:
    """Follows the engine's state until the server ends."""

    def __init__(
        self, worker: Supervisor, pairs: Pairs, state: ServerState, parent: ParentProcess | None, lock: Any
    ) -> None:
        """state: what the server's file says before a pair is loaded. lock: see `lock_for_starting`; released
        when the engine can be found, or never will be."""
        self._worker, self._pairs, self._state, self._parent = worker, pairs, state, parent
        self._file = Announcement()
        self._ready: LoadRequest | None = None
        self._before: dict[LoadRequest, str] = {}
        self._lock = lock

    async def follow(self) -> None:
        """Reports each change once; ends with the supervisor."""
        asleep = set[LoadRequest]()
        async for now in self._worker.changes():
            before = self._before.get(now.load)
            if now.state == "loading":
                self._tell_progress(now)
            elif now.state == "ready" and before != "ready":
                if now.load != self._ready:
                    self._tell_ready(now.load)
                elif now.load in asleep:
                    say(f"{self._pairs.name_of(now.load)} is loaded again")
                asleep.discard(now.load)
            elif now.state == "unloaded" and before == "ready":
                asleep.add(now.load)
                say(f"{self._pairs.name_of(now.load)} is unloaded; the next request loads it")
            elif now.state == "unloaded" and now.error and before == "loading":
                say(now.error)
            self._before[now.load] = now.state

    def close(self) -> None:
        """Removes the server's file."""
        self._file.close()
        self._let_others_start()

    def _let_others_start(self) -> None:
        if self._lock:
            self._lock.release()
            self._lock = None

    def _tell_progress(self, now: EngineStatus) -> None:
        load = now.load
        target = shown_name(Path(load.target))
        draft = shown_name(Path(load.draft)) if load.draft else ""
        if self._before.get(load) != "loading":
            say(f"loading {target} ...")
        text = f"loading {target}"
        if now.stage:
            text = STAGES[now.stage].format(target=target, draft=draft, n=load.settings.slots)
        if self._parent:
            self._parent.tell("loading", text=text, fraction=now.progress, target=target, draft=draft or None)

    def _tell_ready(self, load: LoadRequest) -> None:
        about, first = self._worker.of(load).about, self._ready is None
        assert about
        self._ready = load
        self._state = replace(
            self._state,
            model=self._pairs.name_of(load),
            target=str(Path(load.target).resolve()),
            draft=str(Path(load.draft).resolve()) if load.draft else None,
            usual=load.settings.n_ctx is None,
            n_ctx=about.n_ctx,
        )
        try:
            self._file.write(self._state)
        except OSError as error:
            reason = f"{error.filename} cannot be written ({error.strerror})"
            say(f"{reason}: other programs will not find this server")
        self._let_others_start()
        host = f"[{self._state.host}]" if ":" in self._state.host else self._state.host
        where = f"http://{host}:{self._state.port}/v1"
        if self._parent and first:
            self._parent.tell("ready", host=self._state.host, port=self._state.port, model=self._state.model)
        guessing = f", {about.draft_name} guesses" if about.draft_name else ""
        on = f", on {about.place}" if about.place else ""
        say(f"{self._state.model} answers at {where} ({about.n_ctx:,} tokens of context{guessing}{on})")
        if about.reads:
            say(f"it reads {' and '.join(f'{kind}s' for kind in about.reads)}, too")
        for warning in filter(None, (about.beyond_trained, about.no_media)):
            say(warning)
        if first and (advice := self_test().advice):
            say(advice)
        if not about.chat_template and not (first and self._state.template):
            say(f"{self._state.model} has no chat template: {NO_TEMPLATE}")
