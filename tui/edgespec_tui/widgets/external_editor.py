"""A text changed in the editor that VISUAL or EDITOR names, while the app gives it the terminal."""

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from edgespec.errors import SettingError

EDITORS = ("sensible-editor", "nano", "micro", "vim", "vi", "notepad")
LARGEST = 8 * 2**20  # bytes that are read back


def editor(path: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the command that opens a file in the user's editor. Raises SettingError without one."""
    for name in ("VISUAL", "EDITOR"):
        if wanted := environment.get(name, "").strip():
            try:
                command = shlex.split(wanted, posix=os.name == "posix")
            except ValueError as error:  # a quote that is not closed
                raise SettingError(f"{name} is {wanted!r}, which is not a command ({error})") from None
            if not command or not shutil.which(command[0]):
                raise SettingError(
                    f"{name} is {wanted!r}, which cannot be found: name an editor that is installed"
                )
            return [*command, str(path)]
    found = next((name for name in EDITORS if shutil.which(name)), None)
    if found is None:
        raise SettingError("no editor is set: set EDITOR to one")
    return [found, str(path)]


def edited(text: str) -> str:
    """Returns the edited text. Raises SettingError without an editor, for its error, and for no text.

    The terminal must be free.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:  # readable by its owner alone
            path = Path(folder) / "question.md"
            path.write_text(text, encoding="utf-8", errors="replace")
            if subprocess.run(editor(path), check=False).returncode != 0:
                raise SettingError("the editor ended with an error: nothing was changed")  # as with `:cq`
            with path.open("rb") as file:
                content = file.read(LARGEST + 1)
    except OSError as error:
        raise SettingError(f"the editor could not be started: {error.strerror or error}") from None
    if len(content) > LARGEST:
        raise SettingError(f"the edited text is larger than {LARGEST:,} bytes: nothing was changed")
    try:
        return content.decode("utf-8-sig").rstrip("\n")
    except UnicodeDecodeError:
        raise SettingError("the edited text is not UTF-8: nothing was changed") from None
