"""Where the sessions' rows are: in the file, or in memory while the file takes nothing.

Invariant: work on the connection happened wholly or not at all. A full disk moves everything into
memory, where it continues; `touched` lists the sessions to write once there is room again. A
damaged file is set aside and a new one begun.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database, rows
from edgespec_tui.sessions.conversation import Conversation

_T = TypeVar("_T")
RETRY_S = 4.0
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class SessionStorage:
    """The connection of the sessions' thread, which alone uses it (but for `touched`, which grows elsewhere).

    waiting: rows are in memory that belong in the file.
    """

    def __init__(
        self, path: Path | None, *, on_notice: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._path, self._tell, self._clock = path, on_notice, clock
        self._file: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._tried = 0.0
        self._was_open = False
        self._recover: Callable[[sqlite3.Connection], None] = lambda _: None
        self.touched: set[int] = set()

    @property
    def waiting(self) -> bool:
        return self._memory is not None and self._file is not None

    def open(self, recover: Callable[[sqlite3.Connection], None]) -> None:
        """Opens the file. recover: sets up an opened file, before anything else is done."""
        self._recover = recover
        if self._path is not None:
            self._file = self._opened(self._path)
        if self._file is None:
            self._memory = database.in_memory()
            return
        self._was_open = True
        with suppress(SessionError):
            self.do(recover)

    def _opened(self, path: Path) -> sqlite3.Connection | None:
        """Returns a connection to the file; None, with a notice, if sessions cannot be saved."""
        try:
            try:
                return database.opened(path)
            except sqlite3.Error as error:
                if not database.is_damage(error):
                    raise
                self._set_aside(path, error)
                return database.opened(path)
        except SessionError as error:
            self._tell(str(error))
        except sqlite3.Error as error:
            self._tell(f"chats are not saved this time: {path} cannot be opened ({error})")
        except OSError as error:
            where = error.filename or path
            self._tell(f"chats are not saved this time: {where} cannot be written ({error.strerror})")
        return None

    def _set_aside(self, path: Path, error: sqlite3.Error) -> None:
        aside = database.set_aside(path, now=self._clock())
        self._tell(
            f"the chats in {path.name} are damaged ({error}): the file is kept as {aside}, and a new one "
            "is started"
        )

    def do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Does work on the rows, wholly or not at all; raises SessionError if that is impossible."""
        self._return_to_file()
        connection = self._memory or self._file
        assert connection is not None
        try:
            return self._whole(connection, work)
        except sqlite3.Error as error:
            if connection is self._memory:
                raise SessionError(f"chats cannot be read or written: {error}") from None
            return self._again(work, error)

    def _again(self, work: Callable[[sqlite3.Connection], _T], error: sqlite3.Error) -> _T:
        """Repeats work that the file refused: on a new file, or in memory."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        try:
            if code in database.DAMAGE:
                return self._whole(self._anew(error), work)
            if code in NO_ROOM:
                return self._whole(self._into_memory(error), work)
        except sqlite3.Error as second:
            error = second
        raise SessionError(f"{self._path} cannot be read or written: {error}") from None

    def _anew(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Returns a connection to replace one whose file is damaged."""
        assert self._path is not None and self._file is not None
        self._file.close()
        try:
            self._set_aside(self._path, error)
            self._file = self._opened(self._path)
        except OSError as refusal:
            self._tell(f"{self._path} is damaged and cannot be set aside ({refusal.strerror}): move it away")
            self._file = None
        if self._file is None:
            self._memory = database.in_memory()
        connection = self._memory or self._file
        assert connection is not None
        self._whole(connection, self._recover)
        return connection

    def _into_memory(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Copies all rows into memory, to continue there."""
        assert self._file is not None
        self._tell(
            f"{self._path} cannot be written ({error}): the chat continues in memory and is saved as soon "
            "as there is room"
        )
        memory = database.connected(":memory:")
        self._file.backup(memory)
        memory.execute("PRAGMA foreign_keys = ON")
        self._memory, self._tried = memory, time.monotonic()
        return memory

    def _return_to_file(self) -> None:
        """Writes to the file what is in memory alone, if there is room again."""
        if self._memory is None or self._file is None or time.monotonic() - self._tried < RETRY_S:
            return
        self._tried = time.monotonic()
        memory, touched = self._memory, list(self.touched)

        def bring(connection: sqlite3.Connection) -> None:
            for id in touched:
                rows.copy(memory, connection, id)

        with suppress(sqlite3.Error):
            self._whole(self._file, bring)
            memory.close()
            self._memory = None
            self.touched.clear()
            self._tell(f"chats are saved in {self._path} again")

    @staticmethod
    def _whole(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T]) -> _T:
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
            return result
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def unwritten(self) -> list[Conversation]:
        """Writes what it can to the file; returns the sessions that are in memory alone.

        A file that could not even be opened never saves anything: that was reported then.
        """
        self._tried = 0.0
        with suppress(SessionError):
            self.do(lambda _: None)
        if self._memory is None or not self._was_open:
            return []
        found = []
        for id in sorted(self.touched):
            with suppress(sqlite3.Error, ValueError, TypeError):
                found.append(rows.read(self._memory, id))
        return [conversation for conversation in found if conversation and conversation.turns]

    def close(self) -> None:
        """Closes the file."""
        for connection in (self._file, self._memory):
            if connection is not None:
                connection.close()
