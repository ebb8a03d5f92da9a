"""The settings file as a file: started from a template."""

from contextlib import suppress
from pathlib import Path

from edgespec.core.values import DRAFTERS
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
# drafter = "auto"       # or DRAFTERS
# draft_length = 4       # without it: chosen each round

[screen]
# theme = "edgespec-dark"
# panel = true
# tint = false           # colour tokens by what produced them

[keys]                   # several keys with commas
# chat.panel = "f2"
# chat.speculation = "f4,alt+s"
""".replace("DRAFTERS", ", ".join(DRAFTERS[1:]))


def begun(path: Path) -> Path:
    """Returns the file, written with examples if there is none. Raises SettingError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
            file.write(TEMPLATE)
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> SettingError:
    return SettingError(f"{error.filename or path} cannot be written: {error.strerror}")
