"""Named system prompts: one small file each, in a folder that people may edit by hand."""

import re
from pathlib import Path

from edgespec.errors import SettingError
from edgespec.system import config
from edgespec.system.named_file import regular_text
from edgespec_models.kept_file import write_whole

ENDING = ".md"
NAME = re.compile(r"[^\W_][\w-]{0,59}")  # a letter or digit, then words: no path, no hidden file
RESERVED = ("save", "delete")
LARGEST = 2**20  # bytes


def _folder() -> Path:
    return config.settings_folder() / "prompts"


def names() -> list[str]:
    """Returns the names in order; none if the folder cannot be read."""
    try:
        found = [path.stem for path in _folder().iterdir() if path.suffix == ENDING]
    except OSError:
        return []
    return sorted(name for name in found if NAME.fullmatch(name))


def text(name: str) -> str:
    """Returns a prompt. Raises SettingError if none has that name, or it cannot be used."""
    path = _path(name)
    try:
        return regular_text(path, most=LARGEST).strip()
    except (FileNotFoundError, NotADirectoryError):
        known = ", ".join(names())
        raise SettingError(
            f"there is no saved system prompt {name!r}: "
            + (f"there are {known}" if known else f"/prompts save {name} saves the one in use")
        ) from None


def save(name: str, prompt: str) -> Path:
    """Writes a prompt, replacing an older one of that name. Raises SettingError."""
    if not prompt.strip():
        raise SettingError("there is no system prompt in this chat to save: /system TEXT sets one")
    path = _path(name)
    try:
        write_whole(path, prompt.strip() + "\n")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None
    return path


def delete(name: str) -> None:
    """Deletes a prompt. Raises SettingError."""
    text(name)
    try:
        _path(name).unlink()
    except OSError as error:
        raise SettingError(f"{_path(name)} cannot be deleted: {error.strerror}") from None


def _path(name: str) -> Path:
    if not NAME.fullmatch(name) or name in RESERVED:
        raise SettingError(f"{name!r} cannot be the name of a system prompt: use letters, digits, - and _")
    return _folder() / (name + ENDING)
