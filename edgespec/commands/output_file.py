"""A file that a command is to write, checked before it begins."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import EdgeSpecError, SettingError
from edgespec_models.kept_file import write_whole
from edgespec_models.shelf.sizes import no_room


def check_output(output: Path, needed: int) -> None:
    """Raises SettingError if a file of so many bytes cannot be written there."""
    if output.exists():
        raise SettingError(f"{output} already exists: remove it, or name another file with -o")
    if not output.parent.is_dir():
        raise SettingError(f"-o {output}: there is no folder {output.parent}")
    if why := no_room(output.parent, needed):
        raise SettingError(f"{why}: make room")


def check_writable(flag: str, path: Path) -> None:
    """Raises SettingError if the file could not be written: checked before anything is measured."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if path.is_file():
            with path.open("ab"):
                return
        if path.exists():  # opening a pipe waits for a reader; and a device would be replaced by a file
            raise OSError(0, "it is not an ordinary file")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = error.strerror or error
        raise SettingError(f"{flag} {path} cannot be written: {why}; name another place") from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document, whole or not at all. Raises EdgeSpecError."""
    try:
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n", private=False)
    except OSError as error:
        raise EdgeSpecError(f"{path} was not written: {error.strerror or error}") from None
