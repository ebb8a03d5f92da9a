"""A conversation as a document: Markdown of what is on the screen, or JSON of everything."""

import html
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from edgespec.errors import SessionError
from edgespec_tui.sessions.conversation import Conversation, Turn
from edgespec_tui.sessions.listed import name_of
from edgespec_tui.tools.values import CALLS, calls_of

FORMAT = "edgespec-session"
VERSION = 1
NAME_LENGTH = 40  # characters of a file name made from a title


def title_of(conversation: Conversation) -> str:
    """Returns a conversation's title."""
    return conversation.title or "Untitled"


def as_markdown(conversation: Conversation) -> str:
    """Returns the shown path, with figures of each answer."""
    parts = [f"# {title_of(conversation)}"]
    if conversation.system:
        parts += ["## System", conversation.system]
    for turn in conversation.path():
        if turn.role == "user":
            parts += ["## You", turn.text]
        else:
            thought = turn.reasoning.strip()
            folded = f"<details><summary>Reasoning</summary>\n\n{thought}\n\n</details>" if thought else ""
            parts += [f"## {turn.model or 'Assistant'}", folded, *_texts_and_calls(turn), _figures(turn)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _texts_and_calls(turn: Turn) -> Iterator[str]:
    """Yields the texts of an answer, and its calls between them."""
    begin = 0
    for call in calls_of(turn.settings):
        yield _ended(turn.text[begin : call.at])
        begin = max(begin, call.at)
        runs = re.findall("`+", call.arguments + call.result)
        fence = "`" * max(3, 1 + max(map(len, runs), default=0))
        title = f"{call.title} ({call.outcome}, {call.seconds:.1f} s)"
        summary = html.escape(title)
        told = f"{fence}json\n{call.arguments}\n{fence}\n\n{fence}\n{call.result}\n{fence}"
        yield f"<details><summary>{summary}</summary>\n\n{told}\n\n</details>"
    yield _ended(turn.text[begin:])


def _ended(text: str) -> str:
    """Returns an answer's text, closing a code block that a stop left open."""
    text = text.rstrip()
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" {0,3}(`{3,}|~{3,})(.*)", line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not mark[2].strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text


def _figures(turn: Turn) -> str:
    """Returns an answer's figures on one line."""
    parts = turn.figure_words()
    if turn.finish == "cancelled":
        parts.append("interrupted")
    elif turn.finish == "length":
        parts.append("stopped at the length limit")
    return f"*{', '.join(parts)}*" if parts else ""


def as_json(conversation: Conversation) -> str:
    """Returns the whole tree: every turn, edited and answered anew, with settings, figures and origins."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "id": name_of(conversation.id) if conversation.id is not None else None,
        "title": title_of(conversation),
        "exported": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": conversation.system,
        "sampling": dict(conversation.sampling),
        "seed": conversation.seed,
        "max_tokens": conversation.max_tokens,
        "head": conversation.head,
        **({"draft": conversation.draft.get("text")} if conversation.draft else {}),
        "turns": [_turn(turn) for turn in conversation.turns.values()],
    }
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _turn(turn: Turn) -> dict[str, object]:
    calls = [asdict(call) for call in calls_of(turn.settings)]
    return {
        **{name: value for name, value in asdict(turn).items() if name != "runs"},
        "origins": [{"source": source, "characters": count} for source, count in turn.runs],
        "settings": {name: value for name, value in turn.settings.items() if name != CALLS},
        **({"calls": calls} if calls else {}),
    }


def suggested_name(conversation: Conversation, ending: str = ".md") -> str:
    """Returns a file name for a conversation."""
    words = re.sub(r"[^\w.-]+", "-", title_of(conversation).lower()).strip("-.")
    return (words[:NAME_LENGTH].rstrip("-.") or "chat") + ending


def export(conversation: Conversation, name: str = "", *, folder: Path) -> Path:
    """Writes a conversation to a file, JSON if it ends in .json and Markdown otherwise; returns its path.

    name: without one, a free name is made from the title; without a folder in it, it is put into `folder`.
    Raises SessionError for a file that exists already (nothing is overwritten) or cannot be written.
    """
    try:
        path = folder / os.path.expanduser(name.strip().strip("'\""))  # an unknown user: a name like others
        path = (_free(path / suggested_name(conversation)) if path.is_dir() else path).absolute()
    except OSError as error:  # too long a name, a closed folder, or one deleted while we were in it
        raise SessionError(f"{name or 'the current folder'} cannot be used: {error.strerror}") from None
    text = as_json(conversation) if path.suffix.lower() == ".json" else as_markdown(conversation)
    begun = False
    try:
        with path.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            begun = True
            file.write(text)
    except FileExistsError:
        raise SessionError(f"{path} already exists: choose another name") from None
    except ValueError:  # half a character, or a zero byte
        raise SessionError(f"{name!r} is not the name of a file") from None
    except OSError as error:
        if begun:  # a full disk: half a chat would look like all of it
            path.unlink(missing_ok=True)
        raise SessionError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _free(path: Path) -> Path:
    """Returns the path, numbered if it is taken."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    return found


def rescue(chats: Sequence[Conversation], tell: Callable[[str], None], *, below: Path | None = None) -> None:
    """Writes the chats that could not be saved to a folder of their own, as JSON, and says where.

    It is among the temporary files (or `below`), where the system finds room. If nothing takes them, their
    text is shown.
    """
    if not chats:
        return
    titles = ", ".join(repr(title_of(chat)) for chat in chats)
    tell(f"not saved, because the file of chats could not be written: {titles}")
    try:
        folder = Path(tempfile.mkdtemp(prefix="edgespec-chats-", dir=below))
        for chat in chats:
            export(chat, str(_free(folder / suggested_name(chat, ".json"))), folder=folder)
    except (SessionError, OSError) as error:
        tell("\n\n".join([f"no file takes them ({error}); this is their text:", *map(as_markdown, chats)]))
    else:
        tell(f"saved completely in {folder}: move them, because the system empties that folder")
