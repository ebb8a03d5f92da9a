"""The file of the sessions, as their thread uses it: work on it happens wholly or not at all.

One rule for what goes wrong: it is reported once, and whoever asked keeps what could not be written. A file
that cannot be opened for writing is read as far as that is possible. A damaged one is set aside, and the last
copy takes its place, which is made by the first writing of a run and at its end.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database

_T = TypeVar("_T")


class SessionStorage:
    """The connection of the sessions' thread, which alone uses it.

    failing: why nothing can be written now, or "". was_open: it could be written once. unread: why nothing of
    the file can be read, or "". busy_until: when other programs are no longer waited for.
    """

    def __init__(
        self, path: Path | None, *, on_notice: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        """path: None keeps everything in memory."""
        self._path, self._tell, self._clock = path, on_notice, clock
        self._file: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None  # while there is no `_file`
        self.recover: Callable[[sqlite3.Connection], None] = lambda _: None  # sets up an opened file
        self.failing = self.unread = ""
        self.was_open = self._changed = False
        self.busy_until = float("inf")  # seconds, monotonic

    def do(self, work: Callable[[sqlite3.Connection], _T], *, reading: bool = False) -> _T:
        """Does work on the rows, wholly or not at all; raises SessionError if that is impossible.

        reading: it changes nothing, and so need not wait for another program that writes.
        """
        try:
            try:
                result = self._whole(self._connected(reading), work, reading)
            except sqlite3.Error as error:
                if self._path is None or self._file is None or not database.is_damage(error):
                    raise
                self._replace(self._path, error)
                result = self._whole(self._connected(reading), work, reading)
        except (sqlite3.Error, OSError) as error:
            why = _reason(self._path, error)
            if not reading:
                self._fail(why)
            raise SessionError(why) from None
        if not reading:
            if not self._changed:
                self._changed = True
                self._copy()
        return result

    def all_written(self) -> None:
        """Notes that nothing is kept elsewhere any more."""
        if self.failing:
            self.failing = ""
            self._tell(f"chats are saved in {self._path} again")

    def _fail(self, why: str) -> None:
        if not self.failing:
            self._tell(
                f"chats are not saved for now: {why}; what you write is kept in memory, is saved as soon as "
                "that works, and is offered as a file at the end"
            )
        self.failing = why

    def _connected(self, reading: bool) -> sqlite3.Connection:
        """Returns the connection to the file, opened if it can be; to read, one that only reads will do."""
        if self._file is None and self._path is None:
            self._file = database.in_memory()
        if self._file is not None:
            return self._file
        assert self._path is not None
        try:
            self._file = self._opened(self._path)
        except (SessionError, sqlite3.Error, OSError) as error:
            self._fail(_reason(self._path, error))
            if not reading:
                raise
            return self._reading(self._path)
        self.was_open, self.unread = True, ""
        with suppress(sqlite3.Error):  # a full disk: it is done by the next program
            self._whole(self._file, self.recover, False)
        return self._file

    def _opened(self, path: Path) -> sqlite3.Connection:
        try:
            return database.opened(path)
        except sqlite3.Error as error:
            if not database.is_damage(error):
                raise
            self._replace(path, error)
            return database.opened(path)

    def _reading(self, path: Path) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = database.reader(path)
            if self._reader is None:
                with suppress(OSError):
                    self.unread = self.failing if path.exists() else ""
        return self._reader or database.in_memory()

    def _replace(self, path: Path, error: sqlite3.Error) -> None:
        """Sets a damaged file aside, and puts its last copy in its place. Raises OSError."""
        if self._file is not None:
            self._file.close()
            self._file = None
        aside = database.set_aside(path, now=self._clock())
        n = database.restored(path)
        chats = (
            f"its last copy, with {n} chat{'s'[: n != 1]}, takes its place" if n else "a new one is started"
        )
        self._tell(
            f"the chats in {path.name} are damaged ({error}): the file is kept as {aside}, and {chats}"
        )

    def _whole(
        self, connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], _T], reading: bool
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

    def _copy(self) -> None:
        """Copies the file, or removes the last copy: it may have what was deleted since."""
        if self._file is None or self._path is None:
            return
        try:
            database.copy(self._file, database.copy_of(self._path))
        except (sqlite3.Error, OSError):
            with suppress(OSError):
                database.copy_of(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; what was overwritten in it is so on the disk as well, and in its copy."""
        if self._file is not None:
            with suppress(sqlite3.Error):  # another program reads it: whoever closes it last does this
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if self._changed:
                self._copy()
        for connection in (self._file, self._reader):
            if connection is not None:
                connection.close()


def _reason(path: Path | None, error: Exception) -> str:
    """Says why a file cannot be read or written."""
    if isinstance(error, OSError):
        return f"{error.filename or path} cannot be written ({error.strerror})"
    return f"{path} cannot be written ({error})" if isinstance(error, sqlite3.Error) else str(error)
