"""Files in a question: named with an @ in what is typed, or put in with /read. Pictures stay files.

    explain @src/main.py and @"my notes.md"

What follows an @ and names no file stays as it was written: decorators and addresses begin with one, too.
"""

import re
import shlex
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from edgespec.errors import SettingError
from edgespec.system.named_file import regular_content
from edgespec_tui.endpoint.attached import in_thread
from edgespec_tui.endpoint.media import is_medium, mark_of
from edgespec_tui.tools.offer import cleaned
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.question import Insert, QuestionText, count_of

LARGEST_FILE = 8 * 2**20  # bytes, of one file and of all that one question names
MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
NAMED = '@"'  # before a name that is not put in as text
LONGEST_DROP, MOST_DROPPED = 2**14, 32  # characters, files
FILE_URL = "file://"
PUNCTUATION = ".,;:!?)]}'\""


def with_files(question: QuestionText) -> tuple[QuestionText, list[str]]:
    """Returns a question with its files, and names that look like files and are none. Raises SettingError."""
    text, inserts = question.text, list(question.inserts)
    room, seen = LARGEST_FILE, set()
    missed: list[str] = []
    media: list[str] = []
    digests: list[str] = []
    for match in MENTION.finditer(question.text):
        if any(one.start <= match.start() < one.end for one in question.inserts):
            continue  # pasted, not typed
        name = match[1] or match[2]
        path = _file_named(name, quoted=match[1] is not None)
        if path is None:
            if "/" in name or match[1]:
                missed.append(name)
        elif path not in seen:
            seen.add(path)
            if is_medium(path):
                (mark, digest), block = mark_of(path), f"({path.name})"
                media.append(str(path.absolute()))
                digests.append(digest)
            else:
                content = read_text(path, most=room)
                room -= len(content.encode())
                mark, block = f"[{path.name}: {count_of(content)}]", fenced(path, content)
            start = len(text) + 2
            text = f"{text}\n\n{block}"
            inserts.append(Insert(start, start + len(block), mark, file=True))
    return QuestionText(text, tuple(inserts), tuple(media), digests=tuple(digests)), missed


async def with_attachments(question: QuestionText, toolbox: Toolbox) -> tuple[QuestionText, list[str]]:
    """Does what `with_files` does, and adds the resources of servers: @SERVER:NAME. Raises EdgeSpecError."""
    question, missed = await in_thread(partial(with_files, question))
    servers = {server.name for server in toolbox.servers}
    text, inserts = question.text, [*question.inserts]
    for match in MENTION.finditer(question.text if servers else ""):
        server, colon, name = (match[1] or match[2]).partition(":")
        if colon and server in servers and not any(one.start <= match.start() < one.end for one in inserts):
            content = cleaned(await toolbox.resource(server, name))
            start, block = len(text) + 2, fenced(Path(name), content)
            text = f"{text}\n\n{block}"
            mark = f"[{server}:{name}: {count_of(content)}]"
            inserts.append(Insert(start, start + len(block), mark, file=True))
    missed = [name for name in missed if name.partition(":")[0] not in servers]
    return replace(question, text=text, inserts=tuple(inserts)), missed


@dataclass(frozen=True, slots=True)
class Mention:
    """A file that a text names, and where: characters from start to end (exclusive)."""

    start: int
    end: int
    path: Path


def mentions(text: str) -> list[Mention]:
    """Returns the files that a text names and that are there."""
    found = []
    for match in MENTION.finditer(text):
        name, quoted = match[1] or match[2], match[1] is not None
        for word in (name,) if quoted else (name, name.rstrip(PUNCTUATION)):
            if path := _file_named(word, quoted=True):
                end = match.end() if quoted else match.start() + 1 + len(word)
                found.append(Mention(match.start(), end, path))
                break
    return found


def _file_named(name: str, *, quoted: bool) -> Path | None:
    """Returns the file that a word names, with or without the punctuation that ends a sentence."""
    for word in (name,) if quoted else (name, name.rstrip(PUNCTUATION)):
        try:
            path = Path(word).expanduser()
            if word and not path.is_dir() and path.exists():
                return path
        except (OSError, ValueError, RuntimeError):  # too long a name, a zero byte, no such user
            continue
    return None


def read_text(path: Path, *, most: int = LARGEST_FILE) -> str:
    """Returns the text of a file of `most` bytes at most; raises SettingError."""
    try:
        content = regular_content(path, most=most)
        if len(content) > most:
            size = f"{max(path.stat().st_size, len(content)):,} bytes"
            left = f"{most:,} are left" if most < LARGEST_FILE else f"{most:,} is the most"
            raise SettingError(f"{path} has {size}, and {left} for files in one question")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not a text file (UTF-8): it cannot be put into a question") from None
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from None
    if "\0" in text:
        raise SettingError(f"{path} is not a text file (UTF-8): it cannot be put into a question")
    return text


def mention_of(pasted: str) -> str:
    """Returns how a question names pictures that were dropped into a terminal; "" for any other text."""
    if not 0 < len(pasted.strip()) < LONGEST_DROP:
        return ""
    for names in (pasted.strip().splitlines(), _words(pasted)):
        paths = [_dropped(name.strip()) for name in names[: MOST_DROPPED + 1]]
        if 0 < len(paths) <= MOST_DROPPED and all(paths):
            return "".join(f'{NAMED}{path}" ' for path in paths)
    return ""


def _words(pasted: str) -> list[str]:
    """Returns the words of a text as a shell reads them: so terminals write the names of dropped files."""
    try:
        return shlex.split(pasted)
    except ValueError:  # a quotation without its end
        return []


def _dropped(name: str) -> Path | None:
    """Returns the picture or sound that a whole path, or the address of a file, names."""
    if name.startswith(FILE_URL):
        name = unquote("/" + name.removeprefix(FILE_URL).partition("/")[2])  # some name this machine before
    path = _file_named(name, quoted=True)
    right = path and path.is_absolute() and is_medium(path) and '"' not in name
    return path if right else None


def fence_for(text: str) -> str:
    """Returns a fence that is longer than any in a text."""
    longest = max((len(run) for run in text.split("\n") if set(run.strip()) == {"`"}), default=2)
    return "`" * max(3, longest + 1)


def fenced(path: Path, text: str) -> str:
    """Returns a file as it appears in a question: its name, and its text between fences."""
    fence = fence_for(text)
    return f"{path.name}:\n{fence}{path.suffix[1:]}\n{text.rstrip()}\n{fence}\n"


def read_file(name: str) -> str:
    """Returns a file as /read puts it into a question: a picture by its name. Raises SettingError."""
    if not name:
        raise SettingError("/read needs the name of a file: /read FILE")
    try:
        path = Path(name.strip("'\"")).expanduser()
        if is_medium(path):
            mark_of(path)
            return f'{NAMED}{path}"'
        return fenced(path, read_text(path))
    except (ValueError, RuntimeError):  # a zero byte, no such user
        raise SettingError(f"{name!r} is not the name of a file") from None
