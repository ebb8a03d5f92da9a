"""What may be typed after a slash, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import SettingError


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. wants: what follows it, for the list of commands."""

    name: str
    wants: str
    does: str


COMMANDS = (
    SlashCommand("/help", "", "shows keys and commands"),
    SlashCommand("/model", "", "chooses or pulls a model"),
    SlashCommand("/system", "[TEXT]", "sets the system prompt of this chat; alone, shows it"),
    SlashCommand("/set", "[NAME VALUE]", "sets temperature, seed, max_tokens, ...; alone, shows them"),
    SlashCommand("/read", "FILE", "puts a text file into the question"),
    SlashCommand("/new", "", "begins a new chat"),
    SlashCommand("/clear", "", "begins a new chat, too; the old one stays among the sessions"),
    SlashCommand("/rename", "TITLE", "gives this chat a title"),
    SlashCommand("/sessions", "", "lists, searches, renames and deletes chats"),
    SlashCommand("/export", "[FILE]", "writes this chat to a file: .md or .json"),
    SlashCommand("/race", "[TEXT]", "answers plain and with speculation, one after the other"),
    SlashCommand("/bench", "[N]", "races N prompts of several kinds and shows the speed-up"),
    SlashCommand("/speculation", "on|off", "drafts, or does not, in this chat"),
    SlashCommand("/tint", "", "colours tokens by who produced them"),
    SlashCommand("/settings", "", "opens the settings file in your editor"),
    SlashCommand("/quit", "", "ends"),
)
NAMES = tuple(command.name for command in COMMANDS)


@dataclass(frozen=True, slots=True)
class Ranged:
    """What a setting may be."""

    low: float
    high: float
    whole: bool = False


SETTINGS: dict[str, Ranged] = {
    "temperature": Ranged(0, 100),
    "top_k": Ranged(0, 2**31 - 1, whole=True),
    "top_p": Ranged(0, 1),
    "min_p": Ranged(0, 1),
    "typical_p": Ranged(0, 1),
    "top_n_sigma": Ranged(-1, 1000),
    "repeat_penalty": Ranged(0.01, 100),
    "frequency_penalty": Ranged(-100, 100),
    "presence_penalty": Ranged(-100, 100),
    "penalty_last_n": Ranged(-1, 2**31 - 1, whole=True),
    "seed": Ranged(0, 2**63 - 1, whole=True),
    "max_tokens": Ranged(1, 2**31 - 1, whole=True),
}


def parsed(line: str) -> tuple[str, str] | None:
    """Returns (name, what follows) of a line that is a command; None of one that is a question.

    Raises SettingError for a slash word that is no command. A line like "/usr/bin/env ..." is a question.
    """
    first, _, rest = line.strip().partition(" ")
    if not first.startswith("/") or "/" in first[1:] or "\n" in first:
        return None
    fits = [name for name in NAMES if name == first] or [name for name in NAMES if name.startswith(first)]
    if len(fits) == 1 or (fits and first == fits[0]):
        return fits[0], rest.strip()
    if fits and first != "/":
        raise SettingError(f"{first} may be {', '.join(fits)}: write more of it")
    raise SettingError(f"{first} is no command: /help lists them")


def setting(text: str) -> tuple[str, float | int | None]:
    """Returns the name and value of a `/set` line; None takes a setting back. Raises SettingError."""
    words = text.replace("=", " ").split()
    name = words[0].replace("-", "_") if words else ""
    if name not in SETTINGS:
        raise SettingError(f"{name!r} is no setting: there are {', '.join(SETTINGS)}")
    if len(words) != 2:
        raise SettingError(f"{name} wants one value, or `default`")
    if words[1] in ("default", "none"):
        return name, None
    ranged = SETTINGS[name]
    try:
        value = int(words[1]) if ranged.whole else float(words[1])
    except ValueError:
        kind = "a whole number" if ranged.whole else "a number"
        raise SettingError(f"{name} is {words[1]!r}: it must be {kind}") from None
    if not ranged.low <= value <= ranged.high:
        raise SettingError(f"{name} is {words[1]}: it must be from {ranged.low:g} to {ranged.high:g}")
    return name, value
