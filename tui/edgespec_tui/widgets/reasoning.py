"""Reasoning separated from the answer, as text streams in: `<think>` ... `</think>` at its beginning.

Only there: an answer that mentions the tag keeps it.
"""

from edgespec.chat.families.deltas import Content, Reasoning
from edgespec.chat.families.reader import Reader, Steps

OPEN, CLOSE = "<think>", "</think>"


def thoughts_first(reader: Reader) -> Steps[None]:
    """Reads an answer from its beginning: the reasoning, if there is any, and the text."""
    reader.note()
    yield from reader.skip_space()
    begun = yield from reader.starts_with((OPEN,))
    space = reader.noted()
    if begun:
        while (yield from reader.starts_with(("\n",))):
            pass
        yield from reader.until((CLOSE,), Reasoning)
        yield from reader.skip_space()
    elif space:
        yield Content(space)
    yield from text_alone(reader)


def text_alone(reader: Reader) -> Steps[None]:
    """Reads what follows the reasoning."""
    yield from reader.until((), Content)
