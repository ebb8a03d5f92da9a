"""Sessions as rows: writing, reading and finding conversations.

Each function is one statement or a few on a connection whose transaction the caller has begun.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.tools.values import calls_of

GROWS = ("parent", "text", "reasoning", "finish", "model", "runs", "figures", "settings")
WRITE_TURN = (
    f"INSERT INTO turns (session, id, role, created, {', '.join(GROWS)}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?) "
    f"ON CONFLICT (session, id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in GROWS)} "
    "RETURNING row"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A session in a list."""

    id: int
    title: str
    changed: float  # seconds since 1970
    questions: int = 0
    model: str = ""  # that answered last
    beginning: str = ""  # of its last answer
    excerpt: str = ""  # where a search found it, else empty


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
        if known.get(turn.id) is turn:
            continue
        (row,) = connection.execute(WRITE_TURN, (talk.id, turn.id, turn.role, now, *_grown(turn))).fetchone()
        if turn.finish is not None or turn.role == "user":  # not at every write while an answer grows
            connection.execute(
                "INSERT OR REPLACE INTO words (rowid, text) VALUES (?, ?)", (row, searched_text(turn))
            )


def _grown(turn: Turn) -> tuple[int | str | None, ...]:
    """Returns what may change in a turn: the columns of `GROWS`."""
    texts = clean(turn.text), clean(turn.reasoning), turn.finish, clean(turn.model)
    values = (turn.runs, dict(turn.figures), dict(turn.settings))
    return turn.parent, *texts, *map(json.dumps, values)


def searched_text(turn: Turn) -> str:
    """Returns what a turn is found by: its text, and its calls with their results."""
    calls = (f"{call.title} {call.arguments}\n{call.result}" for call in calls_of(turn.settings))
    return clean("\n".join([turn.text, *calls]))


def clean(text: str) -> str:
    """Returns text that can be stored: half a character (a lone surrogate) becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def read(connection: sqlite3.Connection, id: int) -> Conversation | None:
    """Returns a session, or None if no session has this number (or it is deleted).

    Raises ValueError, TypeError or AttributeError for rows that this program did not write so.
    """
    head = connection.execute(
        "SELECT title, system, settings, head FROM sessions WHERE id = ? AND deleted IS NULL", (id,)
    ).fetchone()
    if head is None:
        return None
    rows = connection.execute(
        "SELECT id, parent, role, text, reasoning, finish, runs, figures, model, settings FROM turns "
        "WHERE session = ? ORDER BY id",
        (id,),
    )
    talk = Conversation(
        id=id,
        title=head[0],
        system=head[1],
        turns={row[0]: _turn(row) for row in rows},
        head=head[3],
    )
    talk.restore(json.loads(head[2]))
    for turn in talk.turns.values():
        if turn.parent is not None and not (turn.parent in talk.turns and turn.parent < turn.id):
            raise ValueError(f"turn {turn.id} follows turn {turn.parent}")
    if talk.head is not None and talk.head not in talk.turns:
        raise ValueError(f"turn {talk.head} is not there")
    return talk


def _turn(row: Sequence[Any]) -> Turn:
    runs = tuple((str(source), int(count)) for source, count in json.loads(row[6]))
    figures, settings = dict(json.loads(row[7])), dict(json.loads(row[9]))
    return Turn(*(*row[:6], runs, figures, row[8], settings))


LAST = "FROM turns WHERE session = s.id AND role = 'assistant' ORDER BY id DESC LIMIT 1"
BEGINNING = 60  # characters of an answer
LIST = (
    "SELECT s.id, title, changed, (SELECT count(*) FROM turns WHERE session = s.id AND role = 'user'), "
    f"coalesce((SELECT model {LAST}), ''), coalesce((SELECT substr(text, 1, {BEGINNING}) {LAST}), '') "
    "FROM sessions s WHERE deleted IS NULL"
)
ORDER = "ORDER BY changed DESC LIMIT ?"  # of every list of sessions


def listed(connection: sqlite3.Connection, *, limit: int) -> list[Listed]:
    """Returns the sessions, the one that changed last first."""
    return [as_listed(row) for row in connection.execute(f"{LIST} {ORDER}", (limit,))]


def as_listed(row: Sequence[Any], excerpt: str = "") -> Listed:
    """Returns a row of `LIST` as a value."""
    id, title, changed, questions, model, last = row
    return Listed(id, title, changed, questions, model, " ".join(last.split()), excerpt)


UNSET_S = 30 * 31_557_600


def ago(seconds: float) -> str:
    """Returns how long ago something was, in a word. A clock that was not set yet says 1970."""
    if seconds >= UNSET_S:
        return "long ago"
    for name, length in (("y", 31_557_600), ("mo", 2_629_800), ("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {name} ago"
    return "now"


def rename(connection: sqlite3.Connection, id: int, title: str) -> None:
    """Gives a session a title."""
    connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (clean(title), id))


def mark_deleted(connection: sqlite3.Connection, id: int, *, at: float | None) -> None:
    """Deletes a session so that it can be undone; None undoes it."""
    connection.execute("UPDATE sessions SET deleted = ? WHERE id = ?", (at, id))


def purge(connection: sqlite3.Connection, ids: Iterable[int], *, before: float) -> None:
    """Removes the deleted among `ids`, and what was deleted before `before`; the index forgets them, too."""
    gone = connection.execute("DELETE FROM sessions WHERE deleted < ?", (before,)).rowcount
    for id in ids:
        one = connection.execute("DELETE FROM sessions WHERE id = ? AND deleted IS NOT NULL", (id,))
        gone += one.rowcount
    if gone:  # else the index only notes that they are deleted, and keeps their letters
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")
