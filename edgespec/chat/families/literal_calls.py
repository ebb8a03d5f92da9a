"""Calls in a notation of their own that is read once it is complete: Gemma's, and Python's."""

import re
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.calls import Calls
from edgespec.chat.families.json_calls import JsonCalls
from edgespec.chat.families.json_text import DEEPEST, as_json, value_of
from edgespec.chat.families.python_values import python_calls
from edgespec.chat.families.reader import NotACall, Reader, Steps

QUOTE = '<|"|>'


@dataclass(frozen=True, slots=True)
class GemmaCall:
    """call:name{key:<|"|>text<|"|>,other:5}, up to `ends`."""

    ends: str

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall."""
        text, end = yield from reader.text_until((self.ends,))
        found = re.match(r"\s*call:([^{]+)\{", text)
        if end is None or not found:
            raise NotACall
        arguments = as_json(_GemmaText(text, found.end() - 1).value())
        yield calls.begin(found[1].strip())
        yield calls.arguments(arguments)


class _GemmaText:
    """Reads values in Gemma's notation from a text, forward."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self._at, self._depth = text, at, 0

    def value(self) -> Any:
        """Returns the value that begins here; raises IndexError or ValueError."""
        if self._passes(QUOTE):
            return self._up_to(QUOTE)
        if self._passes('"'):
            return self._up_to('"')
        if self._passes("{"):
            return dict(self._several("}", self._pair))
        if self._passes("["):
            return self._several("]", self.value)
        bare = re.compile(r"[^,}\]]*").match(self._text, self._at)
        assert bare
        self._at = bare.end()
        word = bare[0].strip()
        known = {"true": True, "false": False, "null": None, "none": None}
        return known[word.lower()] if word.lower() in known else _number(word)

    def _pair(self) -> tuple[str, Any]:
        if self._passes(QUOTE):
            key = self._up_to(QUOTE)
            if not self._passes(":"):
                raise ValueError
        else:
            key = self._up_to(":").strip()
        return key, self.value()

    def _several(self, end: str, read: Any) -> list[Any]:
        found: list[Any] = []
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError
        while not self._passes(end):
            if found and not self._passes(","):
                raise ValueError
            found.append(read())
        self._depth -= 1
        return found

    def _passes(self, text: str) -> bool:
        while self._text[self._at].isspace():
            self._at += 1
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _up_to(self, end: str) -> str:
        until = self._text.index(end, self._at)
        text, self._at = self._text[self._at : until], until + len(end)
        return text


def _number(word: str) -> int | float | str:
    try:
        value: object = value_of(word)
    except ValueError:
        return word
    return value if isinstance(value, int | float) else word


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """[name(key="text", other=5), ...], or the same as JSON, up to `ends`: read, never run."""

    ends: str

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads the calls. Raises NotACall or ValueError if it is no list of calls with plain values."""
        text, _ = yield from reader.text_until((self.ends,))
        if re.match(r"\s*\[?\s*\{", text):
            listed = Reader()
            listed.held, listed.ended = text, True
            yield from JsonCalls().read(listed, calls)
            return
        found = [(name, as_json(arguments)) for name, arguments in python_calls(text)]
        for name, _ in found:
            calls.check(name)
        for name, arguments in found:
            yield calls.begin(name)
            yield calls.arguments(arguments)
