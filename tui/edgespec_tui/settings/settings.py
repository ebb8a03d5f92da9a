"""Defaults of new chats, and how the app looks: read from a TOML file that people may write by hand.

A value that cannot be used is left out and becomes a complaint, one sentence with file, key, value and what
is allowed; the rest of the file applies.
"""

import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgespec.core.values import DRAFT_LENGTHS, DRAFTERS, DrafterName
from edgespec.errors import SettingError
from edgespec.sampling.settings import NUMBERS, Number
from edgespec.system.named_file import regular_text
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings import instructions
from edgespec_tui.settings.values import ANSWER, meant
from edgespec_tui.terminal.notification import WAYS
from edgespec_tui.tools.loop import MOST_ROUNDS
from edgespec_tui.tools.toolbox import CALL_S

FILE = "settings.toml"
LARGEST = 2**16  # bytes
MOST_SHOWN = 8  # complaints about one file
SHOWN = 60  # characters of a wrong value that a complaint quotes


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults. None leaves a value to the model or the engine."""

    system: str = ""
    model: str = ""  # of a server of another kind (`--endpoint`)
    max_tokens: int | None = None
    seed: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)  # by the names of `NUMBERS`
    speculation: bool = True
    drafter: DrafterName | None = None
    draft_length: int | None = None
    theme: str = ""  # "" is the app's own
    panel: bool = True  # shown from the start
    tint: bool = False
    shell: bool = True  # !COMMAND runs one
    tool_rounds: int = MOST_ROUNDS  # of calls in one answer
    call_s: float = CALL_S  # that one call may take
    notify: str = WAYS[0]  # how a long answer's end is announced where the window has no focus
    # keys by the name of what they do, several with commas
    keys: Mapping[str, str] = field(default_factory=dict)

    def new_conversation(self) -> Conversation:
        """Returns a chat with these settings."""
        return Conversation(
            system=instructions.usual(self.system),
            sampling=dict(self.sampling),
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True, slots=True)
class AppNames:
    """What only the app knows: its themes, what keys can be given to, and which keys there are."""

    themes: Collection[str]
    actions: Collection[str]
    is_key: Callable[[str], bool]


def read(path: Path, *, known: AppNames | None = None) -> tuple[Settings, tuple[str, ...]]:
    """Returns the settings of a file, and a sentence for each value that cannot be used.

    A missing file counts as empty. known: None does not check themes and keys.
    """
    try:
        complaints: list[str] = []
        settings = _settings(tomllib.loads(regular_text(path, most=LARGEST)), complaints, known)
    except (FileNotFoundError, NotADirectoryError):
        return Settings(), ()
    except SettingError as error:
        if not os.access(path.parent, os.X_OK):  # somebody else's home: nobody has set anything here
            return Settings(), ()
        return Settings(), (f"{error}: using the defaults",)
    except ValueError as error:  # TOMLDecodeError, or a number that is too long
        why = str(error)
        return Settings(), (f"{path} is not TOML: {why[:1].lower()}{why[1:]}; using the defaults",)
    except RecursionError:
        return Settings(), (f"{path} is nested too deeply: using the defaults",)
    shown = [f"{path}: {sentence}" for sentence in complaints[:MOST_SHOWN]]
    if len(complaints) > MOST_SHOWN:
        shown.append(f"{path}: {len(complaints) - MOST_SHOWN:,} more values cannot be used")
    return settings, tuple(shown)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value may be, as `Number` says it of numbers."""

    holds: Callable[[Any], bool]
    allowed: str


def one_of(names: Sequence[str]) -> Kind:
    """Returns the kind of values that are one of these."""
    return Kind(lambda value: value in names, f"one of {', '.join(names)}")


FLAG = Kind(lambda value: isinstance(value, bool), "true or false")
TEXT = Kind(lambda value: isinstance(value, str), "a text in quotes")
TABLES: Mapping[str, Mapping[str, Kind | Number]] = {  # of the file; a key is a field of `Settings`
    "chat": {
        "system": TEXT,
        "model": TEXT,
        "max_tokens": ANSWER["max_tokens"],
        "seed": ANSWER["seed"],
    },
    "sampling": NUMBERS,
    "speculation": {"on": FLAG, "drafter": one_of(DRAFTERS), "draft_length": DRAFT_LENGTHS},
    "screen": {"theme": TEXT, "panel": FLAG, "tint": FLAG, "shell": FLAG, "notify": one_of(WAYS)},
    "tools": {"rounds": Number(MOST_ROUNDS, 1, 100), "seconds": Number(CALL_S, 1, 3600)},
}
FIELDS = {"on": "speculation", "rounds": "tool_rounds", "seconds": "call_s"}  # keys of other names


def _settings(tables: dict[str, Any], complaints: list[str], known: AppNames | None) -> Settings:
    found: dict[str, Any] = {}
    for name, kinds in TABLES.items():
        if known and name == "screen":
            kinds = {**kinds, "theme": one_of(sorted(known.themes))}
        values = dict(_values(name, tables.get(name), kinds, complaints))
        found |= {name: values} if kinds is NUMBERS else {FIELDS.get(k, k): v for k, v in values.items()}
    names = (*TABLES, "keys")
    complaints += [f"[{name}] is not known{meant(name, names)}" for name in tables.keys() - set(names)]
    return Settings(**found, keys=_keys(_table("keys", tables.get("keys"), complaints), complaints, known))


def _table(name: str, values: object, complaints: list[str]) -> dict[str, Any]:
    if values is not None and not isinstance(values, dict):
        complaints.append(f"{name} is {_shown(values)}: it must be a table, [{name}]")
    return values if isinstance(values, dict) else {}


def _values(
    name: str, values: object, kinds: Mapping[str, Kind | Number], complaints: list[str]
) -> Iterator[tuple[str, Any]]:
    """Yields the values of a table that can be used."""
    for key, value in _table(name, values, complaints).items():
        if key not in kinds:
            complaints.append(f"{name}.{key} is not known{meant(key, kinds)}")
        elif kinds[key].holds(value):
            yield key, value
        else:
            complaints.append(f"{name}.{key} is {_shown(value)}: it must be {kinds[key].allowed}")


def _keys(table: dict[str, Any], complaints: list[str], known: AppNames | None) -> dict[str, str]:
    """Returns keys by what they do. `chat.panel = "f2"` is a table in a table for TOML."""
    found: dict[str, str] = {}
    users: dict[str, str] = {}
    for action, wanted in _flat(table):
        if known and action not in known.actions:
            complaints.append(f"keys.{action} is not known{meant(action, known.actions)}")
            continue
        keys = [key.strip() for key in wanted.split(",")] if isinstance(wanted, str) else []
        wrong = [key for key in keys if not key or (known and not known.is_key(key))]
        if wrong or not keys:
            allowed = "a key like f2, ctrl+r or escape, several with commas"
            shown = _shown(wrong[0] if wrong else wanted)
            complaints.append(f"keys.{action} is {shown}: it must be {allowed}")
            continue
        taken = next(((key, users[key]) for key in keys if key in users), None)
        if taken and _scope(taken[1]) == _scope(action):
            complaints.append(f"keys.{action} is {_shown(taken[0])}, which is that of {taken[1]} already")
            continue
        users.update(dict.fromkeys(keys, action))
        found[action] = ",".join(keys)
    return found


def _scope(action: str) -> str:
    """Returns the scope of an action: two of one scope cannot share a key."""
    return action.partition(".")[0]


def _flat(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value


def _shown(value: object) -> str:
    text = {True: "true", False: "false"}.get(value, "") if isinstance(value, bool) else repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


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

[tools]                  # of the servers in mcp.json
# rounds = 10            # of calls in one answer
# seconds = 120          # that one call may take

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
        raise SettingError(f"{error.filename or path} cannot be written: {error.strerror}") from None
    return path
