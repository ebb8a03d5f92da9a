"""The files of pictures and sounds in requests, as clients send them."""

import base64
import binascii
from collections.abc import Sequence

from edgespec.chat.sound import is_sound
from edgespec.core.attachment import Attachment, Mixed
from edgespec.engine.media_marks import MARKER
from edgespec.server.refusal import Refusal, invalid

USUAL = "<__media__>"


def marked(text: str, files: Sequence[str], param: str) -> str | Mixed:
    """Returns a text whose marks its client wrote, with what it sent for them, in base64. Raises Refusal."""
    texts = text.replace(USUAL, MARKER).split(MARKER)
    if len(texts) - 1 != len(files):
        sentence = f"{param} has {len(files)} files for {len(texts) - 1} marks ({USUAL}) in the prompt"
        raise invalid(f"{sentence}: send one for each", param)
    return Mixed(tuple(texts), tuple(from_base64(file, param) for file in files)) if files else text


def from_base64(data: str, param: str) -> Attachment:
    """Returns a file that was sent in base64. Raises Refusal."""
    try:
        file = base64.b64decode("".join(data.split()) if "\n" in data else data, validate=True)
    except (binascii.Error, ValueError):
        file = b""
    if not file:
        raise invalid(f"{param}: a file is not in base64, or empty", param)
    return attached(file)


def attached(file: bytes) -> Attachment:
    """Returns a file with its kind."""
    return Attachment("sound" if is_sound(file) else "picture", file)


def from_url(url: str, param: str) -> Attachment:
    """Returns the file of a data URL. Raises Refusal for others."""
    head, comma, data = url.partition(",")
    if not head.lower().startswith("data:") or not comma:
        sentence = f"a picture is given as {url[:40]!r}: only data URLs are read here, so send its bytes"
        raise Refusal(400, f"{sentence} (data:image/png;base64,...)", param=param, code="unsupported_value")
    if not head.lower().endswith(";base64"):
        raise invalid("a data URL is not in base64: write data:image/png;base64,...", param)
    return from_base64(data, param)
