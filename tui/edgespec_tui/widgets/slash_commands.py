"""The slash commands, and what they mean."""

from dataclasses import dataclass

from edgespec.errors import SettingError


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. wants: its arguments, for the list of commands. action: of a key that does the same."""

    name: str
    wants: str
    does: str
    action: str = ""


COMMANDS = (
    SlashCommand("/help", "", "show keys and commands", "app.help"),
    SlashCommand("/model", "", "choose or pull a model", "app.models"),
    SlashCommand("/system", "[TEXT]", "set the system prompt of this chat; without TEXT, show it"),
    SlashCommand("/instructions", "[on|off]", "use the AGENTS.md of this project, or do not"),
    SlashCommand(
        "/prompts", "[NAME]", "use a saved system prompt, `save NAME` or `delete NAME`; alone, list them"
    ),
    SlashCommand("/prompt", "[SERVER:NAME ...]", "put a server's prompt into the input; alone, list them"),
    SlashCommand("/set", "[NAME VALUE]", "set temperature, seed, max_tokens, ...; alone, show them"),
    SlashCommand("/read", "FILE", "add a text file or picture to the question; so does @FILE in it"),
    SlashCommand("/editor", "", "open the input in your editor", "editor"),
    SlashCommand("/continue", "", "continue the last answer from where it ended", "go_on"),
    SlashCommand("/new", "", "start a new chat", "app.new"),
    SlashCommand("/clear", "", "start a new chat; the old one is kept", "app.new"),
    SlashCommand("/rename", "TITLE", "give this chat a title"),
    SlashCommand("/sessions", "", "list, search, rename and delete chats", "app.sessions"),
    SlashCommand("/find", "", "search in this chat", "find"),
    SlashCommand("/export", "[FILE]", "write this chat to a file: .md or .json"),
    SlashCommand("/compact", "", "continue from a summary of the oldest turns; the whole chat is kept"),
    SlashCommand("/schema", "[FILE]", "have answers follow a JSON schema; `off` ends that"),
    SlashCommand("/tools", "", "show servers of tools, and turn them on and off in this chat", "tools"),
    SlashCommand("/race", "[TEXT]", "answer plain and with speculation, in turn"),
    SlashCommand("/demo", "", "show in a minute what speculation is for", "demo"),
    SlashCommand("/speculation", "on|off", "turn speculation on or off in this chat"),
    SlashCommand("/tint", "", "colour tokens by what produced them", "tint"),
    SlashCommand("/settings", "", "open the settings file in your editor", "app.settings"),
    SlashCommand("/quit", "", "quit", "app.quit_now"),
    SlashCommand("/exit", "", "quit", "app.quit_now"),
)


def parsed(line: str) -> tuple[SlashCommand, str] | None:
    """Returns the command of a line and its arguments; None for a line that is a question.

    Raises SettingError for a slash word that is not a command. A line like "/usr/bin/env ..." is a question.
    """
    first, _, rest = line.strip().partition(" ")
    if not first.startswith("/") or "/" in first[1:] or "\n" in first:
        return None
    fits = [one for one in COMMANDS if one.name.startswith(first)]
    whole = next((one for one in fits if one.name == first or len(fits) == 1), None)
    if whole is not None:
        return whole, rest.strip()
    if fits and first != "/":
        names = ", ".join(one.name for one in fits)
        raise SettingError(f"{first} could be {names}: type more of it")
    raise SettingError(f"{first} is not a command: /help lists them")
