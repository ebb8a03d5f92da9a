"""What people call a session: its title, or the first letters of the name made from its number."""

from collections.abc import Callable, Sequence

from edgespec.errors import SessionError
from edgespec_tui.sessions.rows import Listed

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no letters look alike
NAME_LENGTH = 12  # letters of a whole name: 60 bits
SHOWN_LENGTH = 6
NAME_BITS = 5 * NAME_LENGTH


def name_of(id: int) -> str:
    """Returns a session's name; its beginning is enough."""
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
