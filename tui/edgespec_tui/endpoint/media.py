"""Pictures and sounds of a question: files by their names, read when they are sent.

A chat keeps the names alone, so it stays small, and a file that is gone later is reported.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from edgespec.errors import SettingError
from edgespec.system.named_file import regular_content
from edgespec_models.shelf.sizes import size_text

MEDIA = "media"  # setting of a turn: its files, as a list in JSON
THUMBNAILS = "thumbnails"  # one for each of these files, likewise
DIGESTS = "digests"  # likewise: of what was in the file when it was asked about
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".avif", ".bmp")
SOUNDS = (".wav", ".mp3")
LARGEST = 30 * 2**20  # bytes of one file, as the server reads it


def is_medium(path: Path) -> bool:
    """Returns whether a file is sent as a picture or sound, by its name."""
    return path.suffix.lower() in (*PICTURES, *SOUNDS)


def is_picture(path: Path) -> bool:
    """Returns whether a file is a picture, by its name."""
    return path.suffix.lower() in PICTURES


def mark_of(path: Path) -> tuple[str, str]:
    """Returns what a question shows in place of a file, and its digest. Raises SettingError if unusable."""
    kind = "picture" if is_picture(path) else "sound"
    content = _content(path)
    return f"[{path.name}: {kind}, {size_text(len(content))}]", digest_of(content)


def digest_of(content: bytes) -> str:
    """Returns what tells a file's content from others."""
    return hashlib.sha256(content).hexdigest()[:32]


def texts_of(settings: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Returns the texts of a turn's setting that is a list of them: `MEDIA` or `THUMBNAILS`."""
    try:
        kept = json.loads(str(settings.get(name, "[]")))
    except ValueError:
        return ()
    return tuple(map(str, kept)) if isinstance(kept, list) else ()


def gone(files: Sequence[str], digests: Sequence[str] = ()) -> list[str]:
    """Returns the names of those that can no longer be sent, or are other ones by now."""
    there = {path for path, _ in _there(files, digests)}
    return [Path(file).name for file in files if Path(file) not in there]


def _there(files: Sequence[str], digests: Sequence[str]) -> Iterator[tuple[Path, bytes]]:
    """Yields the files that can be sent, and are what they were. Older chats have no digests."""
    for file, digest in zip_longest(files, digests[: len(files)], fillvalue=""):
        try:
            content = _content(path := Path(file))
        except SettingError:
            continue
        if digest in ("", digest_of(content)):
            yield path, content


def content_of(text: str, files: Sequence[str], digests: Sequence[str] = ()) -> str | list[dict[str, Any]]:
    """Returns the content of a message, as OpenAI has it. A file that is gone or changed is left out."""
    parts = [_part(path, content) for path, content in _there(files, digests)]
    return [*parts, {"type": "text", "text": text}] if parts else text


def _part(path: Path, content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    if path.suffix.lower() in SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": path.suffix.lower()[1:]}}
    kind = path.suffix.lower()[1:].replace("jpg", "jpeg")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}


def _content(path: Path) -> bytes:
    try:
        content = bytes(regular_content(path, most=LARGEST))
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not 0 < len(content) <= LARGEST:
        why = f"has more than {size_text(LARGEST)}: make it smaller" if content else "is empty"
        raise SettingError(f"{path} {why}")
    return content
