"""Pictures and sounds of a question: files by their names, read when they are sent.

A chat keeps the names alone, so it stays small, and a file that is gone later is told of.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import SettingError
from edgespec.system.named_file import regular_content
from edgespec_models.shelf.sizes import size_text

MEDIA = "media"  # setting of a turn: its files, as a list in JSON
THUMBNAILS = "thumbnails"  # one for each of these files, likewise
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".avif", ".bmp")
SOUNDS = (".wav", ".mp3")
LARGEST = 30 * 2**20  # bytes of one file, as the server reads it


def is_medium(path: Path) -> bool:
    """Returns whether a file is sent as a picture or sound, by its name."""
    return path.suffix.lower() in (*PICTURES, *SOUNDS)


def is_picture(path: Path) -> bool:
    """Returns whether a file is a picture, by its name."""
    return path.suffix.lower() in PICTURES


def mark_of(path: Path) -> str:
    """Returns what is shown in a question in place of a file. Raises SettingError if it cannot be sent."""
    kind = "picture" if is_picture(path) else "sound"
    return f"[{path.name}: {kind}, {size_text(len(_content(path)))}]"


def texts_of(settings: Mapping[str, object], name: str) -> tuple[str, ...]:
    """Returns the texts of a turn's setting that is a list of them: `MEDIA` or `THUMBNAILS`."""
    try:
        told = json.loads(str(settings.get(name, "[]")))
    except ValueError:
        return ()
    return tuple(map(str, told)) if isinstance(told, list) else ()


def gone(files: Iterable[str]) -> list[str]:
    """Returns the names of those that are no longer there."""
    return [Path(file).name for file in files if not Path(file).is_file()]


def content_of(text: str, files: tuple[str, ...]) -> str | list[dict[str, Any]]:
    """Returns the content of a message, as OpenAI has it. A file that is gone is left out."""
    parts = [_part(path) for path in map(Path, files) if path.is_file()]
    return [*parts, {"type": "text", "text": text}] if parts else text


def _part(path: Path) -> dict[str, Any]:
    data = base64.b64encode(_content(path)).decode()
    if path.suffix.lower() in SOUNDS:
        return {"type": "input_audio", "input_audio": {"data": data, "format": path.suffix.lower()[1:]}}
    kind = path.suffix.lower()[1:].replace("jpg", "jpeg")
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}


def _content(path: Path) -> bytes:
    try:
        content = bytes(regular_content(path, most=LARGEST))
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror or error}") from None
    if not 0 < len(content) <= LARGEST:
        why = f"has more than {size_text(LARGEST)}: make it smaller" if content else "is empty"
        raise SettingError(f"{path} {why}")
    return content
