"""Sessions: conversations that outlive the program, saved while they grow.

    sessions = Sessions(config.data_folder(), on_notice=tell)
    sessions.save(conversation)                     # whenever something changed; never waits
    found = await asyncio.wrap_future(sessions.searched("lock"))

Writing is a thread's work: `save` hands over the conversation as it is and returns at once, so that
`kill -9` loses less than a second. Reading goes through the same thread and returns a future. What cannot be
written (a full disk, a closed folder) is reported once, in a sentence, to `on_notice`, from that thread; it
is kept in memory, where it is found and read as the rest, is tried again with whatever is saved or asked
next, and is handed back by `close`.
"""

import atexit
import queue
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database, rows, search
from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.sessions.lock import SessionLocks
from edgespec_tui.sessions.rows import Listed
from edgespec_tui.sessions.search import NAME_BITS, short_name_of, the_one
from edgespec_tui.sessions.storage import SessionStorage

_T = TypeVar("_T")


class Sessions:
    """All sessions of a user. `close` writes what is left."""

    def __init__(
        self,
        folder: Path | None,
        *,
        on_notice: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        busy_s: float = database.BUSY_S,
    ) -> None:
        """folder: None keeps them in memory alone. Making them never fails, and never waits.

        on_notice: called with a sentence, from another thread, for what a person should know: a damaged
        file set aside, a disk that is full, and that it no longer is. busy_s: how long another program's
        write is waited for.
        """
        path = folder / "sessions.db" if folder else None
        self.storage = SessionStorage(
            path, on_notice=on_notice, on_replaced=self._rewrite, clock=clock, busy_s=busy_s
        )
        self._locks = SessionLocks(folder / "session-locks" if folder else None)
        self._clock = clock
        self._lock = threading.Lock()  # of the next two
        self._handed: dict[int, Conversation] = {}  # the open sessions as they were handed over last
        self._unwritten: dict[int, Conversation] = {}  # those that the file does not have so, the newest last
        self._written: dict[int, Mapping[int, Turn]] = {}  # the turns of each that the file has
        self._deleted: list[tuple[int, str]] = []  # in this run, with titles; the thread's own
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="sessions", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- writing

    def save(self, conversation: Conversation) -> None:
        """Hands over a conversation as it is. One that is not saved yet gets its id here.

        Ignores one that is read_only. Call it as often as something changed.
        """
        if conversation.read_only:
            return
        if conversation.id is None:
            conversation.id = secrets.randbits(NAME_BITS)
            self._locks.take(conversation.id)
        now = conversation.copy()
        with self._lock:
            if self._handed.get(conversation.id) == now:
                return
            self._unwritten.pop(conversation.id, None)
            self._handed[conversation.id] = self._unwritten[conversation.id] = now
        self._jobs.put(self._write)

    def leave(self, conversation: Conversation) -> None:
        """Lets other windows write a session, and makes it read_only here; what was handed over is saved."""
        if conversation.id is None or conversation.read_only:
            return
        id = conversation.id
        conversation.read_only = True

        def let_go() -> None:
            self._locks.give_back(id)
            with self._lock:
                if id not in self._unwritten:
                    self._handed.pop(id, None)
                    self._written.pop(id, None)

        self._asked(let_go)

    # -- reading

    def searched(self, query: str = "", *, limit: int = 1000) -> Future[list[Listed]]:
        """Finds the sessions with every word of `query`, each with an excerpt, the newest first."""
        return self._asked(lambda: self._found(query, limit))

    def loaded(self, id: int) -> Future[Conversation]:
        """Reads a session; from now on it is ours to write, or read_only if another window has it.

        Fails with SessionError if there is none.
        """
        return self._asked(lambda: self._load(id))

    def newest(self) -> Future[Conversation | None]:
        """Reads the session that changed last; None if there is none."""

        def last() -> Conversation | None:
            found = max(self._found(), key=lambda one: one.changed, default=None)
            return self._load(found.id) if found else None

        return self._asked(last)

    def named(self, text: str) -> Future[Conversation]:
        """Reads the session with this title, or whose name begins so, or whose title has this text.

        Fails with SessionError if there is none, or more than one.
        """
        return self._asked(lambda: self._load(the_one(self._found(), text)))

    def _load(self, id: int) -> Conversation:
        ours = self._locks.take(id)
        try:
            kept = self._unwritten.get(id)
            talk = kept.copy() if kept else self.storage.do(lambda file: rows.read(file, id), reading=True)
        except (ValueError, TypeError, AttributeError) as error:
            why = f"chat {short_name_of(id)} is damaged ({error}): sessions-copy.db may have it whole"
            raise SessionError(why) from None
        if talk is None:
            self._locks.give_back(id)
            raise SessionError(f"there is no chat {short_name_of(id)}: it was deleted or never existed")
        talk.read_only = not ours
        if ours and kept is None:
            self._written[id] = dict(talk.turns)
            with self._lock:
                new = self._handed.setdefault(id, before := talk.copy()) is before
            if new:
                talk.finish_unfinished()
        return talk

    def _found(self, query: str = "", limit: int = -1) -> list[Listed]:
        """Finds sessions in the file, and those that could not be written to it."""

        def find(connection: sqlite3.Connection) -> list[Listed]:
            return search.searched(connection, query, limit=limit)

        left = self._left()
        try:
            found = self.storage.do(find, reading=True)
        except SessionError:
            if not left:
                raise
            found = []
        if not left:
            return found
        with closing(database.opened(None)) as memory:
            for talk in left:
                rows.write(memory, talk, {}, now=self._clock())
            newer = find(memory)
        return [*newer, *(one for one in found if all(one.id != talk.id for talk in left))]

    def _left(self) -> list[Conversation]:
        """Returns the conversations that the file does not have as they are."""
        with self._lock:
            return list(self._unwritten.values())

    # -- changing

    def renamed(self, id: int, title: str) -> Future[None]:
        """Gives a session a title. One that is open here is renamed by its conversation's title and `save`.

        Fails with SessionError if another window has it.
        """
        title = " ".join(title.split())

        def rename() -> None:
            self._change(id, lambda connection: rows.rename(connection, id, title))
            with self._lock:
                if known := self._unwritten.get(id):
                    self._handed[id] = self._unwritten[id] = replace(known, title=title)

        return self._asked(rename)

    def deleted(self, id: int, title: str) -> Future[None]:
        """Deletes a session; until the program ends, `undone` brings it back.

        Fails with SessionError if another window has it open.
        """

        def delete() -> None:
            self._change(id, lambda connection: rows.mark_deleted(connection, id, at=self._clock()))
            self._deleted.append((id, title))

        return self._asked(delete)

    def undone(self) -> Future[str]:
        """Undoes the last deletion of this run; gives its title. Fails with SessionError if there is none."""

        def undo() -> str:
            if not self._deleted:
                raise SessionError("nothing was deleted since the start")
            id, title = self._deleted[-1]
            self._change(id, lambda connection: rows.mark_deleted(connection, id, at=None))
            self._deleted.pop()
            return title

        return self._asked(undo)

    def _change(self, id: int, work: Callable[[sqlite3.Connection], None]) -> None:
        """Changes a session, unless another window has it open. Raises SessionError."""
        if not self._locks.take(id):
            raise SessionError(f"chat {short_name_of(id)} is open in another window: close it there first")
        try:
            self.storage.do(work)
        finally:
            if id not in self._handed:
                self._locks.give_back(id)

    # -- the thread

    def _asked(self, work: Callable[[], _T]) -> Future[_T]:
        """Has the thread do work, behind all that was handed over before."""
        future: Future[_T] = Future()

        def do() -> None:
            self._write()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # the caller gets it, and the thread continues
                    future.set_exception(error)

        self._jobs.put(do)
        return future

    def close(self, timeout: float = 2 * database.BUSY_S) -> list[Conversation]:
        """Writes what is left, removes what was deleted, and ends the thread.

        Returns the conversations that could not be written whole: only this process has them. A file that
        another program holds is waited for as long as ever; a disk that does not answer, until `timeout`.
        """
        self._jobs.put(None)
        self._thread.join(timeout)
        atexit.unregister(self.close)
        return [talk for talk in self._left() if talk.turns or talk.draft]

    def _work(self) -> None:
        with suppress(SessionError):  # opens the file: what is wrong with it is reported at once
            self.storage.do(lambda _: None, reading=True)
        while (job := self._jobs.get()) is not None:
            job()
        self._write()
        if not self._left():
            with suppress(SessionError):
                before = self._clock() - 86400.0
                self.storage.do(
                    lambda connection: rows.purge(connection, [id for id, _ in self._deleted], before=before)
                )
        self.storage.close()
        self._locks.give_all_back()

    def _write(self) -> None:
        """Writes what is not written yet; what cannot be stays so."""
        if not (talks := self._left()):
            return

        def write(connection: sqlite3.Connection) -> None:
            for talk in talks:
                assert talk.id is not None
                rows.write(connection, talk, self._written.get(talk.id, {}), now=self._clock())

        try:
            self.storage.do(write)
        except SessionError:  # the storage has reported it
            return
        with self._lock:
            for talk in talks:
                assert talk.id is not None
                self._written[talk.id] = talk.turns
                if self._unwritten.get(talk.id) is talk:  # else more has come since
                    del self._unwritten[talk.id]
        self.storage.all_written()

    def _rewrite(self) -> None:
        """Has all open sessions written whole: another file has taken the place of a damaged one."""
        self._written.clear()
        with self._lock:
            self._unwritten.update(self._handed)
