"""The file of the sessions, as their thread uses it: work on it happens wholly or not at all.

One rule for what goes wrong: it is reported once, and whoever asked keeps what could not be written. A file
that cannot be opened for writing is read as far as that is possible. A damaged one is set aside, and the last
copy takes its place, which is made by the first writing of a run and at its end.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_tui.sessions import database

_T = TypeVar("_T")


class SessionStorage:
    """The connection of the sessions' thread, which alone uses it.

    failing: why nothing can be written now, or "". was_open: it could be written once.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        on_notice: Callable[[str], None],
        on_replaced: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """path: None keeps everything in memory. on_replaced: called once another file is in its place."""
        self._path, self._tell, self._on_replaced, self._clock = path, on_notice, on_replaced, clock
        self._file: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None  # while there is no `_file`
        self.failing = ""
        self.was_open = self._changed = False

    def do(self, work: Callable[[sqlite3.Connection], _T], *, reading: bool = False) -> _T:
        """Does work on the rows, wholly or not at all; raises SessionError if that is impossible.

        reading: it changes nothing, and so need not wait for another program that writes.
        """
        try:
            try:
                result = self._whole(work, reading)
            except sqlite3.Error as error:
                if self._path is None or not database.is_damage(error):
                    raise
                self._replace(self._path, error)
                result = self._whole(work, reading)
        except (sqlite3.Error, OSError) as error:
            why = _reason(self._path, error)
            if not reading:
                self._fail(why)
            raise SessionError(why) from None
        if not (reading or self._changed):
            self._changed = True
            self._copy()
        return result

    def _whole(self, work: Callable[[sqlite3.Connection], _T], reading: bool) -> _T:
        connection = self._connected(reading)
        with connection:
            connection.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
            return work(connection)

    def all_written(self) -> None:
        """Notes that nothing is kept elsewhere any more."""
        if self.failing:
            self.failing = ""
            self._tell(f"chats are saved in {self._path} again")

    def _fail(self, why: str) -> None:
        if not self.failing:
            self._tell(
                f"chats are not saved for now: {why}; what you write is kept in memory, is saved as soon as "
                "that works, or goes to a file at the end"
            )
        self.failing = why

    def _connected(self, reading: bool) -> sqlite3.Connection:
        """Returns the connection to the file, opened if it can be; to read, one that only reads will do."""
        if self._file is not None:
            return self._file
        try:
            self._file = database.in_memory() if self._path is None else database.opened(self._path)
        except (SessionError, sqlite3.Error, OSError) as error:
            assert self._path is not None
            if database.is_damage(error):
                raise
            self._fail(_reason(self._path, error))
            if not reading:
                raise
            if self._reader is None:
                found = None if isinstance(error, SessionError) else database.reader(self._path)
                if found is None and os.path.exists(self._path):
                    raise
                self._reader = found or database.in_memory()
            return self._reader
        self.was_open = self._path is not None
        return self._file

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
        self._on_replaced()

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
        if self._file is not None and self._changed:
            if not self.failing:
                with suppress(sqlite3.Error):  # another program reads it: whoever closes it last does this
                    self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._copy()
        for connection in (self._file, self._reader):
            if connection is not None:
                connection.close()


def _reason(path: Path | None, error: Exception) -> str:
    """Says why a file cannot be read or written."""
    if isinstance(error, OSError):
        return f"{error.filename or path} cannot be written ({error.strerror})"
    return f"{path} cannot be written ({error})" if isinstance(error, sqlite3.Error) else str(error)
