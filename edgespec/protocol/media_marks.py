"""Marks of pictures and sounds in a text, where a template renders it and they come back in.

A mark has 128 random bits of this process, so no text can contain one by itself.
"""

import re
import secrets
from collections.abc import Sequence

from edgespec.core.attachment import Attachment, Mixed

_SECRET = f"<__media_{secrets.token_hex(16)}"
MARKER = f"{_SECRET}__>"  # one without a number
_NUMBERED = re.compile(rf"{_SECRET}_(\d+)__>")


def mark(number: int) -> dict[str, str]:
    """Returns the part of a message that stands for a medium, by its number among those attached."""
    return {"type": "media", "text": f"{_SECRET}_{number}__>"}


def mixed(text: str, attached: Sequence[Attachment]) -> str | Mixed:
    """Returns a rendered text with the media that it has marks of."""
    texts = _NUMBERED.split(text)
    if len(texts) == 1:
        return text
    return Mixed(tuple(texts[::2]), tuple(attached[int(number)] for number in texts[1::2]))
