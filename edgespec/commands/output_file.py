"""A file that a command is to write, checked before it begins."""

from pathlib import Path

from edgespec.errors import SettingError
from edgespec_models.shelf.sizes import no_room


def check_output(output: Path, needed: int) -> None:
    """Raises SettingError if a file of so many bytes cannot be written there."""
    if output.exists():
        raise SettingError(f"{output} already exists: remove it, or name another file with -o")
    if not output.parent.is_dir():
        raise SettingError(f"-o {output}: there is no folder {output.parent}")
    if why := no_room(output.parent, needed):
        raise SettingError(f"{why}: make room")
