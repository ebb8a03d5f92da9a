"""Defaults of new chats, and how the app looks: read from a TOML file that people may write by hand.

A value that cannot be used is left out and becomes a complaint, one sentence with file, key, value and what
is allowed; the rest of the file applies.
"""

import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
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

ROUNDS, SECONDS = Number(MOST_ROUNDS, 1, 100), Number(CALL_S, 1, 3600)
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


class _Table:
    """One table of the file: values are taken out of it, and the rest is unknown."""

    def __init__(self, name: str, values: object, complaints: list[str]) -> None:
        self.name, self._complaints, self._asked = name, complaints, list[str]()
        self.values: dict[str, Any] = {}
        if isinstance(values, dict):
            self.values = dict(values)
        elif values is not None:
            complaints.append(f"{name} is {_shown(values)}: it must be a table, [{name}]")

    def complain(self, key: str, wrong: str) -> None:
        self._complaints.append(f"{self.name}.{key} is {wrong}")

    def take(self, key: str, is_right: Callable[[Any], bool], allowed: str) -> Any:
        """Returns a value, None if it is missing or wrong."""
        self._asked.append(key)
        value = self.values.pop(key, None)
        if value is None or is_right(value):
            return value
        self.complain(key, f"{_shown(value)}: it must be {allowed}")
        return None

    def number(self, key: str, number: Number) -> Any:
        return self.take(key, number.holds, number.allowed)

    def flag(self, key: str, otherwise: bool) -> bool:
        value = self.take(key, lambda value: isinstance(value, bool), "true or false")
        return otherwise if value is None else bool(value)

    def text(self, key: str) -> str:
        return str(self.take(key, lambda value: isinstance(value, str), "a text in quotes") or "")

    def end(self) -> None:
        """Complains about what was not asked for."""
        for key in self.values:
            self.complain(key, f"not known{meant(key, self._asked)}")


def _settings(tables: dict[str, Any], complaints: list[str], known: AppNames | None) -> Settings:
    names = ("chat", "sampling", "speculation", "screen", "tools", "keys")
    chat, sampling, speculation, screen, tools = (
        _Table(name, tables.get(name), complaints) for name in names[:-1]
    )
    usual = Settings()
    numbers = {name: sampling.number(name, number) for name, number in NUMBERS.items()}
    settings = Settings(
        system=chat.text("system"),
        model=chat.text("model"),
        max_tokens=chat.number("max_tokens", ANSWER["max_tokens"]),
        seed=chat.number("seed", ANSWER["seed"]),
        sampling={name: value for name, value in numbers.items() if value is not None},
        speculation=speculation.flag("on", usual.speculation),
        drafter=speculation.take("drafter", lambda value: value in DRAFTERS, f"one of {', '.join(DRAFTERS)}"),
        draft_length=speculation.number("draft_length", DRAFT_LENGTHS),
        theme=_theme(screen, known),
        panel=screen.flag("panel", usual.panel),
        tint=screen.flag("tint", usual.tint),
        shell=screen.flag("shell", usual.shell),
        notify=screen.take("notify", lambda value: value in WAYS, f"one of {', '.join(WAYS)}") or WAYS[0],
        tool_rounds=tools.number("rounds", ROUNDS) or MOST_ROUNDS,
        call_s=tools.number("seconds", SECONDS) or CALL_S,
        keys=_keys(tables.get("keys"), complaints, known),
    )
    for table in (chat, sampling, speculation, screen, tools):
        table.end()
    for name in tables.keys() - set(names):
        complaints.append(f"[{name}] is not known{meant(name, names)}")
    return settings


def _theme(screen: _Table, known: AppNames | None) -> str:
    if known is None:
        return screen.text("theme")
    themes = known.themes
    allowed = f"one of {', '.join(sorted(themes))}"
    return str(screen.take("theme", lambda value: value in themes, allowed) or "")


def _keys(values: object, complaints: list[str], known: AppNames | None) -> dict[str, str]:
    """Returns keys by what they do. `chat.panel = "f2"` is a table in a table for TOML."""
    table = _Table("keys", values, complaints)
    found: dict[str, str] = {}
    users: dict[str, str] = {}
    for action, wanted in _flat(table.values):
        if known and action not in known.actions:
            table.complain(action, f"not known{meant(action, known.actions)}")
            continue
        keys = [key.strip() for key in wanted.split(",")] if isinstance(wanted, str) else []
        wrong = [key for key in keys if not key or (known and not known.is_key(key))]
        if wrong or not keys:
            allowed = "a key like f2, ctrl+r or escape, several with commas"
            table.complain(action, f"{_shown(wrong[0] if wrong else wanted)}: it must be {allowed}")
            continue
        taken = next(((key, users[key]) for key in keys if key in users), None)
        if taken and _scope(taken[1]) == _scope(action):
            table.complain(action, f"{_shown(taken[0])}, which is that of {taken[1]} already")
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
