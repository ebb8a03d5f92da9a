"""What reaches a terminal: text of files, hubs and models is shown there, and never obeyed.

A name may contain an escape sequence that clears the screen, writes the clipboard or sets the title.
Everything that a command prints goes through here (`isolate.reporting`), so that no other code need care.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_OURS = re.compile(r"(?:\r(?:\x1b\[K)?)?")  # rewrites a line: what we write ourselves, first of all
_SHOWN = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\t\n"}
_SHOWN |= {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}  # reorder


def shown(text: str) -> str:
    """Returns a text whose control characters are visible: all but line ends and tabs.

    So are those that change the order in which letters are shown.
    """
    return text.replace("\r\n", "\n").translate(_SHOWN)


def one_line(text: str, longest: int = 200) -> str:
    """Returns a name or title as one line of at most `longest` characters, without control characters."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= longest else line[: longest - 3] + "..."


class _Guarded:
    """A stream that shows control characters.

    leads: except those that begin what is written. Answers go to stdout, where a piece of one may begin so.
    """

    def __init__(self, stream: TextIO, *, leads: bool) -> None:
        self._stream, self._leads = stream, leads

    def write(self, text: str) -> int:
        lead = _OURS.match(text) if self._leads else None
        start = lead.end() if lead else 0
        self._stream.write(text[:start] + shown(text[start:]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Guards stderr, and stdout if it is a terminal: a file or another program gets the text as it is."""
    before = sys.stdout, sys.stderr
    out = cast(TextIO, _Guarded(before[0], leads=False))
    err = cast(TextIO, _Guarded(before[1], leads=True))
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
