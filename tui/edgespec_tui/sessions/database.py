"""The file of the saved chats: opened, brought up to date, set aside if it is damaged.

SQLite with a write-ahead log: what was committed survives `kill -9`, and two programs may write at once.
`user_version` is the format; a file of an older one is copied before it is changed, one of a newer format is
left alone. Everything here blocks, and runs on the thread of `Sessions`.
"""

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from edgespec.errors import SessionError
from edgespec_models.kept_file import replacing

APPLICATION = 0x45645370  # "EdSp", in the header of the file
BUSY_S = 5.0  # how long another program's write is waited for
BUSY_STEP_S = 0.01
CHECKED_AT_OPENING = 16 * 2**20  # bytes; a larger file would delay its reader
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

FORMAT_1 = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    settings TEXT NOT NULL,  -- JSON: sampling, seed, max_tokens
    head INTEGER,
    created REAL NOT NULL,   -- seconds since 1970
    changed REAL NOT NULL,
    deleted REAL             -- when; it can be undone until the program ends
);
CREATE TABLE turns (
    row INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    id INTEGER NOT NULL,
    parent INTEGER,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    reasoning TEXT NOT NULL,
    finish TEXT,             -- NULL while it is being answered
    model TEXT NOT NULL,
    runs TEXT NOT NULL,      -- JSON: [source, characters], ...
    figures TEXT NOT NULL,   -- JSON
    settings TEXT NOT NULL,  -- JSON
    created REAL NOT NULL,
    UNIQUE (session, id)
);
CREATE INDEX sessions_changed ON sessions(changed);
CREATE INDEX turns_unfinished ON turns(session) WHERE finish IS NULL AND role = 'assistant';
CREATE VIRTUAL TABLE words USING fts5(text, tokenize = 'trigram');
CREATE TRIGGER words_go AFTER DELETE ON turns BEGIN DELETE FROM words WHERE rowid = old.row; END;
"""
MIGRATIONS: Sequence[str] = (FORMAT_1,)  # script i brings format i to format i + 1


def opened(path: Path, *, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """Returns a connection to a file of the newest format, made if there was none.

    Raises SessionError for a file of another program's or of a newer format, sqlite3.Error for what
    SQLite finds (`is_damage` tells which of them mean that the file is lost), OSError for the folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # conversations are private
    connection = connected(path)
    try:
        # if another program switches to a write-ahead log too, SQLite is busy without waiting
        begin(connection, "PRAGMA journal_mode = WAL", until=time.monotonic() + BUSY_S)
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut costs seconds, never the file
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        version = _format(connection, path, len(migrations))
        if path.stat().st_size <= CHECKED_AT_OPENING:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                error = sqlite3.DatabaseError(found.splitlines()[0])
                error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
                raise error
        if 0 < version < len(migrations):
            older = path.with_name(f"{path.stem}-format-{version}{path.suffix}")
            if not older.exists():
                copy(connection, older)
        migrate(connection, migrations)
        connection.execute(f"PRAGMA busy_timeout = {BUSY_STEP_S * 1000:.0f}")  # `begin` waits from now on
    except BaseException:
        connection.close()
        raise
    return connection


def connected(where: Path | str) -> sqlite3.Connection:
    """Returns a connection; damaged text is read as far as it is text, and hides no chat."""
    connection = sqlite3.connect(where, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    connection.text_factory = as_text
    return connection


def as_text(stored: bytes) -> str:
    """Returns a stored text as far as it is text."""
    return stored.decode("utf-8", "replace")


def is_ours(connection: sqlite3.Connection) -> bool:
    """True for a file of ours, of a format that this program knows."""
    application, version = _stamp(connection)
    return application == APPLICATION and version <= len(MIGRATIONS)


def _stamp(connection: sqlite3.Connection) -> tuple[int, int]:
    """Returns whose file it is, and its format."""
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return application, version


def begin(connection: sqlite3.Connection, how: str, *, until: float) -> None:
    """Begins a transaction, once other programs let it, by a time of the monotonic clock."""
    while True:
        try:
            connection.execute(how)
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > until:
                raise
            time.sleep(BUSY_STEP_S)


def is_busy(error: sqlite3.Error) -> bool:
    """True if another program has the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def in_memory() -> sqlite3.Connection:
    """Returns a connection to an empty database that ends with the program."""
    connection = connected(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection, MIGRATIONS)
    return connection


def _format(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    """Returns the format of the file, 0 for a new one; raises SessionError if it is not ours."""
    connection.execute("BEGIN")  # another program may be making the file: all three of one moment
    try:
        application, version = _stamp(connection)
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        connection.execute("COMMIT")
    if tables and application != APPLICATION:
        raise SessionError(
            f"{path} is a database of another program: move it away, or set EDGESPEC_DATA_DIR "
            "to another folder"
        )
    if version > newest:
        raise SessionError(
            f"{path} was written by a newer EdgeSpec (format {version}, this one knows {newest}): update "
            "EdgeSpec; until then chats are not saved"
        )
    return version


def copy(connection: sqlite3.Connection, to: Path) -> None:
    """Copies a file as it is at one moment, wholly or not at all. Raises OSError, sqlite3.Error."""
    with replacing(to, private=True) as half, closing(sqlite3.connect(half)) as other:
        connection.backup(other)


def copy_of(path: Path) -> Path:
    """Returns where the last copy of a whole file lies, made whenever a program ends that wrote it."""
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def restored(path: Path) -> int:
    """Puts the last copy in the place of a file that has gone; returns how many chats it has."""
    with suppress(sqlite3.Error, OSError), closing(connected(copy_of(path))) as last:
        if is_ours(last) and last.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
            copy(last, path)
            found: int = last.execute("SELECT count(*) FROM sessions WHERE deleted IS NULL").fetchone()[0]
            return found
    return 0


def reader(path: Path) -> sqlite3.Connection | None:
    """Returns a connection to a file of ours that cannot be written; None if it cannot be read either."""
    for how in ("mode=ro", "immutable=1"):  # the second needs no room for a log
        with suppress(sqlite3.Error):
            where = f"{path.absolute().as_uri()}?{how}"
            connection = sqlite3.connect(where, uri=True, isolation_level=None)
            connection.text_factory = as_text
            with suppress(sqlite3.Error):
                if is_ours(connection) and connection.execute("SELECT count(*) FROM sessions").fetchone():
                    return connection
            connection.close()
    return None


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Brings a database to the newest format, wholly or not at all. Two programs may do it at once.

    Writes nothing to one that has that format: the disk may be full.
    """
    if _stamp(connection) == (APPLICATION, len(migrations)):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for script in migrations[version:]:
            for statement in script.split(";\n"):  # `executescript` would commit before the first
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {max(version, len(migrations))}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has done it by itself, and this would hide the reason
            connection.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """True if the file itself is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


def set_aside(path: Path, *, now: float) -> Path:
    """Renames a damaged file and its log; returns the new name. Raises OSError."""
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.stem}-damaged-{stamp}-{number}{path.suffix}")
    os.replace(path, aside)
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    return aside
