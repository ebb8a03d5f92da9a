"""Sessions in lists: found by words, put in order, named, and described for every list in the same way."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from edgespec.errors import SessionError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.tools.values import CALLS, calls_of

AROUND = 30  # characters shown on either side of a match
BEGINNING = 60  # characters of an answer
LAST = "FROM turns WHERE session = s.id AND role = 'assistant' ORDER BY id DESC LIMIT 1"
LIST = (
    "SELECT s.id, title, settings, changed, "
    "(SELECT count(*) FROM turns WHERE session = s.id AND role = 'user'), "
    f"coalesce((SELECT model {LAST}), ''), coalesce((SELECT substr(text, 1, {BEGINNING}) {LAST}), '') "
    "FROM sessions s"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A session in a list."""

    id: int
    talk: Conversation  # with its title and what is saved of it; its turns are not read
    changed: float  # seconds since 1970
    questions: int = 0
    model: str = ""  # that answered last
    beginning: str = ""  # of its last answer
    excerpt: str = ""  # where a search found it, else empty

    @property
    def place(self) -> tuple[float, ...]:
        """Its place in every list: the greatest is the first."""
        return (self.changed,)

    @property
    def heading(self) -> str:
        """Its title, as every list shows it."""
        return self.talk.title or "Untitled"

    def age(self, now: float) -> str:
        """Returns how long ago it changed, in a word. A clock that was not set yet says 1970."""
        seconds = now - self.changed
        if seconds >= UNSET_S:
            return "long ago"
        for name, length in (("y", 31_557_600), ("mo", 2_629_800), ("d", 86400), ("h", 3600), ("min", 60)):
            if seconds >= length:
                return f"{int(seconds // length)} {name} ago"
        return "now"


UNSET_S = 30 * 31_557_600


def found(connection: sqlite3.Connection, query: str = "") -> list[Listed]:
    """Returns the sessions with every word of `query` in the title or in one turn, in no order.

    A word may be part of a longer one, in any case; "several words" in quotes are searched together.
    """
    words = [word.lower() for word in words_of(query)]
    places = _places(connection, words) if words else {}
    sessions = []
    for id, title, settings, changed, questions, model, last in connection.execute(LIST):
        if words and id not in places and not all(word in title.lower() for word in words):
            continue
        talk = Conversation(id, title)
        with suppress(ValueError, TypeError, AttributeError):  # damaged: opening it reports that
            talk.restore(json.loads(settings))
        beginning = " ".join(last.split())
        sessions.append(Listed(id, talk, changed, questions, model, beginning, places.get(id, "")))
    return sessions


def _places(connection: sqlite3.Connection, words: Sequence[str]) -> dict[int, str]:
    """Returns where each session has every word in one turn: the surroundings of the first of them."""
    places: dict[int, str] = {}
    for session, text, settings in connection.execute(
        "SELECT session, text, settings FROM turns ORDER BY session, id"
    ):
        if session not in places:
            if f'"{CALLS}"' in settings:
                text = "\n".join([text, *_calls(settings)])
            low = text.lower()
            if all(word in low for word in words):
                places[session] = excerpt(text, words)
    return places


def _calls(settings: str) -> Iterator[str]:
    """Yields the calls of a turn, with their results."""
    with suppress(ValueError, AttributeError):
        for call in calls_of(json.loads(settings)):
            yield f"{call.title} {call.arguments}\n{call.result}"


def words_of(query: str) -> Iterable[str]:
    """Yields the search words, and the phrases in quotes."""
    for i, part in enumerate(query.split('"')):
        yield from (part.split() if i % 2 == 0 else [part.strip()] if part.strip() else [])


def excerpt(text: str, words: Iterable[str]) -> str:
    """Returns the surroundings of the first of the words, all of which are in `text`, on one line."""
    low = text.lower()
    at = min(low.find(word) for word in words)
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
        lambda session: session.talk.title.lower() == wanted,
        lambda session: bool(wanted) and name_of(session.id).startswith(wanted),
        lambda session: bool(wanted) and wanted in session.talk.title.lower(),
    )
    for way in ways:
        found = [session for session in sessions if way(session)]
        if len(found) == 1:
            return found[0].id
        if found:
            which = ", ".join(f"{short_name_of(s.id)} ({s.talk.title})" for s in found[:3])
            more = ", and more" if len(found) > 3 else ""
            raise SessionError(f"{text!r} matches several chats: {which}{more}: name one by its letters")
    raise SessionError(f"there is no chat {text!r}: edgespec chat --list shows them")
