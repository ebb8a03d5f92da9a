"""Announces the endpoint and its pair: in the terminal, in the server's file, and to its parent."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.client.state_file import Announcement, ServerState, digest
from edgespec.engine.messages import LoadRequest, Stage
from edgespec.server.engine_status import EngineStatus
from edgespec.server.logs import say
from edgespec.server.pairs import Pairs
from edgespec.server.parent_process import ParentProcess
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


def first_state(
    load: LoadRequest, pairs: Pairs, *, host: str, port: int, private: bool, template: str | None
) -> ServerState:
    """Returns what a server's file says before the pair is loaded."""
    given = digest(template) if template else ""
    state = ServerState(host, port, os.getpid(), "", private=private, template=given)
    return _with_pair(state, load, pairs)


def _with_pair(state: ServerState, load: LoadRequest, pairs: Pairs) -> ServerState:
    target, draft = (str(Path(file).resolve()) if file else None for file in (load.target, load.draft))
    usual = load.settings.n_ctx is None
    return replace(state, model=pairs.name_of(load), target=target or "", draft=draft, usual=usual)


class Announcer:
    """Follows the engine's state until the server ends."""

    def __init__(
        self, worker: Supervisor, pairs: Pairs, state: ServerState, parent: ParentProcess | None, lock: Any
    ) -> None:
        """lock: see `lock_for_starting`; released when the engine can be found, or never will be."""
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
        target, draft = Path(load.target).name, Path(load.draft).name if load.draft else ""
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
        self._state = replace(_with_pair(self._state, load, self._pairs), n_ctx=about.n_ctx)
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
