"""Calls in a notation of their own that is read once it is complete: Gemma's, and Python's."""

import ast
import re
from dataclasses import dataclass
from typing import Any

from edgespec.chat.families.deltas import Calls, as_json
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
        try:
            arguments = _GemmaText(text, found.end() - 1).value()
        except (IndexError, ValueError):
            raise NotACall from None
        yield calls.begin(found[1].strip())
        yield calls.arguments(as_json(arguments))


class _GemmaText:
    """Reads values in Gemma's notation from a text, forward."""

    def __init__(self, text: str, at: int) -> None:
        self._text, self._at = text, at

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
        while not self._passes(end):
            if found and not self._passes(","):
                raise ValueError
            found.append(read())
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
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """[name(key="text", other=5), ...], up to `ends`: read as Python, never run."""

    ends: str

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads the calls. Raises NotACall if it is not a list of calls with plain values."""
        text, _ = yield from reader.text_until((self.ends,))
        try:
            tree = ast.parse(text.strip().replace("\n", "\\n"), mode="eval").body
            items = tree.elts if isinstance(tree, ast.List) else [tree]
            found = [_python_call(item) for item in items]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NotACall from None
        for name, arguments in found:
            yield calls.begin(name)
            yield calls.arguments(as_json(arguments))


def _python_call(item: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(item, ast.Call) or item.args or any(word.arg is None for word in item.keywords):
        raise ValueError
    return ast.unparse(item.func), {str(word.arg): _plain(word.value) for word in item.keywords}


def _plain(value: ast.expr) -> Any:
    """Returns a value written in Python, or in JSON within Python."""
    if isinstance(value, ast.Name) and value.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[value.id]
    if isinstance(value, ast.List):
        return [_plain(item) for item in value.elts]
    if isinstance(value, ast.Dict) and all(value.keys):
        return {str(_plain(k)): _plain(v) for k, v in zip(value.keys, value.values, strict=True) if k}
    return ast.literal_eval(value)
