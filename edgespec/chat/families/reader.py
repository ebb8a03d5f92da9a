"""Text that comes in pieces, read as if all of it were there.

Parsers are generators: they read forward through a `Reader` and yield deltas; if text is missing they
yield None and continue when there is more. So a parser is written as if it had the whole text, and a cut
cannot make a difference.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from edgespec.chat.families.deltas import Content, Delta

T = TypeVar("T")
Steps = Generator[Delta | None, None, T]
Say = Callable[[str], Delta]


class NotACall(Exception):
    """What looked like a call is none: it is content."""


class Reader:
    """The text that is there and not yet read."""

    def __init__(self) -> None:
        self.held = ""
        self.ended = False
        self.trimmed = ""  # whitespace before the tag that `until` read last
        self.cut = False  # more of it was to come
        self.unread = 0  # calls that had an opening tag and could not be read
        self._noted: list[str] | None = None  # what was read of a call that may turn out to be content

    def take(self, n: int) -> str:
        """Reads n characters that are there."""
        text, self.held = self.held[:n], self.held[n:]
        if self._noted is not None:
            self._noted.append(text)
        return text

    def attempt(self, call: Steps[None], say: Say, tag: str = "") -> Steps[bool]:
        """Reads a call; what turns out to be none becomes text, after its tag. Returns whether it was one.

        Nothing comes twice: what has become deltas is not text again. Whatever a reader raises means that it
        cannot read this, since a model may write anything.
        """
        self._noted = [tag]
        try:
            for delta in call:
                if delta is not None:
                    self.settle()
                yield delta
            return True
        except Exception:
            self.unread += bool(tag)
            if text := "".join(self._noted):
                yield say(text)
            return False
        finally:
            self._noted = None

    def settle(self) -> None:
        """Takes what was read so far for good: it is no content, whatever follows."""
        if self._noted is not None:
            self._noted.clear()

    def more(self) -> Steps[bool]:
        """Waits until there is more text than now; False at the end."""
        before = len(self.held)
        while len(self.held) == before:
            if self.ended:
                return False
            yield None
        return True

    def until(
        self,
        tags: Sequence[str],
        say: Say | None = None,
        *,
        trim: bool = False,
        leave: Sequence[str] = (),
    ) -> Steps[str | None]:
        """Reads past the first of `tags` and returns it, None if none comes.

        say: takes the text before it, piece by piece. trim: whitespace next to the tag is no part
        of that text. leave: tags that are not read past, nor what was trimmed before them.
        """
        while True:
            at, tag = _first(self.held, tags, self.ended)
            before = self.held[:at]
            if tag is None and not self.ended and trim:
                at = len(before.rstrip())
            text = self.take(len(before.rstrip()) if tag in leave else at)
            if tag is not None and tag not in leave:
                self.take(len(tag))
                self.trimmed = text[len(text.rstrip()) :] if trim else ""
                text = text.removesuffix(self.trimmed)
            if text and say:
                yield say(text)
            if tag is not None or self.ended:
                return tag
            yield from self.more()

    def comes(self, tags: Sequence[str]) -> Steps[bool]:
        """Waits until it is known whether one of `tags` comes; reads nothing."""
        looked, longest = 0, max(map(len, tags))
        while not any(self.held.find(tag, max(0, looked - longest)) >= 0 for tag in tags):
            looked = len(self.held)
            if not (yield from self.more()):
                return False
        return True

    def text_until(self, tags: Sequence[str]) -> Steps[tuple[str, str | None]]:
        """Reads past the first of `tags`; returns the text before it, and the tag."""
        while True:
            at, tag = _first(self.held, tags, self.ended)
            if tag is not None:
                text = self.take(at)
                self.take(len(tag))
                return text, tag
            if self.ended:
                return self.take(len(self.held)), None
            yield from self.more()

    def skip_space(self) -> Steps[str]:
        """Reads past whitespace; returns the character that comes next, "" at the end."""
        while True:
            space = len(self.held) - len(self.held.lstrip())
            if space:
                self.take(space)
            if self.held:
                return self.held[0]
            if not (yield from self.more()):
                return ""

    def starts_with(self, tags: Sequence[str], *, spaced: bool = False) -> Steps[str | None]:
        """Reads the longest of `tags` that comes next, and returns it. spaced: behind whitespace, too."""
        while True:
            next_one = self.held.lstrip() if spaced else self.held
            found = max((tag for tag in tags if next_one.startswith(tag)), key=len, default=None)
            longer = any(tag != next_one and tag.startswith(next_one) for tag in tags)
            if longer and (yield from self.more()):
                continue
            if found is not None:
                self.take(len(self.held) - len(next_one) + len(found))
            return found

    def json(self, say: Say | None = None) -> Steps[str]:
        """Reads one JSON value, and returns its text. say: gets it piece by piece as it is read.

        Raises NotACall if no value begins here, or if the text ends within it and nothing was passed on.
        """
        if (yield from self.skip_space()) in ("", ",", ":", "}", "]"):
            raise NotACall
        span, parts = _Span(), []
        while True:
            text = self.take(span.reach(self.held))
            parts.append(text)
            if text and say:
                yield say(text)
            if span.done and any(parts):
                return "".join(parts)
            if span.done:
                raise NotACall
            if not (yield from self.more()):
                if say or span.scalar:
                    return "".join(parts)
                raise NotACall

    def json_before(self, ends: Sequence[str]) -> Steps[tuple[str, bool]]:
        """Reads one JSON value; one that does not end is all that comes before one of `ends`, or at all.

        Returns its text, and whether something shows that no more of it was to come. Raises NotACall.
        """
        if (yield from self.skip_space()) in ("", ",", ":", "}", "]"):
            raise NotACall
        span, size = _Span(), 0
        while not span.done:
            size += span.reach(self.held[size:])
            if not span.done and not (yield from self.more()):
                at, tag = _first(self.held, ends, True)
                if self.cut and tag is None:
                    raise NotACall
                return self.take(at), tag is not None
        return self.take(size), True


class _Span:
    """How far a JSON value extends, character by character."""

    def __init__(self) -> None:
        self.done = False
        self.scalar = False
        self._depth = 0
        self._quote, self._escaped = "", False  # what ends the string that is being read

    def reach(self, text: str) -> int:
        """Returns how many characters of `text` belong to the value."""
        for i, character in enumerate(text):
            if self.done:
                return i
            if self._quote:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == self._quote:
                    self._quote = ""
                    self.done = self._depth == 0
            elif character in ('"', "'"):
                self._quote = character
            elif character in "{[":
                self._depth += 1
            elif character in "}]" and self._depth:
                self._depth -= 1
                self.done = self._depth == 0
            elif not self._depth:
                if not character.isalnum() and character not in "+-.":
                    self.done = True
                    return i
                self.scalar = True
        return len(text)


def _first(text: str, tags: Sequence[str], ended: bool) -> tuple[int, str | None]:
    """Returns where the first tag begins, and the tag; with None, how much of the text is surely no tag.

    Of tags that begin at one place the longest counts, so one that may still grow is waited for.
    """
    at, found = len(text), None
    for tag in tags:
        i = text.find(tag)
        if i >= 0 and (i < at or (i == at and (found is None or len(tag) > len(found)))):
            at, found = i, tag
    if ended:
        return at, found
    for i in range(max(0, len(text) - max(map(len, tags), default=0)), min(at + 1, len(text))):
        if any(len(tag) > len(text) - i and tag.startswith(text[i:]) for tag in tags):
            return i, None
    return at, found


class Parser:
    """Feeds text to a parsing generator."""

    def __init__(self, begin: Callable[[Reader], Steps[None]]) -> None:
        self._reader = Reader()
        self._steps = begin(self._reader)

    @property
    def unread(self) -> int:
        """Returns how many calls that had an opening tag could not be read, and are content."""
        return self._reader.unread

    def feed(self, text: str) -> list[Delta]:
        """Returns the deltas of more text."""
        self._reader.held += text
        return self._run()

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """Returns the deltas of what was held back, at the end of the text. cut: more of it was to come."""
        self._reader.ended, self._reader.cut = True, cut
        return self._run()

    def _run(self) -> list[Delta]:
        deltas: list[Delta] = []
        try:
            for delta in self._steps:
                if delta is None:  # more text is needed
                    break
                deltas.append(delta)
        except Exception:  # a fault in reading costs a reader its form, and never the text
            self._steps = _text_alone(self._reader)
            deltas += self._run()
        return deltas


def _text_alone(reader: Reader) -> Steps[None]:
    yield from reader.until((), Content)
