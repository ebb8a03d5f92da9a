"""The file of the saved chats: opened, copied, set aside if it is damaged.

SQLite with a write-ahead log: what was committed survives `kill -9`, and two programs may write at once.
`user_version` is the format; a file of a newer one is left alone. Everything here blocks, and runs on the
thread of `Sessions`.
"""

import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

from edgespec.errors import SessionError
from edgespec_models.kept_file import replacing

APPLICATION = 0x45645370  # "EdSp", in the header of the file
BUSY_S = 5.0  # how long another program's write is waited for
CHECKED_AT_OPENING = 16 * 2**20  # bytes; a larger file would delay its reader
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

FORMAT = 1
SCHEMA = """
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
INDEX_UNFINISHED = (  # answers that a crash cut off
    "INSERT OR REPLACE INTO words (rowid, text) "
    "SELECT row, text FROM turns WHERE finish IS NULL AND role = 'assistant'"
)


def opened(path: Path) -> sqlite3.Connection:
    """Returns a connection to a file, made if there was none.

    Raises SessionError for a file of another program's or of a newer format, sqlite3.Error for what
    SQLite finds (`is_damage` tells which of them mean that the file is lost), OSError for the folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # conversations are private
    connection = connected(path)
    try:
        _refuse_others(connection, path)
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        _create(connection)
        with suppress(sqlite3.OperationalError):  # two programs that do this at once: the next one does
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut costs seconds, never the file
        if path.stat().st_size <= CHECKED_AT_OPENING and (found := _fault_in(connection)):
            error = sqlite3.DatabaseError(found)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        with suppress(sqlite3.OperationalError):  # a full disk, or one that writes: the next one does
            connection.execute(INDEX_UNFINISHED)
    except BaseException:
        connection.close()
        raise
    return connection


def connected(where: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    """Returns a connection; damaged text is read as far as it is text, and hides no chat."""
    connection = sqlite3.connect(
        where, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=uri
    )
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def in_memory() -> sqlite3.Connection:
    """Returns a connection to an empty database that ends with the program."""
    connection = connected(":memory:")
    _create(connection)
    return connection


def _refuse_others(connection: sqlite3.Connection, path: Path) -> None:
    """Raises SessionError if a file is not ours."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]  # set with the first table
    if tables and application != APPLICATION:
        raise SessionError(
            f"{path} is a database of another program: move it away, or set EDGESPEC_DATA_DIR "
            "to another folder"
        )
    version = _format_of(connection)
    if version > FORMAT:
        raise SessionError(
            f"{path} was written by a newer EdgeSpec (format {version}, this one knows {FORMAT}): update "
            "EdgeSpec; until then chats are not saved"
        )


def _format_of(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _create(connection: sqlite3.Connection) -> None:
    """Makes the tables of a new file, wholly or not at all; several programs may do it at once."""
    if _format_of(connection) == 0:
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if _format_of(connection) == 0:
                for statement in SCHEMA.split(";\n"):  # `executescript` would commit before the first
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")


def _fault_in(connection: sqlite3.Connection) -> str:
    """Returns what SQLite's own check finds first; "" if the file is sound."""
    found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    return "" if found == "ok" else found.splitlines()[0]


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


def copy(connection: sqlite3.Connection, to: Path) -> None:
    """Copies a file as it is at one moment, wholly or not at all. Raises OSError, sqlite3.Error."""
    with replacing(to, private=True) as half, closing(sqlite3.connect(half)) as other:
        connection.backup(other)


def copy_of(path: Path) -> Path:
    """Returns where the last copy of a file lies."""
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def restored(path: Path) -> int:
    """Puts the last copy in the place of a file that has gone; returns how many chats it has."""
    with suppress(sqlite3.Error, OSError), closing(connected(copy_of(path))) as last:
        if not _fault_in(last):
            found: int = last.execute("SELECT count(*) FROM sessions WHERE deleted IS NULL").fetchone()[0]
            copy(last, path)
            return found
    return 0


def is_damage(error: Exception) -> bool:
    """True if the file itself is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE


def set_aside(path: Path, *, now: float) -> Path:
    """Renames a damaged file and its log; returns the new name. Raises OSError."""
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    os.replace(path, aside)
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    return aside
