"""The slash commands, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import SettingError


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. wants: its arguments, for the list of commands."""

    name: str
    wants: str
    does: str


COMMANDS = (
    SlashCommand("/help", "", "show keys and commands"),
    SlashCommand("/model", "", "choose or pull a model"),
    SlashCommand("/system", "[TEXT]", "set the system prompt of this chat; without TEXT, show it"),
    SlashCommand(
        "/prompts", "[NAME]", "use a saved system prompt, `save NAME` or `delete NAME`; alone, list them"
    ),
    SlashCommand("/set", "[NAME VALUE]", "set temperature, seed, max_tokens, ...; alone, show them"),
    SlashCommand("/read", "FILE", "add a text file to the question; so does @FILE anywhere in it"),
    SlashCommand("/editor", "", "open the input in your editor"),
    SlashCommand("/continue", "", "continue the last answer from where it ended"),
    SlashCommand("/new", "", "start a new chat"),
    SlashCommand("/clear", "", "start a new chat; the old one is kept"),
    SlashCommand("/rename", "TITLE", "give this chat a title"),
    SlashCommand("/sessions", "", "list, search, rename and delete chats"),
    SlashCommand("/export", "[FILE]", "write this chat to a file: .md or .json"),
    SlashCommand("/race", "[TEXT]", "answer plain and with speculation, in turn"),
    SlashCommand("/demo", "", "show in a minute what speculation is for"),
    SlashCommand("/bench", "[N]", "race N prompts of several kinds and show the speed-up"),
    SlashCommand("/speculation", "on|off", "turn speculation on or off in this chat"),
    SlashCommand("/tint", "", "colour tokens by what produced them"),
    SlashCommand("/settings", "", "open the settings file in your editor"),
    SlashCommand("/quit", "", "quit"),
    SlashCommand("/exit", "", "quit"),
)
NAMES = tuple(command.name for command in COMMANDS)


def parsed(line: str) -> tuple[str, str] | None:
    """Returns (name, arguments) of a line that is a command; None for one that is a question.

    Raises SettingError for a slash word that is not a command. A line like "/usr/bin/env ..." is a question.
    """
    first, _, rest = line.strip().partition(" ")
    if not first.startswith("/") or "/" in first[1:] or "\n" in first:
        return None
    fits = [name for name in NAMES if name == first] or [name for name in NAMES if name.startswith(first)]
    if len(fits) == 1 or (fits and first == fits[0]):
        return fits[0], rest.strip()
    if fits and first != "/":
        raise SettingError(f"{first} could be {', '.join(fits)}: type more of it")
    raise SettingError(f"{first} is not a command: /help lists them")
