"""What reaches a terminal: text of files, hubs and models is shown there, and never obeyed.

A name may contain an escape sequence that clears the screen, writes the clipboard or sets the title.
Everything that a command prints goes through here (`isolate.told`), so that no other code need care.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_OURS = re.compile(r"(?:\r(?:\x1b\[K)?)?")  # rewrites a line: what we write ourselves, first of all
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\t\n"}


def shown(text: str) -> str:
    """Returns a text whose control characters are visible: all but line ends and tabs."""
    return text.replace("\r\n", "\n").translate(_SHOWN)


def one_line(text: str, longest: int = 200) -> str:
    """Returns a name or title as one line of at most `longest` characters, without control characters."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 3] + "..."


class _Guarded:
    """A stream that shows control characters, except those that begin what is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        lead = _OURS.match(text)
        assert lead
        self._stream.write(lead[0] + shown(text[lead.end() :]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guards stderr, and stdout if it is a terminal: a file or another program gets the text as it is."""
    before = sys.stdout, sys.stderr
    out, err = (cast(TextIO, _Guarded(stream)) for stream in before)
    if before[1]:
        sys.stderr = err
    if before[0] and before[0].isatty():
        sys.stdout = out
    try:
        yield
    finally:
        if sys.stdout is out:
            sys.stdout = before[0]
        if sys.stderr is err:
            sys.stderr = before[1]
