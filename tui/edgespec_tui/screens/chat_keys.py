"""The keys of a chat, and what they do."""

from textual.binding import BindingType

from edgespec_tui.settings.keys import key

CHAT_KEYS: list[BindingType] = [
    key("chat.stop", "escape", "Stop", "Stop and keep the text so far; cancel an edit", shown=True),
    key("chat.again", "ctrl+r", "Again", "Answer the last question again", shown=True),
    key("chat.speculation", "f4", "Speculation", "Speculation on and off", shown=True),
    key("chat.race", "f5,ctrl+g", "Race", "Race plain decoding against speculation", shown=True),
    key("chat.demo", "f12,alt+d", "Demo", "A minute that shows what speculation is for"),
    key("chat.tint", "f3,ctrl+t", "Tint", "Colour tokens by what produced them", shown=True),
    key("chat.panel", "f2", "Panel", "Panel on and off"),
    key("chat.copy_code", "f6", "Copy code", "Copy the last code block", first=True),
    key("chat.copy_answer", "f7", "Copy answer", "Copy the last answer", first=True),
    key("chat.copy_question", "alt+q", "Copy question", "Copy the last question"),
    key("chat.reasoning", "f8", "Reasoning", "Open and close the reasoning"),
    key("chat.restart", "f9", "Restart engine", "Start the engine again"),
    key("chat.edit_last", "ctrl+b", "Edit last question", "Edit and resend the last question"),
    key("chat.saved", "ctrl+s", "Saved?", "Where this chat is saved"),
    key("chat.edit_answer", "alt+a", "Edit last answer", "Edit the last answer in your own words"),
    key("chat.go_on", "alt+c", "Continue the answer", "Continue the last answer from where it ended"),
    key("chat.tools", "alt+t", "Tools", "Servers and tools: on and off in this chat"),
    key("chat.find", "alt+w", "Find", "Search in this chat"),
    key("chat.editor", "f10,alt+e", "Editor", "Write the question in your editor"),
    key("chat.scroll_up", "pageup", "Scroll up", "A page up", first=True),
    key("chat.scroll_down", "pagedown", "Scroll down", "A page down", first=True),
]
