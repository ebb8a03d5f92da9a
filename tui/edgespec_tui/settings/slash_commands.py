"""The slash commands: what each is called, and what it does.

`change` is what a command changes in a chat, on the screen and in a plain chat alike: it says in a sentence
what it did. Other commands are an action of a key, or what `screens/chat.py` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgespec.errors import SettingError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings import instructions, system_prompts
from edgespec_tui.settings.values import from_text, number_text

Change = Callable[[Conversation, str], str]


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One command. wants: its arguments, for the list of commands. action: of a key that does the same."""

    name: str
    wants: str
    does: str
    action: str = ""
    change: Change | None = None


def _system(talk: Conversation, text: str) -> str:
    if not text:
        return f"The system prompt: {talk.system or 'there is none'}"
    talk.system = "" if text in ("none", "default") else text
    return "The system prompt is set." if talk.system else "No system prompt."


def _instructions(talk: Conversation, text: str) -> str:
    if text == instructions.OFF:
        talk.system = instructions.without(talk.system)
        instructions.decide(instructions.OFF)
        return "Instructions of this project are left out, here and in later chats of this folder."
    if not (found := instructions.files()):
        raise SettingError(
            f"there is no {instructions.NAME} in this folder, or above it up to its repository's root"
        )
    names = ", ".join(map(str, found))
    if text == instructions.ON:
        talk.system = instructions.with_instructions(talk.system, instructions.text(found))
        instructions.decide(instructions.ON)
        return f"The system prompt has {names}, here and in later chats of this folder."
    if text:
        raise SettingError(f"/instructions takes on or off, not {text!r}")
    used = "used" if instructions.are_in(talk.system) else "not used: /instructions on"
    return f"Instructions of this project: {names} ({used})."


def _prompts(talk: Conversation, text: str) -> str:
    word, _, name = text.partition(" ")
    if not text:
        names = ", ".join(system_prompts.names())
        return f"Saved: {names}." if names else "None saved yet: /prompts save NAME saves this chat's."
    if word == "save":
        return f"Saved as {system_prompts.save(name.strip(), talk.system)}."
    if word == "delete":
        system_prompts.delete(name.strip())
        return f"Deleted {name.strip()}."
    talk.system = system_prompts.text(text)
    return f"The system prompt is {text}."


def _set(talk: Conversation, text: str) -> str:
    if not text:
        known = ", ".join(f"{name} {number_text(value)}" for name, value in talk.values().items())
        return "Set here: " + (known or "nothing; the model's own settings apply") + "."
    name, value = from_text(text)
    talk.set(name, value)
    return (
        f"{name} is {number_text(value)}, in this chat."
        if value is not None
        else f"{name} is the model's own."
    )


def _rename(talk: Conversation, title: str) -> str:
    if not title:
        raise SettingError("/rename needs a title: /rename TITLE")
    talk.title = " ".join(title.split())
    return f"This chat is called {talk.title!r}."


COMMANDS = (
    SlashCommand("/help", "", "show keys and commands", action="app.help"),
    SlashCommand("/model", "", "choose or pull a model", action="app.models"),
    SlashCommand("/system", "[TEXT]", "set this chat's system prompt; alone, show it", change=_system),
    SlashCommand(
        "/instructions", "[on|off]", "use this project's AGENTS.md, or do not", change=_instructions
    ),
    SlashCommand(
        "/prompts", "[NAME]", "use a saved prompt; `save NAME`, `delete NAME`; alone, list", change=_prompts
    ),
    SlashCommand("/prompt", "[SERVER:NAME ...]", "put a server's prompt into the input; alone, list them"),
    SlashCommand("/set", "[NAME VALUE]", "set temperature, seed, ...; alone, show them", change=_set),
    SlashCommand("/read", "FILE", "add a text file or picture to the question; so does @FILE in it"),
    SlashCommand("/editor", "", "open the input in your editor", action="editor"),
    SlashCommand("/continue", "", "continue the last answer from where it ended", action="go_on"),
    SlashCommand("/new", "", "start a new chat", action="app.new"),
    SlashCommand("/clear", "", "start a new chat; the old one is kept", action="app.new"),
    SlashCommand("/rename", "TITLE", "give this chat a title", change=_rename),
    SlashCommand("/sessions", "", "list, search, rename and delete chats", action="app.sessions"),
    SlashCommand("/find", "", "search in this chat", action="find"),
    SlashCommand("/export", "[FILE]", "write this chat to a file: .md or .json"),
    SlashCommand("/compact", "", "continue from a summary of the oldest turns; the whole chat is kept"),
    SlashCommand("/schema", "[FILE]", "have answers follow a JSON schema; `off` ends that"),
    SlashCommand("/tools", "", "show servers of tools; turn them on and off here", action="tools"),
    SlashCommand("/race", "[TEXT]", "answer plain and with speculation, in turn"),
    SlashCommand("/demo", "", "show in a minute what speculation is for", action="demo"),
    SlashCommand("/speculation", "on|off", "turn speculation on or off in this chat"),
    SlashCommand("/tint", "", "colour tokens by what produced them", action="tint"),
    SlashCommand("/settings", "", "open the settings file in your editor", action="app.settings"),
    SlashCommand("/quit", "", "quit", action="app.quit_now"),
    SlashCommand("/exit", "", "quit", action="app.quit_now"),
)
CHANGES: Mapping[str, Change] = {one.name: one.change for one in COMMANDS if one.change}


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


def on_or_off(text: str) -> bool:
    """Returns what /speculation asks for. Raises SettingError."""
    if text not in ("on", "off"):
        raise SettingError(f"/speculation takes on or off, not {text!r}")
    return text == "on"
