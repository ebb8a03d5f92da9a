"""Chats that could not be saved, at the end of the program: reported, and written somewhere else."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.errors import SessionError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import export, suggested_name, title_of


def rescue(
    chats: Sequence[Conversation], *, ask: Callable[[str], str] | None, tell: Callable[[str], None]
) -> None:
    """Says which chats are not saved, and writes each to a folder of the user's choice, as JSON.

    ask: shows a sentence and returns the reply; None if nobody can be asked. Without a reply they
    go to a folder of their own among the temporary files.
    """
    if not chats:
        return
    titles = ", ".join(repr(title_of(chat)) for chat in chats)
    tell(f"not saved, because the file of chats could not be written: {titles}")
    while True:
        try:
            name = ask("A folder to save them in (Enter: the temporary folder): ").strip() if ask else ""
        except (EOFError, KeyboardInterrupt, OSError):
            name, ask = "", None
        try:
            folder = Path(name).expanduser() if name else Path(tempfile.mkdtemp(prefix="edgespec-chats-"))
            folder.mkdir(parents=True, exist_ok=True)
            for chat in chats:
                export(chat, str(_free(folder, chat)), folder=folder)
        except (SessionError, OSError, RuntimeError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            tell(f"{name or 'the temporary folder'} cannot be made: {why}" if why else f"{error}")
            if ask is None:
                tell("what was said since then is lost")
                return
            continue
        tell(f"saved completely in {folder}")
        return


def _free(folder: Path, chat: Conversation) -> Path:
    """Returns the path of a file that is not there yet."""
    stem = Path(suggested_name(chat)).stem
    numbered = (folder / f"{stem}{f'-{n}' if n > 1 else ''}.json" for n in range(1, 10_000))
    return next(path for path in numbered if not path.exists())


def on_terminal() -> Callable[[str], str] | None:
    """Returns what asks on the terminal; None if there is none."""
    there = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return _asked if there else None


def _asked(sentence: str) -> str:
    sys.stderr.write(sentence)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
