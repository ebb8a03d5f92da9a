"""Finds sessions by words, in their titles and texts."""

import sqlite3
from collections.abc import Iterable, Sequence

from edgespec_tui.sessions.rows import LIST, Listed, as_listed, clean, listed

AROUND = 30  # characters shown on either side of a match


def searched(connection: sqlite3.Connection, query: str, *, limit: int) -> list[Listed]:
    """Returns the sessions with every word of `query` in the title or in one turn, the newest first.

    A word may be part of a longer one, in any case; "several words" in quotes are searched together.
    """
    words = [clean(word) for word in words_of(query)]
    if not words:
        return listed(connection, limit=limit)
    held, texts = _held("w", words)
    titled = " AND ".join("title LIKE ? ESCAPE '!'" for _ in words)
    titles = [f"%{_escaped(word)}%" for word in words]
    rows = connection.execute(
        "SELECT f.*, (SELECT w.text FROM words w JOIN turns t ON t.row = w.rowid "
        f"WHERE t.session = f.id AND {held} ORDER BY t.id LIMIT 1) "
        f"FROM ({LIST} AND (({titled}) OR s.id IN (SELECT session FROM turns WHERE row IN "
        f"(SELECT w.rowid FROM words w WHERE {held}))) ORDER BY changed DESC LIMIT ?) f",
        (*texts, *titles, *texts, limit),
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
    conditions = [f"{table}.text MATCH ?"] * bool(long) + [f"{table}.text LIKE ? ESCAPE '!'"] * len(short)
    return " AND ".join(conditions), [matched] * bool(long) + [f"%{_escaped(word)}%" for word in short]


def _escaped(word: str) -> str:
    return word.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def excerpt(text: str, words: Iterable[str]) -> str:
    """Returns the surroundings of the first word that is in `text`, on one line."""
    low = text.lower()
    at = min((low.find(word.lower()) for word in words if word.lower() in low), default=-1)
    if at < 0:
        return ""
    begin, end = max(0, at - AROUND), at + 2 * AROUND
    cut = " ".join(text[begin:end].split())
    return ("…" if begin else "") + cut + ("…" if end < len(text) else "")
