"""Arguments that are not quite JSON, read where there is exactly one way to read them.

Such are strings in single quotes, line ends in strings, Python's words for true, false and null, a comma
before a closing bracket, JSON within a string, and brackets that are missing at the end of a call. Nothing is
guessed: a number, or a comma, with which the text ends may have been meant to go on.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from edgespec.chat.families.json_text import checked
from edgespec.chat.families.python_values import python_value

CLOSING = {"{": "}", "[": "]", "(": ")"}
QUOTES = '"', "'"


def mended(text: str, *, bounded: bool) -> Any:
    """Returns the value that a text stands for; raises ValueError if it is not exactly one.

    bounded: something shows that no more of it was to come.
    """
    bare = text.strip()
    for read in (_loose, python_value, lambda text: python_value(text + missing(text, bounded=bounded))):
        try:
            value = checked(read(bare))
            inner = isinstance(value, str) and value.strip().startswith("{")
            return mended(value, bounded=False) if inner else value
        except ValueError:
            continue
    raise ValueError("it can be read in no way, or in several")


def missing(text: str, *, bounded: bool, quotes: Sequence[str] = QUOTES) -> str:
    """Returns the brackets that are missing at the end of a text; raises ValueError if more may be missing.

    quotes: what begins and ends a string.
    """
    opened, at = list[str](), 0
    marks = re.compile("|".join([*map(re.escape, quotes), r"[\[\]{}()]"]))
    while found := marks.search(text, at):
        mark, at = found[0], found.end()
        if mark in quotes:
            end = re.compile(rf"(?:[^\\]|\\.)*?{re.escape(mark)}", re.DOTALL).match(text, at)
            if end is None:
                raise ValueError("it ends within a string")
            at = end.end()
        elif mark in CLOSING:
            opened.append(CLOSING[mark])
        elif not opened or opened.pop() != mark:
            raise ValueError("a bracket closes nothing")
    if not text.endswith((*quotes, "}", "]", ")")) and (not bounded or text.endswith((",", ":", "="))):
        raise ValueError("it may have been meant to go on")
    return "".join(reversed(opened))


def _loose(text: str) -> Any:
    """Returns the value of JSON in whose strings lines may end."""
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("it nests too deep") from None
