"""Finds sessions: by words in their titles and texts, or the one that a person names."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from edgespec.errors import SessionError
from edgespec_tui.sessions.rows import LIST, ORDER, Listed, as_listed, clean, listed

AROUND = 30  # characters shown on either side of a match


def searched(connection: sqlite3.Connection, query: str, *, limit: int) -> list[Listed]:
    """Returns the sessions with every word of `query` in the title or in one turn, the newest first.

    A word may be part of a longer one, in any case; "several words" in quotes are searched together.
    """
    words = [clean(word) for word in words_of(query)]
    if not words:
        return listed(connection, limit=limit)
    held, texts = _held("w", words)
    titled = " AND ".join("instr(lower(title), lower(?))" for _ in words)
    rows = connection.execute(
        "SELECT f.*, (SELECT w.text FROM words w JOIN turns t ON t.row = w.rowid "
        f"WHERE t.session = f.id AND {held} ORDER BY t.id LIMIT 1) "
        f"FROM ({LIST} AND (({titled}) OR s.id IN (SELECT session FROM turns WHERE row IN "
        f"(SELECT w.rowid FROM words w WHERE {held}))) {ORDER}) f",
        (*texts, *words, *texts, limit),
    )
    return [as_listed(row, excerpt(text or "", words)) for *row, text in rows]


def words_of(query: str) -> Iterable[str]:
    """Yields the search words, and the phrases in quotes."""
    for i, part in enumerate(query.split('"')):
        yield from (part.split() if i % 2 == 0 else [part.strip()] if part.strip() else [])


def _held(table: str, words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the condition that a text holds every word, and its parameters.

    The index knows three letters and more; shorter words are searched in every text.
    """
    long = [word for word in words if len(word) >= 3]
    short = [word for word in words if len(word) < 3]
    matched = " AND ".join('"' + word.replace('"', '""') + '"' for word in long)
    conditions = [f"{table}.text MATCH ?"] * bool(long) + [f"instr(lower({table}.text), lower(?))"] * len(
        short
    )
    return " AND ".join(conditions), [matched] * bool(long) + short


def excerpt(text: str, words: Iterable[str]) -> str:
    """Returns the surroundings of the first word that is in `text`, on one line."""
    low = text.lower()
    at = min((low.find(word.lower()) for word in words if word.lower() in low), default=-1)
    if at < 0:
        return ""
    begin, end = max(0, at - AROUND), at + 2 * AROUND
    cut = " ".join(text[begin:end].split())
    return ("…" if begin else "") + cut + ("…" if end < len(text) else "")


ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no letters look alike
NAME_LENGTH = 12  # letters of a whole name: 60 bits
SHOWN_LENGTH = 6
NAME_BITS = 5 * NAME_LENGTH


def name_of(id: int) -> str:
    """Returns a session's name, made from its number; its beginning is enough to name it."""
    return "".join(ALPHABET[id >> shift & 31] for shift in range(5 * (NAME_LENGTH - 1), -1, -5))


def short_name_of(id: int) -> str:
    """Returns as much of a session's name as lists show."""
    return name_of(id)[:SHOWN_LENGTH]


def the_one(sessions: Sequence[Listed], text: str) -> int:
    """Returns the session that a title, a name or part of a title means; raises SessionError."""
    wanted = text.strip().lower()
    ways: tuple[Callable[[Listed], bool], ...] = (
        lambda session: session.title.lower() == wanted,
        lambda session: bool(wanted) and name_of(session.id).startswith(wanted),
        lambda session: bool(wanted) and wanted in session.title.lower(),
    )
    for way in ways:
        found = [session for session in sessions if way(session)]
        if len(found) == 1:
            return found[0].id
        if found:
            which = ", ".join(f"{short_name_of(s.id)} ({s.title})" for s in found[:3])
            more = ", and more" if len(found) > 3 else ""
            raise SessionError(f"{text!r} matches several chats: {which}{more}: name one by its letters")
    raise SessionError(f"there is no chat {text!r}: edgespec chat --list shows them")
