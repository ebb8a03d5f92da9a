"""Where the sessions' rows are: in the file, or in memory while the file takes nothing.

Invariant: work on the connection happened wholly or not at all. A full disk, or a file that cannot be
opened, moves everything into memory, where it continues; `touched` lists the sessions to write once there is
room again. A damaged file is set aside, and a new one begun with what can still be read.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database, rows, salvage
from edgespec_tui.sessions.conversation import Conversation

_T = TypeVar("_T")
RETRY_S = 4.0
REFUSALS = (SessionError, sqlite3.Error, OSError)
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class SessionStorage:
    """The connection of the sessions' thread, which alone uses it (but for `touched`, which grows elsewhere).

    waiting: rows are in memory that belong in the file. was_open: they could be written once. unread: why
    there are none of the file, if there should be. busy_until: when other programs are no longer waited for.
    """

    def __init__(
        self, path: Path | None, *, on_notice: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._path, self._tell, self._clock = path, on_notice, clock
        self._file: sqlite3.Connection | None = None
        self._memory: sqlite3.Connection | None = None
        self._tried = 0.0
        self.was_open = False
        self.unread = ""
        self.busy_until = float("inf")  # seconds, monotonic
        self._recover: Callable[[sqlite3.Connection], None] = lambda _: None
        self.touched: set[int] = set()

    @property
    def waiting(self) -> bool:
        return self._memory is not None and self._path is not None

    def open(self, recover: Callable[[sqlite3.Connection], None]) -> None:
        """Opens the file. recover: sets up an opened file, before anything else is done."""
        self._recover = recover
        if self._path is None:
            self._memory = database.in_memory()
            return
        try:
            self._file = self._opened(self._path)
        except REFUSALS as error:
            self._read_only(self._path, error)
        with suppress(SessionError):
            self.do(recover)

    def _read_only(self, path: Path, error: Exception) -> None:
        """Continues in memory with what can be read of a file that cannot be written."""
        self._tell(
            f"chats are not saved for now: {_reason(path, error)}; what is said is kept in memory, and is "
            "saved as soon as that works"
        )
        self._memory, self._tried = salvage.copy_in_memory(path), time.monotonic()
        if self._memory is None:
            with suppress(OSError):
                self.unread = _reason(path, error) if path.exists() else ""
            self._memory = database.in_memory()

    def _opened(self, path: Path) -> sqlite3.Connection:
        """Returns a connection to the file, or to a new one if it is damaged. Raises one of REFUSALS."""
        try:
            connection = database.opened(path)
        except sqlite3.Error as error:
            if not database.is_damage(error):
                raise
            connection = self._replaced(path, error)
        self.was_open = True
        return connection

    def _replaced(self, path: Path, error: sqlite3.Error) -> sqlite3.Connection:
        """Sets a damaged file aside; returns a connection to a new one, with what could be read."""
        aside = database.set_aside(path, now=self._clock())
        connection = database.opened(path)
        n = salvage.salvage(aside, connection)
        saved = f"{n} chats that could still be read are in a new one" if n else "a new one is started"
        self._tell(
            f"the chats in {path.name} are damaged ({error}): the file is kept as {aside}, and {saved}"
        )
        return connection

    def do(self, work: Callable[[sqlite3.Connection], _T], *, reading: bool = False) -> _T:
        """Does work on the rows, wholly or not at all; raises SessionError if that is impossible.

        reading: it changes nothing, and so need not wait for another program that writes.
        """
        self._return_to_file()
        connection = self._memory or self._file
        assert connection is not None
        what = self._path if connection is self._file else "chats"
        try:
            try:
                return self._whole(connection, work, reading=reading)
            except sqlite3.Error as error:  # what the file refused is repeated on a new file, or in memory
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if connection is self._memory or code not in (*database.DAMAGE, *NO_ROOM):
                    raise
                again = self._anew if code in database.DAMAGE else self._into_memory
                return self._whole(again(error), work)
        except sqlite3.Error as error:
            raise SessionError(f"{what} cannot be read or written: {error}") from None

    def _anew(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Returns a connection to replace one whose file is damaged."""
        assert self._path is not None and self._file is not None
        self._file.close()
        self._file = None
        try:
            connection = self._file = self._replaced(self._path, error)
        except REFUSALS as refusal:
            self._tell(f"{self._path} is damaged, and cannot be replaced ({refusal}): move it away")
            connection = self._memory = database.in_memory()
        self._whole(connection, self._recover)
        return connection

    def _into_memory(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Copies all rows into memory, to continue there."""
        assert self._file is not None
        self._tell(
            f"{self._path} cannot be written ({error}): the chat continues in memory and is saved as soon "
            "as there is room"
        )
        self._memory, self._tried = database.in_memory(self._file), time.monotonic()
        return self._memory

    def _return_to_file(self) -> None:
        """Writes to the file what is in memory alone, if that works again."""
        if self._memory is None or self._path is None or time.monotonic() - self._tried < RETRY_S:
            return
        self._tried = time.monotonic()
        memory, touched = self._memory, list(self.touched)

        def bring(connection: sqlite3.Connection) -> None:
            for id in touched:
                rows.copy(memory, connection, id)

        with suppress(*REFUSALS):
            if self._file is None:
                self._file = self._opened(self._path)
                self._whole(self._file, self._recover)
            self._whole(self._file, bring)
            memory.close()
            self._memory, self.unread = None, ""
            self.touched.clear()
            self._tell(f"chats are saved in {self._path} again")

    def _whole(
        self,
        connection: sqlite3.Connection,
        work: Callable[[sqlite3.Connection], _T],
        *,
        reading: bool = False,
    ) -> _T:
        until = min(time.monotonic() + database.BUSY_S, self.busy_until)
        database.begin(connection, "BEGIN" if reading else "BEGIN IMMEDIATE", until=until)
        try:
            result = work(connection)
            connection.execute("COMMIT")
            return result
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def unwritten(self) -> list[Conversation]:
        """Writes what it can to the file; returns the sessions that are in memory alone."""
        self._tried = float("-inf")
        with suppress(SessionError):
            self.do(lambda _: None)
        if not self.waiting or self._memory is None:
            return []
        found = []
        for id in sorted(self.touched):
            with suppress(sqlite3.Error, ValueError, TypeError):
                found.append(rows.read(self._memory, id))
        return [talk for talk in found if talk and (talk.turns or talk.draft)]

    def close(self) -> None:
        """Closes the file; what was overwritten in it is so on the disk as well."""
        if self._file is not None:
            with suppress(sqlite3.Error):  # another program reads it: whoever closes it last does this
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for connection in (self._file, self._memory):
            if connection is not None:
                connection.close()


def _reason(path: Path, error: Exception) -> str:
    """Says why a file cannot be opened."""
    if isinstance(error, OSError):
        return f"{error.filename or path} cannot be written ({error.strerror})"
    return f"{path} cannot be opened ({error})" if isinstance(error, sqlite3.Error) else str(error)
