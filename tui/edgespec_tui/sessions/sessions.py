"""Sessions: conversations that outlive the program, saved while they grow.

    sessions = Sessions(config.data_folder(), on_notice=tell)
    sessions.save(conversation)                     # whenever something changed; never waits
    found = await asyncio.wrap_future(sessions.searched("lock"))

Writing is a thread's work: `save` hands over the conversation as it is and returns at once, so that
`kill -9` loses less than a second. All else goes through the same thread, behind what was handed over
before, and returns a future. What cannot be written (a full disk, a closed folder) is reported once, in a
sentence, to `on_notice`, from that thread; it is kept in memory, where it is found and read as the rest, is
tried again with whatever is saved or asked next, and is handed back by `close`.
"""

from __future__ import annotations

import atexit
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import listed, rows
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.listed import NAME_BITS, Listed, short_name_of, the_one
from edgespec_tui.sessions.lock import lock_of, unlocked
from edgespec_tui.sessions.session_file import BUSY_S, SessionFile, opened

_P = ParamSpec("_P")
_T = TypeVar("_T")


def on_its_thread(
    work: Callable[Concatenate[Sessions, _P], _T],
) -> Callable[Concatenate[Sessions, _P], Future[_T]]:
    """Has the sessions' thread do it, behind all that was handed over before."""

    @wraps(work)
    def asked(sessions: Sessions, /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()

        def do() -> None:
            sessions._write()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(sessions, *args, **kwargs))
                except BaseException as error:  # the caller gets it, and the thread continues
                    future.set_exception(error)

        sessions._jobs.put(do)
        return future

    return asked


@dataclass(slots=True)
class Held:
    """A session that is ours to write."""

    release: Callable[[], None]  # lets other windows write it
    talk: Conversation  # as it was handed over last
    written: Conversation | None = None  # as the file has it


class Sessions:
    """All sessions of a user. `close` writes what is left."""

    def __init__(
        self,
        folder: Path | None,
        *,
        on_notice: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        busy_s: float = BUSY_S,
    ) -> None:
        """folder: None keeps them in memory alone. Making them never fails, and never waits.

        on_notice: called with a sentence, from another thread, for what a person should know: a damaged
        file set aside, a disk that is full, and that it no longer is. busy_s: how long another program's
        write is waited for.
        """
        path = folder / "sessions.db" if folder else None
        self.file = SessionFile(
            path, on_notice=on_notice, on_replaced=self._rewrite, clock=clock, busy_s=busy_s
        )
        self._locks = folder / "session-locks" if folder else None
        self._clock = clock
        self._lock = threading.Lock()  # of the next
        self._held: dict[int, Held] = {}  # what was handed over last, last
        self._deleted: list[tuple[int, rows.Taken]] = []  # in this run; the thread's own
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sessions", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- writing

    def save(self, conversation: Conversation) -> None:
        """Hands over a conversation as it is. One that is not saved yet gets its id here.

        Ignores one that is read_only, and one without a question. Call it as often as something changed.
        """
        if conversation.read_only or not (conversation.turns or conversation.draft):
            return
        release = None
        if conversation.id is None:
            conversation.id = secrets.randbits(NAME_BITS)
            release = lock_of(self._locks, conversation.id)
        id, now = conversation.id, conversation.copy()
        with self._lock:
            held = self._held.pop(id, None) or Held(release or unlocked, Conversation())
            self._held[id] = held
            if held.talk == now:
                return
            held.talk = now
        self._jobs.put(self._write)

    def leave(self, conversation: Conversation) -> None:
        """Lets other windows write a session, and makes it read_only here; what was handed over is saved."""
        if conversation.id is None or conversation.read_only:
            return
        conversation.read_only = True
        self._left(conversation.id)

    def _let_go(self, id: int) -> None:
        with self._lock:
            held = self._held.get(id)
            if held is None or held.talk is not held.written:  # the file has less than we have: it stays ours
                return
            del self._held[id]
        held.release()

    _left = on_its_thread(_let_go)

    # -- reading

    @on_its_thread
    def searched(self, query: str = "", *, limit: int | None = None) -> list[Listed]:
        """Finds the sessions with every word of `query`, each with an excerpt, in the order of all lists."""
        return sorted(self._found(query), key=lambda one: one.place, reverse=True)[:limit]

    @on_its_thread
    def newest(self) -> Conversation | None:
        """Reads the session that changed last; None if there is none."""
        last = max(self._found(), key=lambda one: one.changed, default=None)
        return self._load(last.id) if last else None

    @on_its_thread
    def named(self, text: str) -> Conversation:
        """Reads the session with this title, or whose name begins so, or whose title has this text.

        Raises SessionError if there is none, or more than one.
        """
        return self._load(the_one(self._found(), text))

    def _load(self, id: int) -> Conversation:
        """Reads a session; from now on it is ours to write, or read_only if another window has it.

        Raises SessionError if there is none.
        """
        if held := self._held.get(id):
            return held.talk.copy()
        release = lock_of(self._locks, id)
        try:
            talk = self._read(id)
        except SessionError:
            if release:
                release()
            raise
        if release is None:
            talk.read_only = True
            return talk
        before = talk.copy()
        with self._lock:
            self._held[id] = Held(release, before, written=before)
        talk.finish_unfinished()
        return talk

    loaded = on_its_thread(_load)

    def _read(self, id: int) -> Conversation:
        try:
            talk = self.file.do(lambda file: rows.read(file, id), reading=True)
        except (ValueError, TypeError, AttributeError) as error:
            why = f"chat {short_name_of(id)} is damaged ({error}): sessions-copy.db may have it whole"
            raise SessionError(why) from None
        if talk is None:
            raise SessionError(f"there is no chat {short_name_of(id)}: it was deleted or never existed")
        return talk

    def _found(self, query: str = "") -> list[Listed]:
        """Finds sessions in the file, and those that could not be written to it."""
        left = [held.talk for held in self._unwritten()]
        try:
            found = self.file.do(lambda file: listed.found(file, query), reading=True)
        except SessionError:
            if not left:
                raise
            found = []
        if left:
            with closing(opened(None)) as memory:
                for talk in left:
                    rows.write(memory, talk, {}, now=self._clock())
                newer = listed.found(memory, query)
            found = newer + [one for one in found if all(one.id != talk.id for talk in left)]
        return found

    def _unwritten(self) -> list[Held]:
        """Returns what the file does not have as it is, what was handed over last, last."""
        with self._lock:
            return [held for held in self._held.values() if held.talk is not held.written]

    # -- changing

    @on_its_thread
    def renamed(self, id: int, title: str) -> None:
        """Gives a session a title. One that is open here is renamed by its conversation's title and `save`.

        Raises SessionError if another window has it or has deleted it.
        """
        title = rows.clean(" ".join(title.split()))
        set_it = "UPDATE sessions SET title = ? WHERE id = ?"
        found = self._change(id, lambda file: file.execute(set_it, (title, id)).rowcount)
        with self._lock:
            if (held := self._held.get(id)) and held.talk is not held.written:
                held.talk = replace(held.talk, title=title)
            elif not found:
                raise SessionError(f"there is no chat {short_name_of(id)}: it was deleted already")

    @on_its_thread
    def deleted(self, id: int) -> None:
        """Deletes a session; until the program ends, `undone` brings it back.

        Raises SessionError if another window has it open or has deleted it, or if it could not be saved yet.
        """
        if any(held is self._held.get(id) for held in self._unwritten()):
            raise SessionError(f"chat {short_name_of(id)} is not saved yet: delete it once it is")
        if not (taken := self._change(id, lambda file: rows.take_out(file, id))):
            raise SessionError(f"there is no chat {short_name_of(id)}: it was deleted already")
        self._deleted.append((id, taken))
        self._let_go(id)

    @on_its_thread
    def undone(self) -> str:
        """Undoes the last deletion of this run; gives its title. Raises SessionError if there is none."""
        if not self._deleted:
            raise SessionError("nothing was deleted since the start")
        id, taken = self._deleted[-1]
        title = self._change(id, lambda file: rows.put_back(file, taken))
        self._deleted.pop()
        return title

    def _change(self, id: int, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Changes the rows of a session, unless another window has it open. Raises SessionError."""
        release = unlocked if id in self._held else lock_of(self._locks, id)
        if release is None:
            raise SessionError(f"chat {short_name_of(id)} is open in another window: close it there first")
        try:
            return self.file.do(work)
        finally:
            release()

    # -- the thread

    def close(self, timeout: float = 2 * BUSY_S) -> list[Conversation]:
        """Writes what is left, and ends the thread.

        Returns the conversations that could not be written whole: only this process has them. A file that
        another program holds is waited for as long as ever; a disk that does not answer, until `timeout`.
        """
        self._jobs.put(None)
        self._thread.join(timeout)
        atexit.unregister(self.close)
        return [held.talk for held in self._unwritten()]

    def _work(self) -> None:
        with suppress(SessionError):  # opens the file: what is wrong with it is reported at once
            self.file.do(lambda _: None, reading=True)
        while (job := self._jobs.get()) is not None:
            job()
        self._write()
        self.file.close()
        for held in self._held.values():
            held.release()

    def _write(self) -> None:
        """Writes what is not written yet; what cannot be stays so."""
        if not (talks := [(held, held.talk) for held in self._unwritten()]):
            return

        def write(file: sqlite3.Connection) -> None:
            for held, talk in talks:
                rows.write(file, talk, held.written.turns if held.written else {}, now=self._clock())

        with suppress(SessionError):  # it has been reported
            self.file.do(write)
            with self._lock:
                for held, talk in talks:
                    held.written = talk  # more may have come since
            self.file.all_written()

    def _rewrite(self) -> None:
        """Has all open sessions written whole: another file has taken the place of a damaged one."""
        with self._lock:
            for held in self._held.values():
                held.written = None
