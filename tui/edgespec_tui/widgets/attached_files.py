"""Files in a question: named with an @ in what is typed, or put in with /read. Pictures stay files.

    explain @src/main.py and @"my notes.md"
    what do @src/ and @docs/*.md have in common?

A folder and a pattern stand for the files that their project does not ignore, as far as they are text.
What follows an @ and names no file stays as it was written: decorators and addresses begin with one, too.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from rich.filesize import decimal

from edgespec.errors import SettingError
from edgespec.system.named_file import regular_content
from edgespec_tui.endpoint.media import is_medium, mark_of
from edgespec_tui.widgets.project_files import files_below, in_group, is_group
from edgespec_tui.widgets.question import Insert, QuestionText, count_of

MOST_FILES = 200  # that a folder or a pattern may stand for
LARGEST_FILE = 8 * 2**20  # bytes, of one file and of all that one question names
MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
NAMED = '@"'  # before a name that is not put in as text
LONGEST_DROP, MOST_DROPPED = 2**14, 32  # characters, files
FILE_URL = "file://"
PUNCTUATION = ".,;:!?)]}'\""


class NoText(SettingError):
    """A file is no text."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a text file (UTF-8): it cannot be put into a question")


def with_files(question: QuestionText) -> tuple[QuestionText, list[str]]:
    """Returns a question with its files, and sentences on what it names and does not get.

    Raises SettingError.
    """
    made, notes = _Made(question), []
    for match in MENTION.finditer(question.text):
        if any(one.start <= match.start() < one.end for one in question.inserts):
            continue  # pasted, not typed
        name, *_ = words = _words_of(match)
        if path := _file_named(*words):
            made.add(path)
        elif group := _group_named(*words):
            if left := made.add_group(name, group):
                notes.append(f"{left} of the {len(group)} files in {name} are no text: left out.")
        elif "/" in name or match[1]:
            notes.append(f"There is no file {name}: sent as written.")
    return made.question(), notes


class _Made:
    """A question to which files are added."""

    def __init__(self, question: QuestionText) -> None:
        self._text, self._inserts = question.text, list(question.inserts)
        self._room, self._seen = LARGEST_FILE, set[Path]()
        self._media: list[str] = []
        self._digests: list[str] = []

    def add(self, path: Path) -> None:
        """Adds a file, unless it is there. Raises SettingError."""
        if path in self._seen:
            return
        self._seen.add(path)
        if is_medium(path):
            mark, digest = mark_of(path)
            self._media.append(str(path.absolute()))
            self._digests.append(digest)
            self._put(f"({path.name})", mark)
        else:
            self._add_text(path.name, path)

    def add_group(self, name: str, group: Sequence[Path]) -> int:
        """Adds the texts among some files; returns how many others there are. Raises SettingError."""
        if len(group) > MOST_FILES:
            raise SettingError(
                f"{name} stands for {len(group):,} files, and at most {MOST_FILES} go into a question"
            )
        left = 0
        for path in group:
            if path not in self._seen:
                try:
                    self._add_text(path.as_posix(), path)
                    self._seen.add(path)
                except NoText:
                    left += 1
        return left

    def _add_text(self, name: str, path: Path) -> None:
        content = read_text(path, most=self._room)
        self._room -= len(content.encode())
        self._put(fenced(name, path, content), f"[{name}: {count_of(content)}]")

    def _put(self, block: str, mark: str) -> None:
        start = len(self._text) + 2
        self._text = f"{self._text}\n\n{block}"
        self._inserts.append(Insert(start, start + len(block), mark, file=True))

    def question(self) -> QuestionText:
        return QuestionText(
            self._text, tuple(self._inserts), tuple(self._media), digests=tuple(self._digests)
        )


@dataclass(frozen=True, slots=True)
class Mention:
    """What a text names, and where: characters from start to end (exclusive)."""

    start: int
    end: int
    name: str
    about: str  # its size


def mentions(text: str, files: Callable[[], Sequence[str]] = tuple) -> list[Mention]:
    """Returns the files that a text names and that are there. files: gives those below the folder."""
    found = []
    for match in MENTION.finditer(text):
        for word in _words_of(match):
            path = _file_named(word)
            group = in_group(word, files()) if path is None and is_group(word) else []
            if path or group:
                end = match.end() if match[1] else match.start() + 1 + len(word)
                about = size_of([path]) if path else f"{len(group)} files, {size_of(group[:MOST_FILES])}"
                found.append(Mention(match.start(), end, path.name if path else word, about))
                break
    return found


def size_of(files: Iterable[Path | str]) -> str:
    """Returns the size of some files together, in words."""
    total = 0
    for file in files:
        with suppress(OSError, ValueError, RuntimeError):
            total += Path(file).expanduser().stat().st_size
    return decimal(total)


def _words_of(match: re.Match[str]) -> Sequence[str]:
    """Returns what a mention may name: with and without the punctuation that ends a sentence."""
    return (match[1],) if match[1] else (match[2], match[2].rstrip(PUNCTUATION))


def _group_named(*words: str) -> list[Path]:
    """Returns the files that a folder's name or a pattern stands for."""
    for word in words:
        if word.endswith("/"):
            with suppress(OSError, ValueError, RuntimeError):
                folder = Path(word).expanduser()
                if folder.is_dir() and (found := files_below(folder)):
                    return [folder / file for file in found]
        elif is_group(word) and (found := in_group(word, files_below(Path()))):
            return list(map(Path, found))
    return []


def _file_named(*words: str) -> Path | None:
    """Returns the file that the first of these words names which names one."""
    for word in words:
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
        raise NoText(path) from None
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from None
    if "\0" in text:
        raise NoText(path)
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
    path = _file_named(name)
    right = path and path.is_absolute() and is_medium(path) and '"' not in name
    return path if right else None


def fence_for(text: str) -> str:
    """Returns a fence that is longer than any in a text."""
    longest = max((len(run) for run in text.split("\n") if set(run.strip()) == {"`"}), default=2)
    return "`" * max(3, longest + 1)


def fenced(name: str, path: Path, text: str) -> str:
    """Returns a file as it appears in a question: its name, and its text between fences."""
    fence = fence_for(text)
    return f"{name}:\n{fence}{path.suffix[1:]}\n{text.rstrip()}\n{fence}\n"


def read_file(name: str) -> str:
    """Returns a file as /read puts it into a question: a picture by its name. Raises SettingError."""
    if not name:
        raise SettingError("/read needs the name of a file: /read FILE")
    try:
        path = Path(name.strip("'\"")).expanduser()
        if is_medium(path):
            mark_of(path)
            return f'{NAMED}{path}"'
        return fenced(path.name, path, read_text(path))
    except (ValueError, RuntimeError):  # a zero byte, no such user
        raise SettingError(f"{name!r} is not the name of a file") from None
