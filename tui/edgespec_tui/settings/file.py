"""The settings file as a file: started from a template, changed with its comments kept."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from edgespec.errors import SettingError

TEMPLATE = """\
# EdgeSpec's settings. Lines that begin with # are examples: remove the # to use them.
# They apply to new chats; /set and /system change the open one.

[chat]
# system = "You are a helpful assistant."
# max_tokens = 1024      # longest answer
# seed = 1               # the same answer every time

[sampling]               # defaults: what the model file recommends
# temperature = 0.8
# top_k = 40
# top_p = 0.95
# min_p = 0.05
# repeat_penalty = 1.0

[speculation]
# on = true              # false: plain decoding
# drafter = "auto"       # or "model", "mtp", "eagle", "dflash", "medusa", "lookup", "lookahead", "none"
# draft_length = 4       # without it: chosen each round

[screen]
# theme = "edgespec-dark"
# panel = true
# tint = false           # colour tokens by what produced them

[keys]                   # several keys with commas
# chat.panel = "f2"
# chat.speculation = "f4,ctrl+s"
"""


def begun(path: Path) -> Path:
    """Returns the file, written with examples if there is none. Raises SettingError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def change(path: Path, table: str, key: str, value: str | float | bool | None) -> None:
    """Changes one value, None removes it; comments and order stay. Raises SettingError."""
    import tomlkit  # late: most starts change nothing
    from tomlkit.exceptions import TOMLKitError

    begun(path)
    path = path.resolve()  # a link to settings kept elsewhere stays one
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8-sig"))
        inside = document.setdefault(table, tomlkit.table())
        if value is None:
            inside.pop(key, None)
        else:
            inside[key] = value
        written = path.with_name(f"{path.name}.{os.getpid()}")
        written.write_text(tomlkit.dumps(document), encoding="utf-8")
        shutil.copymode(path, written)
        os.replace(written, path)
    except (TOMLKitError, UnicodeDecodeError, TypeError, AttributeError) as error:
        raise SettingError(f"{path} is not TOML that can be changed ({error}): fix it by hand") from None
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> SettingError:
    return SettingError(f"{error.filename or path} cannot be written: {error.strerror}")
