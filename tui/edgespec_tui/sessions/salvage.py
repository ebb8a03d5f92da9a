"""What can still be read: of a file that takes no writing, and of one that is damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edgespec_tui.sessions import database, rows

MOST_ROWS = 1_000_000  # that are looked for one by one
SESSION = "id, title, system, settings, head, created, changed, deleted"
TURN = "session, id, parent, role, text, reasoning, finish, model, runs, figures, settings, created"


@contextmanager
def _reading(path: Path, how: str) -> Iterator[sqlite3.Connection]:
    """Opens a file for reading alone. how: "mode=ro" reads its log too, "immutable=1" needs no room."""
    where = f"{path.absolute().as_uri()}?{how}"
    with closing(sqlite3.connect(where, uri=True, isolation_level=None)) as connection:
        connection.text_factory = database.as_text
        yield connection


def copy_in_memory(path: Path) -> sqlite3.Connection | None:
    """Returns a copy of a file of ours that cannot be written, in memory; None if it cannot be read."""
    for how in ("mode=ro", "immutable=1"):
        with suppress(sqlite3.Error), _reading(path, how) as file:
            if database.is_ours(file):
                return database.in_memory(file)
    return None


def salvage(path: Path, into: sqlite3.Connection) -> int:
    """Copies what is still whole in a damaged file; returns how many sessions that are."""
    known: dict[int, bool] = {}
    for how in ("mode=ro", "immutable=1"):
        with suppress(sqlite3.Error), _reading(path, how) as file:
            into.execute("BEGIN IMMEDIATE")
            for id in _numbers(file, "SELECT id FROM sessions INDEXED BY sessions_changed"):
                _copy_session(file, into, id, known)
            for row in _turns(file):
                if _copy_session(file, into, row[0], known):
                    _copy_turn(into, row)
            into.execute("COMMIT")
        if into.in_transaction:
            into.execute("ROLLBACK")
    return sum(known.values())


def _copy_session(
    file: sqlite3.Connection, into: sqlite3.Connection, id: int, known: dict[int, bool]
) -> bool:
    """Copies a session, once; returns False for one that was deleted. known: those seen so far."""
    if id not in known:
        row = (id, "", "", "{}", -1, 0.0, 0.0, None)  # its own may be gone: its last turn is then its head
        with suppress(sqlite3.Error):
            row = file.execute(f"SELECT {SESSION} FROM sessions WHERE id = ?", (id,)).fetchone() or row
        known[id] = row[7] is None
        if known[id]:
            into.execute(f"INSERT OR IGNORE INTO sessions ({SESSION}) VALUES (?,?,?,?,?,?,?,?)", row)
    return known[id]


def _copy_turn(into: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    with suppress(sqlite3.IntegrityError):
        marks = ",".join("?" * len(row))
        query = f"INSERT OR IGNORE INTO turns ({TURN}) VALUES ({marks}) RETURNING row"
        if (number := into.execute(query, row).fetchone()) is not None:
            rows.index(into, number[0], row[4])


def _turns(file: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    """Yields the turns that can be read, each looked for by itself: a scan would end at the first damage."""
    last = next(_numbers(file, "SELECT max(row) FROM turns"), MOST_ROWS // 100)
    for number in range(1, min(last, MOST_ROWS) + 1):
        with suppress(sqlite3.Error):
            row = file.execute(f"SELECT {TURN} FROM turns WHERE row = ?", (number,)).fetchone()
            if row is not None and row[3] in ("user", "assistant") and isinstance(row[4], str):
                yield row


def _numbers(file: sqlite3.Connection, query: str) -> Iterator[int]:
    """Yields numbers as far as they can be read."""
    with suppress(sqlite3.Error):
        for (number,) in file.execute(query):
            if isinstance(number, int):
                yield number
