"""The file of the saved chats: work on it happens wholly or not at all.

SQLite with a write-ahead log: what was committed survives `kill -9`, and two programs may write at once.
`user_version` is the format; a file of a newer one is left alone. Everything here blocks, and runs on the
thread of `Sessions`.

One rule for what goes wrong: it is reported once, and whoever asked keeps what could not be written. A file
that cannot be opened for writing is read as far as that is possible. A damaged one is set aside, and the last
copy takes its place, which is made by the first writing of a run and at its end.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from edgespec.errors import SessionError
from edgespec_models.kept_file import remove_left, replacing

_T = TypeVar("_T")

APPLICATION = 0x45645370  # "EdSp", in the header of the file
BUSY_S = 5.0  # how long another program's write is waited for

FORMAT = 2
TABLES = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    settings TEXT NOT NULL,  -- JSON: `Conversation.saved`
    head INTEGER,
    created REAL NOT NULL,   -- seconds since 1970
    changed REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS turns (
    row INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    id INTEGER NOT NULL,     -- this and the next nine are the fields of `Turn`
    parent INTEGER,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    finish TEXT,
    model TEXT NOT NULL,
    runs TEXT NOT NULL,      -- JSON, as the next two
    figures TEXT NOT NULL,
    settings TEXT NOT NULL,
    created REAL NOT NULL,   -- when it was written last
    UNIQUE (session, id)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
FROM_FORMAT_1 = f"""
BEGIN IMMEDIATE;
DROP TRIGGER IF EXISTS words_go;
DROP TABLE IF EXISTS words;  -- an index of all texts, five times as large as they are
DELETE FROM sessions WHERE deleted IS NOT NULL;  -- when; that column is not used any more
PRAGMA user_version = {FORMAT};
COMMIT;
"""


class SessionFile:
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
        busy_s: float = BUSY_S,
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
            if _is_damage(error) and not again:
                self._let_go()  # where it is opened again, it is checked
                return self.do(work, reading=reading, again=True)
            self._fail(why := self._reason(error))
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
            except (sqlite3.Error, OSError) as error:
                if not reading or self._path is None or (only_read := reader(self._path)) is None:
                    raise
                self._fail(self._reason(error))
                self._file = only_read
            else:
                self._let_go()
                self._file, self._writable, self.was_open = file, True, self._path is not None
        return self._file

    def _opened(self) -> sqlite3.Connection:
        """Opens the file; its last copy, if it is damaged."""
        try:
            return opened(self._path, busy_s=self._busy_s)
        except sqlite3.Error as error:
            if self._path is None or not _is_damage(error):
                raise
            self._tell(_replaced(self._path, error, now=self._clock()))
        self._on_replaced()
        return opened(self._path, busy_s=self._busy_s)

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
                _copied(self._file, copy_of(self._path))
            except (sqlite3.Error, OSError):
                with suppress(OSError):
                    copy_of(self._path).unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file; what was overwritten in it is so on the disk as well, and in its copy."""
        if self._file is not None and self._changed:
            with suppress(sqlite3.Error):  # another program reads it: whoever closes it last does this
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._copy()
        self._let_go()


def opened(path: Path | None, *, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Returns a connection to a file, made if there was none; None: to memory.

    Raises SessionError for a file of another program's or of a newer format, sqlite3.Error for what SQLite
    finds, OSError for the folder.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # conversations are private
    connection = connected(path or ":memory:", busy_s=busy_s)
    try:
        version = _format_of(connection, path)
        _check(connection)
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut costs seconds, never the file
        with suppress(sqlite3.OperationalError):  # two programs that do this at once: the next one does
            connection.execute("PRAGMA journal_mode = WAL")
        if version == 0:
            connection.executescript(TABLES)
        elif version < FORMAT and path is not None:
            _copied(connection, copy_of(path))
            connection.executescript(FROM_FORMAT_1)
        if version and path is not None:
            _shrink(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _shrink(connection: sqlite3.Connection) -> None:
    """Gives room back where most of a file is free: an index has gone, or many chats."""
    free, all_of_it = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_count")
    )
    if 2 * free > all_of_it:
        with suppress(sqlite3.OperationalError):  # no room for it, or another window has the file
            connection.execute("VACUUM")


def connected(where: Path | str, *, uri: bool = False, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Returns a connection; damaged text is read as far as it is text, and hides no chat."""
    connection = sqlite3.connect(
        where, timeout=busy_s, isolation_level=None, check_same_thread=False, uri=uri
    )
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _format_of(connection: sqlite3.Connection, path: Path | None) -> int:
    """Returns the format of a file, 0 for a new one. Raises SessionError if it is not ours."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()  # set with the first table
    if tables and application != APPLICATION:
        raise SessionError(
            f"{path} is a database of another program: move it away, or set EDGESPEC_DATA_DIR "
            "to another folder"
        )
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > FORMAT:
        raise SessionError(
            f"{path} was written by a newer EdgeSpec (format {version}, this one knows {FORMAT}): update "
            "EdgeSpec; until then chats are not saved"
        )
    return version


def _check(connection: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError with what SQLite's own check finds first."""
    found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found.splitlines()[0])


def _is_damage(error: Exception) -> bool:
    """True if the file itself is damaged: of SQLite's errors, that one has no class of its own."""
    return type(error) is sqlite3.DatabaseError


def reader(path: Path) -> sqlite3.Connection | None:
    """Returns a connection to a file that cannot be written; None if it cannot be read either."""
    for how in ("mode=ro", "immutable=1"):  # the second needs no room for a log
        with suppress(sqlite3.Error):
            connection = connected(f"{path.absolute().as_uri()}?{how}", uri=True)
            with suppress(sqlite3.Error):
                if connection.execute("SELECT count(*) FROM sessions").fetchone():
                    return connection
            connection.close()
    return None


def copy_of(path: Path) -> Path:
    """Returns where the last copy of a file lies."""
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def _copied(connection: sqlite3.Connection, to: Path) -> None:
    """Copies a file as it is at one moment, wholly or not at all. Raises OSError, sqlite3.Error."""
    remove_left(to.parent, to.name)  # chats that are deleted since may be in it
    with replacing(to, private=True) as half, closing(sqlite3.connect(half)) as other:
        connection.backup(other)


def _replaced(path: Path, error: sqlite3.Error, *, now: float) -> str:
    """Sets a damaged file aside, and puts its last copy in its place; says so. Raises OSError."""
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    then = "a new one is started"
    with suppress(sqlite3.Error, OSError), closing(connected(copy_of(path))) as last:
        _check(last)
        (n,) = last.execute("SELECT count(*) FROM sessions").fetchone()
        _copied(last, path)
        then = f"its last copy, with {n} chat{'s'[: n != 1]}, takes its place"
    return f"the chats in {path.name} are damaged ({error}): the file is kept as {aside}, and {then}"
