"""A question as it is written: its text, and which parts of it nobody typed.

What was pasted or read from a file may be thousands of lines. It is sent in full; the input and the
transcript show a mark in its place, so that it hides nothing. A turn saves the places as a setting, for
editing the question later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from edgespec_tui.endpoint.media import DIGESTS, MEDIA, THUMBNAILS, texts_of

SETTING = "inserts"
TITLE_LENGTH = 60  # characters
LARGE_LINES, LARGE_CHARACTERS = 20, 2000


@dataclass(frozen=True, slots=True)
class Insert:
    """Characters from start to end (exclusive) were not typed; `mark` is shown in their place.

    file: they were read from a file that the typed text names with an @.
    """

    start: int
    end: int
    mark: str
    file: bool = False


@dataclass(frozen=True, slots=True)
class QuestionText:
    """A text to be asked, and its inserts in order."""

    text: str
    inserts: tuple[Insert, ...] = ()
    media: tuple[str, ...] = ()  # files that are sent with it
    thumbnails: tuple[str, ...] = ()  # of these
    digests: tuple[str, ...] = ()  # of these

    def parts(self) -> Iterator[tuple[str, Insert | None]]:
        """Yields what was typed, each with the insert after it; the last has none."""
        at = 0
        for insert in self.inserts:
            yield self.text[at : insert.start], insert
            at = insert.end
        yield self.text[at:], None

    def folded(self) -> str:
        """Returns the text with marks in place of what was not typed."""
        return "".join(typed + (insert.mark if insert else "") for typed, insert in self.parts())

    def typed(self) -> QuestionText:
        """Returns it without the files that it names: they are read again when it is asked again."""
        text, inserts = "", []
        for typed, insert in self.parts():
            text += typed.rstrip("\n") if insert and insert.file else typed
            if insert and not insert.file:
                start = len(text)
                text += self.text[insert.start : insert.end]
                inserts.append(Insert(start, len(text), insert.mark))
        return QuestionText(text, tuple(inserts))

    def title(self) -> str:
        """Returns its beginning in one line: of what was typed, if there is any."""
        typed = "".join(typed for typed, _ in self.parts())
        return " ".join((typed.strip() or self.folded()).split())[:TITLE_LENGTH]

    def draft(self) -> dict[str, str]:
        """Returns what a chat saves of a question that was not asked: `question_of` reads it."""
        return {"text": self.text, **self.settings()} if self.text.strip() else {}

    def settings(self) -> dict[str, str]:
        """Returns what its turn saves of it."""
        inserts = [[one.start, one.end, one.mark, one.file] for one in self.inserts]
        lists = {MEDIA: self.media, THUMBNAILS: self.thumbnails, DIGESTS: self.digests}
        media = {name: json.dumps(texts) for name, texts in lists.items()} if self.media else {}
        return {**media, SETTING: json.dumps(inserts)} if inserts else media


def is_large(text: str) -> bool:
    """Returns whether a text is too long to be shown in the input."""
    return text.count("\n") >= LARGE_LINES or len(text) > LARGE_CHARACTERS


def count_of(text: str) -> str:
    """Returns how long a text is, in a word or two."""
    lines = text.rstrip("\n").count("\n") + 1
    return f"{lines:,} line{'s' if lines > 1 else ''}"


def joined(questions: Iterable[QuestionText]) -> QuestionText:
    """Returns questions as one, each on lines of its own."""
    text, inserts = "", []
    for one in questions:
        text += "\n" if text and one.text else ""
        inserts += [
            replace(insert, start=insert.start + len(text), end=insert.end + len(text))
            for insert in one.inserts
        ]
        text += one.text
    return QuestionText(text, tuple(inserts))


def question_of(text: str, settings: Mapping[str, object]) -> QuestionText:
    """Returns the question of a turn; what its setting says wrongly is not an insert."""
    noted = settings.get(SETTING)
    try:
        found = [Insert(*one) for one in json.loads(noted)] if isinstance(noted, str) else []
        right = _in_order(found, len(text))
    except (ValueError, TypeError):
        right = False
    kept = (texts_of(settings, name) for name in (MEDIA, THUMBNAILS, DIGESTS))
    return QuestionText(text, tuple(found) if right else (), *kept)


def _in_order(inserts: Iterable[Insert], length: int) -> bool:
    at = 0
    for one in inserts:
        if not (at <= one.start <= one.end <= length and isinstance(one.mark, str)):
            return False
        at = one.end
    return True
