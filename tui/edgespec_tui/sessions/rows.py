"""Sessions as rows: writing and reading conversations.

Each function is one statement or a few on a connection whose transaction the caller has begun.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from edgespec_tui.sessions.conversation import Conversation, Turn

Taken = list[tuple[str, Sequence[Any]]]  # rows of a session, each with the name of its table
COLUMNS = tuple(one.name for one in fields(Turn))  # of a turn: its fields
AS_JSON = ("runs", "figures", "settings")
WRITE_TURN = (
    f"INSERT OR REPLACE INTO turns (session, created, {', '.join(COLUMNS)}) "
    f"VALUES (?, ?{', ?' * len(COLUMNS)})"
)


def write(
    connection: sqlite3.Connection, talk: Conversation, known: Mapping[int, Turn], *, now: float
) -> None:
    """Writes a session: what it is besides its turns, and those that are not `known` to be in the file."""
    connection.execute(
        "INSERT INTO sessions (id, title, system, settings, head, created, changed) VALUES (?,?,?,?,?,?,?) "
        "ON CONFLICT (id) DO UPDATE SET title = excluded.title, system = excluded.system, "
        "settings = excluded.settings, head = excluded.head, changed = excluded.changed",
        (talk.id, clean(talk.title), clean(talk.system), json.dumps(talk.saved()), talk.head, now, now),
    )
    for turn in talk.turns.values():
        if known.get(turn.id) is not turn:
            connection.execute(WRITE_TURN, (talk.id, now, *(_value(turn, name) for name in COLUMNS)))


def _value(turn: Turn, name: str) -> int | str | None:
    """Returns a field of a turn as its column has it."""
    value = getattr(turn, name)
    if name in AS_JSON:
        return json.dumps(value, default=dict)
    return clean(value) if isinstance(value, str) else value


def clean(text: str) -> str:
    """Returns text that can be stored: half a character (a lone surrogate) becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def read(connection: sqlite3.Connection, id: int) -> Conversation | None:
    """Returns a session, or None if no session has this number.

    Raises ValueError, TypeError or AttributeError for rows that this program did not write so.
    """
    row = connection.execute(
        "SELECT title, system, settings, head FROM sessions WHERE id = ?", (id,)
    ).fetchone()
    if row is None:
        return None
    title, system, settings, head = row
    turns = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM turns WHERE session = ? ORDER BY id", (id,))
    talk = Conversation(id, title, system, turns={turn[0]: _turn(turn) for turn in turns}, head=head)
    talk.restore(json.loads(settings))
    for turn in talk.turns.values():
        if turn.parent is not None and not (turn.parent in talk.turns and turn.parent < turn.id):
            raise ValueError(f"turn {turn.id} follows turn {turn.parent}")
    if head is not None and head not in talk.turns:
        raise ValueError(f"turn {head} is not there")
    return talk


def _turn(row: Sequence[Any]) -> Turn:
    values = dict(zip(COLUMNS, row, strict=True))
    runs, figures, settings = (json.loads(values[name]) for name in AS_JSON)
    read = {"runs": tuple((str(source), int(n)) for source, n in runs)}
    return Turn(**{**values, **read, "figures": dict(figures), "settings": dict(settings)})


def take_out(connection: sqlite3.Connection, id: int) -> Taken:
    """Deletes a session; returns what `put_back` needs."""
    taken: Taken = [
        ("sessions", row) for row in connection.execute("SELECT * FROM sessions WHERE id = ?", (id,))
    ]
    for _, *row in connection.execute("SELECT * FROM turns WHERE session = ?", (id,)):
        taken.append(("turns", (None, *row)))  # by then another turn may have its row's number
    connection.execute("DELETE FROM sessions WHERE id = ?", (id,))  # its turns go with it
    return taken


def put_back(connection: sqlite3.Connection, taken: Taken) -> str:
    """Brings back what `take_out` has returned; returns its title. What was written since stays."""
    for table, row in taken:
        connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    (_, (_, title, *_)), *_ = taken
    return str(title)
