"""A project's instructions for assistants: the AGENTS.md of the folder and of those above it.

They are a part of the system prompt, if the user has said so for this folder: a project that was cloned may
say anything. They are offered once.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.errors import SettingError
from edgespec.system import config
from edgespec.system.named_file import regular_content, regular_text
from edgespec_models.kept_file import write_whole

NAME = "AGENTS.md"
LARGEST = 2**16  # bytes, of all together
BEGINS = "Instructions of this project:\n"
ENDS = "\n(End of the instructions of this project.)"
ON, OFF = "on", "off"


def files(folder: Path | None = None) -> list[Path]:
    """Returns the files of a folder, by default the current one, and above, up to its repository's root.

    That of the root comes first.
    """
    here = (folder or Path()).absolute()
    above = [here, *here.parents]
    root = next((i for i, one in enumerate(above) if (one / ".git").exists()), 0)
    return [one / NAME for one in reversed(above[: root + 1]) if (one / NAME).is_file()]


def text(found: Sequence[Path]) -> str:
    """Returns what they say. Raises SettingError."""
    try:
        whole = "\n\n".join(filter(None, (regular_text(path, most=LARGEST).strip() for path in found)))
    except OSError as error:
        raise SettingError(f"{error.filename} has gone: ask again") from None
    if len(whole.encode()) > LARGEST:
        raise SettingError(
            f"{found[0]} and others have more than {LARGEST:,} bytes: too many for instructions"
        )
    return whole


def without(system: str) -> str:
    """Returns a system prompt without instructions."""
    before, begins, rest = system.partition(BEGINS)
    inside, ends, behind = rest.partition(ENDS)
    return "\n\n".join(filter(None, [before.rstrip(), behind.lstrip()])) if begins and ends else system


def with_instructions(system: str, instructions: str) -> str:
    """Returns a system prompt with instructions behind its own text."""
    return "\n\n".join(filter(None, [without(system), f"{BEGINS}{instructions}{ENDS}"]))


def are_in(system: str) -> bool:
    """Returns whether a system prompt has instructions."""
    return without(system) != system


def decided() -> str:
    """Returns what the user has said of this folder's files: ON, OFF or ""."""
    return _decisions().get(_key(), "")


def decide(answer: str) -> None:
    """Notes what the user says. It is lost if the folder for it cannot be written."""
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_whole(_file(), json.dumps({**_decisions(), _key(): answer}))


def offer() -> str:
    """Returns a sentence that offers instructions, once for each folder; else ""."""
    found = files()
    if not found or _key() in _decisions():
        return ""
    decide("")
    size = sum(path.stat().st_size for path in found)
    return (
        f"This project has instructions for assistants ({NAME}, {size:,} bytes): /instructions on makes them "
        "a part of the system prompt, here and in later chats of this folder."
    )


def usual(system: str) -> str:
    """Returns a new chat's system prompt: with instructions, if that was decided for this folder."""
    with suppress(SettingError):
        if decided() == ON and (instructions := text(files())):
            return with_instructions(system, instructions)
    return system


def _key() -> str:
    return " ".join(map(str, files()))


def _file() -> Path:
    return config.data_folder() / "instructions.json"


def _decisions() -> dict[str, str]:
    try:
        kept = json.loads(regular_content(_file(), most=2**20))
    except (OSError, ValueError, RecursionError):
        return {}
    return {k: v for k, v in kept.items() if isinstance(v, str)} if isinstance(kept, dict) else {}
