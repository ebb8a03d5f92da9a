"""What slash commands change in a chat, on the screen or in lines: each says in a sentence what it did."""

from collections.abc import Callable, Mapping

from edgespec.errors import SettingError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings import instructions
from edgespec_tui.settings.system_prompts import SystemPrompts
from edgespec_tui.settings.values import from_text, number_text


def _system(talk: Conversation, text: str, _: SystemPrompts) -> str:
    if not text:
        return f"The system prompt: {talk.system or 'there is none'}"
    talk.system = "" if text in ("none", "default") else text
    return "The system prompt is set." if talk.system else "No system prompt."


def _instructions(talk: Conversation, text: str, _: SystemPrompts) -> str:
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


def _prompts(talk: Conversation, text: str, prompts: SystemPrompts) -> str:
    word, _, name = text.partition(" ")
    if not text:
        names = ", ".join(prompts.names())
        return f"Saved: {names}." if names else "None saved yet: /prompts save NAME saves this chat's."
    if word == "save":
        return f"Saved as {prompts.save(name.strip(), talk.system)}."
    if word == "delete":
        prompts.delete(name.strip())
        return f"Deleted {name.strip()}."
    talk.system = prompts.text(text)
    return f"The system prompt is {text}."


def _set(talk: Conversation, text: str, _: SystemPrompts) -> str:
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


def _rename(talk: Conversation, title: str, _: SystemPrompts) -> str:
    if not title:
        raise SettingError("/rename needs a title: /rename TITLE")
    talk.title = " ".join(title.split())
    return f"This chat is called {talk.title!r}."


CHANGES: Mapping[str, Callable[[Conversation, str, SystemPrompts], str]] = {
    "/system": _system,
    "/instructions": _instructions,
    "/prompts": _prompts,
    "/set": _set,
    "/rename": _rename,
}


def on_or_off(text: str) -> bool:
    """Returns what /speculation asks for. Raises SettingError."""
    if text not in ("on", "off"):
        raise SettingError(f"/speculation takes on or off, not {text!r}")
    return text == "on"
