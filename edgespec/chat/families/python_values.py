"""Values and calls as Python spells them, or JSON within it: read by their text, never parsed as a program.

Python's own parser takes more than values, fewer names (`from=1`, `get-user`), warns of what is in strings,
and what nests deep is dangerous to it.
"""

import re
from typing import Any

from edgespec.chat.families.json_text import DEEPEST

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
WORD = re.compile(r"[^\s()\[\]{},;:='\"]+")
STRING = re.compile(r"'''(.*?)'''|\"\"\"(.*?)\"\"\"|'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\"", re.DOTALL)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}


def python_value(text: str) -> Any:
    """Returns the value that a text spells; raises ValueError if it spells none."""
    reading = _Reading(text)
    value = reading.value(0)
    reading.end()
    return value


def python_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the calls of a list, `[f(a=1), g()]`: names and arguments. Raises ValueError."""
    reading = _Reading(text)
    listed, found = reading.passes("["), list[tuple[str, dict[str, Any]]]()
    while not found or reading.comes(WORD):
        found.append(reading.call())
        if not reading.passes(","):
            reading.passes(";")
    if listed and not reading.passes("]"):
        raise ValueError("the list does not end")
    reading.end()
    return found


class _Reading:
    """A text and how far it is read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def comes(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Returns the match that is next behind whitespace, without reading it."""
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return pattern.match(self._text, self._at)

    def reads(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Reads past a match; raises ValueError if none is next."""
        found = self.comes(pattern)
        if not found:
            raise ValueError(f"character {self._at} belongs to no value")
        self._at = found.end()
        return found

    def passes(self, mark: str) -> bool:
        """Reads past a mark, if it is next."""
        found = self.comes(re.compile(re.escape(mark)))
        self._at = found.end() if found else self._at
        return found is not None

    def end(self) -> None:
        """Raises ValueError if there is more."""
        if self.comes(re.compile(r"\S")):
            raise ValueError("there is more behind it")

    def call(self) -> tuple[str, dict[str, Any]]:
        """Reads a call."""
        name, arguments = self.reads(WORD)[0], {}
        self.reads(re.compile(r"\("))
        while not self.passes(")"):
            key = self.reads(WORD)[0]
            self.reads(re.compile("="))
            arguments[key] = self.value(0)
            if not self.passes(",") and not self.comes(re.compile(r"\)")):
                raise ValueError("an argument does not end")
        return name, arguments

    def value(self, depth: int) -> Any:
        """Reads a value."""
        if depth > DEEPEST:
            raise ValueError("it nests too deep")
        if self.passes("["):
            return self._several("]", depth)
        if self.passes("("):
            return self._several(")", depth)
        if self.passes("{"):
            return self._pairs(depth)
        if self.comes(STRING):
            return self._string()
        if self.comes(NUMBER):
            word = self.reads(NUMBER)[0]
            return int(word) if word.lstrip("+-").isdigit() else float(word)
        word = self.reads(WORD)[0]
        if word not in WORDS:
            raise ValueError(f"{word} is no value")
        return WORDS[word]

    def _several(self, end: str, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self.passes(end):
            if found and not self.passes(","):
                raise ValueError("a list does not end")
            if found and self.passes(end):
                break
            found.append(self.value(depth + 1))
        return found

    def _pairs(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self.passes("}"):
            if found and not self.passes(","):
                raise ValueError("an object does not end")
            if found and self.passes("}"):
                break
            key = self.value(depth + 1)
            self.reads(re.compile(":"))
            found[str(key)] = self.value(depth + 1)
        return found

    def _string(self) -> str:
        found = self.reads(STRING)
        text = ESCAPE.sub(_unescaped, next(group for group in found.groups() if group is not None))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # pairs, as JSON has them


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    if code[0] in "01234567":
        return chr(int(code, 8))
    return ESCAPED.get(code, code if code in "\\'\"" else escape[0])
