"""Rows in columns, and sentences in lines, for a terminal."""

import shutil
import textwrap
from collections.abc import Sequence

WIDTH = 100  # of sentences, if the terminal is no narrower


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows as lines whose columns are as wide as they have to be."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def wrapped(text: str, first: str = "", rest: str = "  ") -> list[str]:
    """Returns a text as lines that the terminal has room for. first, rest: what these lines begin with."""
    width = max(40, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    wrapper = textwrap.TextWrapper(width, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)
