"""What the settings file may give keys and themes to: everything in the app that has a name for it."""

import unicodedata
from collections.abc import Iterator

from textual.binding import Binding
from textual.keys import Keys
from textual.theme import BUILTIN_THEMES

from edgespec_tui.app import ChatApp
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.screens.demo import DemoScreen
from edgespec_tui.screens.help import HelpScreen
from edgespec_tui.screens.models import ModelsScreen
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.screens.sessions import SessionsScreen
from edgespec_tui.screens.tools import AskedScreen, ToolsScreen
from edgespec_tui.settings.settings import AppNames
from edgespec_tui.settings.themes import THEMES
from edgespec_tui.widgets.answer_body import CodeFence
from edgespec_tui.widgets.approval_bar import ApprovalBar
from edgespec_tui.widgets.find_bar import FindBar
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.turn_view import TurnView

PLACES = (
    ChatApp,
    ChatScreen,
    PromptInput,
    TurnView,
    CodeFence,
    ApprovalBar,
    ToolsScreen,
    AskedScreen,
    FindBar,
    SessionsScreen,
    ModelsScreen,
    RaceScreen,
    DemoScreen,
    HelpScreen,
)
MODIFIERS = {"ctrl", "alt", "shift", "super", "meta", "hyper"}
NAMED = {key.value.rpartition("+")[2] for key in Keys}


def bindings() -> Iterator[Binding]:
    """Yields every binding that a settings file can give another key."""
    for place in PLACES:
        for binding in place.BINDINGS:
            if isinstance(binding, Binding) and binding.id:
                yield binding


def is_key(name: str) -> bool:
    """Returns whether a key exists, such as f2, ctrl+r, left_square_bracket or x."""
    *modifiers, key = name.lower().split("+") if name != "+" else [name]
    if not set(modifiers) <= MODIFIERS:
        return False
    if len(key) == 1 or key in NAMED:
        return True
    try:
        return bool(unicodedata.lookup(key.replace("_", " ")))
    except KeyError:
        return False


def known_to_app() -> AppNames:
    """Returns what a settings file may name."""
    return AppNames(
        themes=sorted([*BUILTIN_THEMES, *(theme.name for theme in THEMES)]),
        actions=[binding.id for binding in bindings() if binding.id],
        is_key=is_key,
    )
