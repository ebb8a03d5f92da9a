"""What is odd about a text that came from outside, for a warning: nobody sees it."""

import re
from collections.abc import Iterator

REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
NO_TEXT = re.compile("[\ud800-\udfff]")  # bytes that were read with "surrogateescape"


def oddities(text: str) -> Iterator[str]:
    """Yields a sentence for each: bytes that are no UTF-8, characters that reorder what is shown."""
    if n := len(NO_TEXT.findall(text)):
        yield f"{n:,} byte{'s are' if n > 1 else ' is'} not UTF-8 text: the model gets \ufffd instead"
    if found := REORDERING.search(text):
        yield (
            f"the text contains U+{ord(found[0]):04X}, which changes the order in which letters are shown: "
            "the model may read something else than you"
        )


def as_text(text: str) -> str:
    """Returns a text without what is none."""
    return NO_TEXT.sub("\ufffd", text)
