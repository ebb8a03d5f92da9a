"""Sessions: conversations that outlive the program, saved while they grow.

    sessions = Sessions(config.data_folder(), on_notice=tell)
    sessions.save(conversation)                     # whenever something changed; never waits
    found = await asyncio.wrap_future(sessions.searched("lock"))

Writing is a thread's work: `save` hands over what is new and returns at once, and the thread writes
everything of a quarter of a second in one go, so that `kill -9` loses less than a second. Reading goes
through the same thread and returns a future. What cannot be written (a full disk, a closed folder) is
reported once, in a sentence, to `on_notice`, from that thread; it is kept in memory, where it is found and
read as the rest, is tried again, and is handed back by `close`.
"""

import atexit
import math
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database, rows, search
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.lock import SessionLocks
from edgespec_tui.sessions.rows import Changes, Listed
from edgespec_tui.sessions.search import NAME_BITS, short_name_of, the_one
from edgespec_tui.sessions.storage import SessionStorage

_T = TypeVar("_T")
BATCH_S = 0.25  # what came in this time is written together
RETRY_S = 5.0  # between attempts to write to a disk that was full


class Sessions:
    """All sessions of a user. `close` writes what is left."""

    def __init__(
        self,
        folder: Path | None,
        *,
        on_notice: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
    ) -> None:
        """folder: None keeps them in memory alone. Making them never fails, and never waits.

        on_notice: called with a sentence, from another thread, for what a person should know: a damaged
        file set aside, a disk that is full, and that it no longer is.
        """
        path = folder / "sessions.db" if folder else None
        self.storage = SessionStorage(path, on_notice=on_notice, clock=clock)
        self._locks = SessionLocks(folder / "session-locks" if folder else None)
        self._tell, self._clock, self._retry_s = on_notice, clock, retry_s
        self._handed: dict[int, Changes] = {}  # all that was ever handed over, by session
        self._pending: dict[int, Changes] = {}  # the part of it that is not written yet
        self._writing: dict[int, Changes] = {}  # the part that is being written
        self._jobs: deque[tuple[Callable[[sqlite3.Connection], Any], Future[Any], bool]] = deque()
        self._deleted: set[int] = set()
        self.undoable: list[tuple[int, str]] = []  # deletions of this run that can be undone, with titles
        self._due = math.inf  # when pending changes are written, monotonic
        self._closing = False
        self._unwritten: list[Conversation] = []
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="sessions", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # -- writing

    def save(self, conversation: Conversation) -> None:
        """Hands over what is new in a conversation. One that is not saved yet gets its id here.

        Ignores one that is read_only. Call it as often as something changed.
        """
        if conversation.read_only:
            return
        if conversation.id is None:
            conversation.id = secrets.randbits(NAME_BITS)
            self._locks.take(conversation.id)
        head = rows.head_of(conversation)
        with self._change:
            known = self._handed.setdefault(conversation.id, Changes(head))
            fresh = {id: turn for id, turn in conversation.turns.items() if known.turns.get(id) is not turn}
            if not fresh and known.head == head and known.turns:
                return
            known.head = head
            known.turns.update(fresh)
            waiting = self._pending.setdefault(conversation.id, Changes(head))
            waiting.head = head
            waiting.turns.update(fresh)
            if self._due == math.inf:
                self._due = time.monotonic() + BATCH_S
                self._change.notify()

    def leave(self, conversation: Conversation) -> None:
        """Lets other windows write a session, and makes it read_only here; what was handed over is saved."""
        if conversation.id is None or conversation.read_only:
            return
        id = conversation.id
        conversation.read_only = True

        def let_go(_: sqlite3.Connection) -> None:
            self._locks.give_back(id)
            with self._change:
                if id not in self._pending:  # else it could not be written yet
                    self._handed.pop(id, None)

        self._asked(let_go)

    # -- reading

    def searched(self, query: str = "", *, limit: int = 1000) -> Future[list[Listed]]:
        """Finds the sessions with every word of `query`, each with an excerpt, the newest first."""
        return self._asked(lambda connection: self._found(connection, query, limit), reading=True)

    def loaded(self, id: int) -> Future[Conversation]:
        """Reads a session; from now on it is ours to write, or read_only if another window has it.

        Fails with SessionError if there is none.
        """
        return self._asked(lambda connection: self._load(connection, id), reading=True)

    def newest(self) -> Future[Conversation | None]:
        """Reads the session that changed last; None if there is none."""
        return self._asked(
            lambda connection: next(
                (self._load(connection, found.id) for found in self._found(connection, limit=1)), None
            ),
            reading=True,
        )

    def named(self, text: str) -> Future[Conversation]:
        """Reads the session with this title, or whose name begins so, or whose title has this text.

        Fails with SessionError if there is none, or more than one.
        """
        return self._asked(
            lambda connection: self._load(connection, the_one(self._found(connection), text)),
            reading=True,
        )

    def regained(self, id: int) -> Future[Conversation | None]:
        """Reads a session that another window had, if it has gone and the session is ours now; else None."""
        return self._asked(
            lambda connection: self._load(connection, id) if self._locks.take(id) else None, reading=True
        )

    def _load(self, connection: sqlite3.Connection, id: int) -> Conversation:
        ours = self._locks.take(id)
        try:
            with self._unwritten_rows() as memory:
                conversation = rows.read(memory, id) or rows.read(connection, id)
        except (ValueError, TypeError, IndexError) as error:  # JSON that somebody else has written
            raise SessionError(f"chat {short_name_of(id)} is unreadable: {error}") from None
        if conversation is None:
            self._locks.give_back(id)
            raise SessionError(f"there is no chat {short_name_of(id)}: it was deleted or never existed")
        conversation.read_only = not ours
        if ours:
            with self._change:
                new = id not in self._handed
                known = self._handed.setdefault(id, Changes(rows.head_of(conversation)))
                known.turns = dict(conversation.turns)
            if new:
                conversation.finish_unfinished()
        return conversation

    def _found(self, connection: sqlite3.Connection, query: str = "", limit: int = -1) -> list[Listed]:
        """Finds sessions in the file, and those that could not be written to it."""
        found = search.searched(connection, query, limit=limit)
        if not self._pending:
            return found
        with self._unwritten_rows() as memory:
            newer = search.searched(memory, query, limit=limit)
            known = {one.id for one in rows.listed(memory, limit=-1)}
        both = [*newer, *(one for one in found if one.id not in known)]
        return sorted(both, key=lambda one: -one.changed)[: limit if limit >= 0 else None]

    @contextmanager
    def _unwritten_rows(self) -> Iterator[sqlite3.Connection]:
        """Gives what could not be written, as rows."""
        with self._change:
            changes = {id: self._handed.get(id, changed) for id, changed in self._pending.items()}
        with closing(database.in_memory()) as memory:
            for id, changed in changes.items():
                rows.write(memory, id, changed, now=self._clock())
            yield memory

    # -- changing

    def renamed(self, id: int, title: str) -> Future[None]:
        """Gives a session a title. One that is open here is renamed by its conversation's title and `save`.

        Fails with SessionError if another window has it.
        """
        title = " ".join(title.split())

        def rename(connection: sqlite3.Connection) -> None:
            with self._locks.held(id, keep=id in self._handed):
                rows.rename(connection, id, title)
                with self._change:
                    if known := self._handed.get(id):
                        known.head = replace(known.head, title=title)

        return self._asked(rename)

    def deleted(self, id: int) -> Future[None]:
        """Deletes a session; until the program ends, `restored` brings it back.

        Fails with SessionError if another window has it open.
        """

        def delete(connection: sqlite3.Connection) -> None:
            with self._locks.held(id, keep=id in self._handed):
                rows.mark_deleted(connection, id, at=self._clock())
                self._deleted.add(id)

        return self._asked(delete)

    def restored(self, id: int) -> Future[None]:
        """Undoes a deletion."""

        def restore(connection: sqlite3.Connection) -> None:
            rows.mark_deleted(connection, id, at=None)
            self._deleted.discard(id)

        return self._asked(restore)

    # -- the thread

    def _asked(
        self,
        work: Callable[[sqlite3.Connection], _T],
        *,
        reading: bool = False,
    ) -> Future[_T]:
        future: Future[_T] = Future()
        with self._change:
            if self._closing:
                future.set_exception(SessionError("the list of chats is closed: start EdgeSpec again"))
            else:
                self._jobs.append((work, future, reading))
                self._change.notify()
        return future

    def close(self, timeout: float = 2 * database.BUSY_S) -> list[Conversation]:
        """Writes what is left, removes what was deleted, and ends the thread.

        Returns the conversations that could not be written whole: only this process has them. A file that
        another program holds is waited for as long as ever; a disk that does not answer, until `timeout`.
        """
        self.storage.busy_until = min(self.storage.busy_until, time.monotonic() + database.BUSY_S)
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(timeout)
        atexit.unregister(self.close)
        if self._thread.is_alive():
            with self._change:
                self._pending = {**self._writing, **self._pending}
            return self._conversations()
        return self._unwritten

    def _work(self) -> None:
        self.storage.recover = self._recovered
        with suppress(SessionError):  # opens the file: what is wrong with it is reported at once
            self.storage.do(lambda _: None, reading=True)
        while True:
            with self._change:
                while not (self._jobs or self._closing) and (wait_s := self._due - time.monotonic()) > 0:
                    self._change.wait(min(wait_s, threading.TIMEOUT_MAX))
                work = self._jobs.popleft() if self._jobs else None
                pending, self._pending, self._due = self._pending, {}, math.inf
                self._writing = pending
                ending = self._closing and work is None
            self._write(pending)
            self._writing = {}
            if work is not None:
                self._do(*work)
            if ending:
                break
        with suppress(SessionError):
            before = self._clock() - 86400.0
            self.storage.do(lambda connection: rows.purge(connection, self._deleted, before=before))
        self._unwritten = self._conversations()
        self.storage.close()
        self._locks.give_all_back()

    def _conversations(self) -> list[Conversation]:
        """Returns the conversations that could not be written, as they were handed over."""
        with self._unwritten_rows() as memory:
            found = [rows.read(memory, id) for id in self._pending]
        return [talk for talk in found if talk and (talk.turns or talk.draft)]

    def _write(self, pending: dict[int, Changes]) -> None:
        if not pending:
            return

        def write(connection: sqlite3.Connection) -> None:
            for id, changes in pending.items():
                rows.write(connection, id, changes, now=self._clock())

        try:
            self.storage.do(write)
            self.storage.all_written()
        except SessionError:  # the storage has reported it
            with self._change:
                for id, older in pending.items():
                    newer = self._pending.get(id, older)  # what came since
                    self._pending[id] = Changes(newer.head, {**older.turns, **newer.turns})
                self._due = min(self._due, time.monotonic() + self._retry_s)

    def _do(self, work: Callable[[sqlite3.Connection], Any], future: Future[Any], reading: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self.storage.do(work, reading=reading))
        except BaseException as error:  # as executors do: the caller gets it, and the thread continues
            future.set_exception(error)

    def _recovered(self, connection: sqlite3.Connection) -> None:
        """Sets up a new file (the first one, or one that replaces a damaged one)."""
        for id in rows.unfinished(connection):
            if id not in self._handed and self._locks.take(id):
                rows.finish_unfinished(connection, id)
                self._locks.give_back(id)
        with self._change:
            handed = {id: Changes(known.head, dict(known.turns)) for id, known in self._handed.items()}
        for id, changes in handed.items():
            if changes.turns:
                rows.write(connection, id, changes, now=self._clock())
