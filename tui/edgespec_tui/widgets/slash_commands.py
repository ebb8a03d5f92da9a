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
    SlashCommand(
        "/prompts", "[NAME]", "takes a saved system prompt; `save NAME`, `delete NAME`; alone, lists"
    ),
    SlashCommand("/set", "[NAME VALUE]", "sets temperature, seed, max_tokens, ...; alone, shows them"),
    SlashCommand("/read", "FILE", "puts a text file into the question; so does @FILE anywhere in it"),
    SlashCommand("/editor", "", "opens what is written in your editor"),
    SlashCommand("/continue", "", "lets the last answer go on from where it ended"),
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
    SlashCommand("/exit", "", "ends, too"),
)
NAMES = tuple(command.name for command in COMMANDS)


def parsed(line: str) -> tuple[str, str] | None:
    """Returns (name, what follows) of a line that is a command; None of one that is a question.

    Raises SettingError for a slash word that is not a command. A line like "/usr/bin/env ..." is a question.
    """
    first, _, rest = line.strip().partition(" ")
    if not first.startswith("/") or "/" in first[1:] or "\n" in first:
        return None
    fits = [name for name in NAMES if name == first] or [name for name in NAMES if name.startswith(first)]
    if len(fits) == 1 or (fits and first == fits[0]):
        return fits[0], rest.strip()
    if fits and first != "/":
        raise SettingError(f"{first} may be {', '.join(fits)}: write more of it")
    raise SettingError(f"{first} is not a command: /help lists them")
