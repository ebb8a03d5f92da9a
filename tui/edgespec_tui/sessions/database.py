"""The file of the saved chats: opened, copied, and replaced by its copy if it is damaged.

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


def opened(path: Path | None, *, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Returns a connection to a file, made if there was none; None: to memory.

    Raises SessionError for a file of another program's or of a newer format, sqlite3.Error for what SQLite
    finds (see `is_damage`), OSError for the folder.
    """
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # conversations are private
    connection = connected(path or ":memory:", busy_s=busy_s)
    try:
        _refuse_others(connection, path)
        connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
        _create(connection)
        with suppress(sqlite3.OperationalError):  # two programs that do this at once: the next one does
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a power cut costs seconds, never the file
        if (found := _fault_in(connection)) != "ok":
            raise sqlite3.DatabaseError(found)
        with suppress(sqlite3.OperationalError):  # a full disk, or one that writes: the next one does
            connection.execute(INDEX_UNFINISHED)
    except BaseException:
        connection.close()
        raise
    return connection


def connected(where: Path | str, *, uri: bool = False, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Returns a connection; damaged text is read as far as it is text, and hides no chat."""
    connection = sqlite3.connect(
        where, timeout=busy_s, isolation_level=None, check_same_thread=False, uri=uri
    )
    connection.text_factory = lambda stored: stored.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _refuse_others(connection: sqlite3.Connection, path: Path | None) -> None:
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
    """Returns what SQLite's own check finds first, or "ok"."""
    found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    return found.splitlines()[0]


def is_damage(error: Exception) -> bool:
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


def copy(connection: sqlite3.Connection, to: Path) -> None:
    """Copies a file as it is at one moment, wholly or not at all. Raises OSError, sqlite3.Error."""
    with replacing(to, private=True) as half, closing(sqlite3.connect(half)) as other:
        connection.backup(other)


def copy_of(path: Path) -> Path:
    """Returns where the last copy of a file lies."""
    return path.with_name(f"{path.stem}-copy{path.suffix}")


def replaced(path: Path, error: sqlite3.Error, *, now: float) -> str:
    """Sets a damaged file aside, and puts its last copy in its place; says so. Raises OSError."""
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d-%H%M%S")
    aside = path.with_name(f"{path.stem}-damaged-{stamp}{path.suffix}")
    for ending in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.replace(f"{path}{ending}", f"{aside}{ending}")
    then = "a new one is started"
    with suppress(sqlite3.Error, OSError), closing(connected(copy_of(path))) as last:
        if _fault_in(last) == "ok":
            n = last.execute("SELECT count(*) FROM sessions WHERE deleted IS NULL").fetchone()[0]
            copy(last, path)
            then = f"its last copy, with {n} chat{'s'[: n != 1]}, takes its place"
    return f"the chats in {path.name} are damaged ({error}): the file is kept as {aside}, and {then}"
