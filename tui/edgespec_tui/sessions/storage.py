"""The file of the sessions, as their thread uses it: work on it happens wholly or not at all.

One rule for what goes wrong: it is reported once, and whoever asked keeps what could not be written. A file
that cannot be opened for writing is read as far as that is possible. A damaged one is set aside, and the last
copy takes its place, which is made by the first writing of a run and at its end.
"""

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
        busy_s: float = database.BUSY_S,
    ) -> None:
        """path: None keeps everything in memory. on_replaced: called once another file is in its place."""
        self._path, self._tell, self._on_replaced, self._clock = path, on_notice, on_replaced, clock
        self._busy_s = busy_s
        self._file: sqlite3.Connection | None = None
        self._writable = self.was_open = self._changed = False
        self.failing = ""

    def do(
        self, work: Callable[[sqlite3.Connection], _T], *, reading: bool = False, again: bool = False
    ) -> _T:
        """Does work on the rows, wholly or not at all; raises SessionError if that is impossible.

        reading: it changes nothing, and so need not wait for another program that writes.
        """
        try:
            with self._connected(reading) as file:
                file.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
                result = work(file)
        except (sqlite3.Error, OSError, SessionError) as error:
            if database.is_damage(error) and not again:
                self._let_go()  # where it is opened again, it is checked
                return self.do(work, reading=reading, again=True)
            why = self._reason(error)
            if not reading:
                self._fail(why)
            raise SessionError(why) from None
        if not (reading or self._changed):
            self._changed = True
            self._copy()
        return result

    def _connected(self, reading: bool) -> sqlite3.Connection:
        """Returns the connection to the file, opened if it can be; to read, one that only reads will do."""
        if self._file is None or not (reading or self._writable):
            try:
                file = self._opened()
            except (SessionError, sqlite3.Error, OSError) as error:
                self._fail(self._reason(error))
                if reading and self._path and not isinstance(error, SessionError):
                    self._file = self._file or database.reader(self._path)
                if not reading or self._file is None:
                    raise
            else:
                self._let_go()
                self._file, self._writable = file, True
                self.was_open = self._path is not None
        return self._file

    def _opened(self) -> sqlite3.Connection:
        """Opens the file; its last copy, if it is damaged."""
        try:
            return database.opened(self._path, busy_s=self._busy_s)
        except sqlite3.Error as error:
            if self._path is None or not database.is_damage(error):
                raise
            self._tell(database.replaced(self._path, error, now=self._clock()))
        self._on_replaced()
        return database.opened(self._path, busy_s=self._busy_s)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._writable = None, False

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

    def _reason(self, error: Exception) -> str:
        """Says why the file cannot be read or written."""
        if isinstance(error, OSError):
            return f"{error.filename or self._path} cannot be written ({error.strerror})"
        return f"{self._path} cannot be written ({error})" if isinstance(error, sqlite3.Error) else str(error)

    def _copy(self) -> None:
        """Copies the file, or removes the last copy: it may have what was deleted since."""
        if self._file is not None and self._path is not None:
            try:
                database.copy(self._file, database.copy_of(self._path))
            except (sqlite3.Error, OSError):
                with suppress(OSError):
                    database.copy_of(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; what was overwritten in it is so on the disk as well, and in its copy."""
        if self._file is not None and self._changed:
            with suppress(sqlite3.Error):  # another program reads it: whoever closes it last does this
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._copy()
        self._let_go()
