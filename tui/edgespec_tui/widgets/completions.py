"""What can be completed at the cursor: commands, saved system prompts, files; and the list that shows it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from textual.widgets import Static

from edgespec_tui.settings import system_prompts
from edgespec_tui.settings.slash_commands import COMMANDS
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.attached_files import size_of
from edgespec_tui.widgets.project_files import named_like

MOST_ENTRIES = 2000  # of a folder that are read
PATH = re.compile(r'(?:^/read +|(?<!\S)@)(?P<path>"[^"\n]*|[^\s"]\S*|)$')
NAMED = re.compile(r"^/prompts +(?:delete +)?(?P<name>\S*)$")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something to choose."""

    text: str  # what is then in the line
    about: str = ""  # a short description
    final: bool = False  # nothing more has to be written, so Enter takes it and sends


@dataclass(frozen=True, slots=True)
class Suggestions:
    """A list of choices."""

    start: int  # where in the line the replaced text begins
    items: tuple[Suggestion, ...]
    at: int | None = None  # the marked one; None while none is, and then Enter sends what is written

    def moved(self, step: int) -> Suggestions:
        """Returns the list with the mark elsewhere; it wraps around."""
        if self.at is None:
            return replace(self, at=0 if step > 0 else len(self.items) - 1)
        return replace(self, at=(self.at + step) % len(self.items))

    @property
    def marked(self) -> Suggestion | None:
        return None if self.at is None else self.items[self.at]


def choices(
    before: str,
    *,
    first_line: bool,
    files: Callable[[], Sequence[str]] = tuple,
) -> Suggestions | None:
    """Returns the suggestions; None if there are none.

    before: the line up to the cursor. files: gives those below the folder.
    """
    if first_line and re.fullmatch(r"/[a-z]*", before):
        fits = [one for one in COMMANDS if one.name.startswith(before)]
        items = tuple(
            Suggestion(
                f"{one.name} " if one.wants else one.name, f"{one.wants} {one.does}".strip(), not one.wants
            )
            for one in fits
        )
        names_of = [one.name for one in fits]
        at = None if before in names_of else 0  # a whole name is sent as it is, even if others begin so
        return None if not fits or names_of == [before] else Suggestions(0, items, at=at)
    if first_line and (found := NAMED.search(before)):
        begun = found["name"]
        fitting = [name for name in system_prompts.names() if name.startswith(begun) and name != begun]
        items = tuple(Suggestion(name, "saved system prompt", final=True) for name in fitting)
        return Suggestions(found.start("name"), items) if items else None
    if (found := PATH.search(before)) and (first_line or not before.startswith("/read")):
        typed = found["path"].removeprefix('"')
        paths = _paths(typed)
        if typed and not typed.startswith(("~", "/", ".")):
            known = {one.text.strip('" ') for one in paths}
            paths += [_file(path) for path in named_like(typed, files()) if path not in known | {typed}]
        items = tuple(paths)
        return Suggestions(found.start("path"), items) if items else None
    return None


def _paths(typed: str) -> list[Suggestion]:
    """Returns the files and folders whose path begins as typed."""
    folder, _, beginning = typed.rpartition("/")
    root = folder + "/" if "/" in typed else ""
    try:
        with os.scandir(Path(root or ".").expanduser()) as entries:
            found = [(entry.name, entry.is_dir()) for entry in islice(entries, MOST_ENTRIES)]
    except (OSError, ValueError, RuntimeError):  # no such folder, a zero byte, no such user
        return []
    low = beginning.lower()
    shown = [one for one in found if one[0].lower().startswith(low) and one[0] != beginning]
    return [
        _path(root + name, is_folder)
        for name, is_folder in sorted(shown, key=lambda one: (one[0].lower(), one[0]))
        if beginning.startswith(".") or not name.startswith(".")
    ]


def _path(path: str, is_folder: bool) -> Suggestion:
    if is_folder:
        return Suggestion(f'"{path}/' if " " in path else f"{path}/", "folder")
    return _file(path)


def _file(path: str) -> Suggestion:
    return Suggestion(f'"{path}" ' if " " in path else f"{path} ", size_of([path]))


ROWS = 8
OTHERS = 8  # lines of a window that belong to the input and what else always stands there
GAP = 3  # cells between a choice and its description
WIDEST = 40


class ChoiceList(Static):
    """Shows choices, a few at a time around the marked one; a click takes one. The input keeps the keys."""

    def __init__(self) -> None:
        super().__init__("", id="choices")

    def show(self, choices: Suggestions | None) -> None:
        """Shows them; None hides the list."""
        self.display = choices is not None
        if choices is None:
            return
        rows = max(1, min(ROWS, self.app.size.height - OTHERS))
        first = min(max(0, (choices.at or 0) - rows // 2), max(0, len(choices.items) - rows))
        shown = choices.items[first : first + rows]
        width = min(WIDEST, max(len(one.text.rstrip()) for one in shown)) + GAP
        lines = []
        for number, one in enumerate(shown, first):
            name = one.text.rstrip().strip('"')
            line = Content.from_markup(
                f"$mark[@click=screen.take_choice({number})]$name[/]$gap$about",
                mark="› " if number == choices.at else "  ",
                name=name,
                gap=" " * (width - len(name)),
                about=one.about,
            )
            lines.append(line.stylize("bold $primary" if number == choices.at else "$text 70%"))
        more = len(choices.items) - len(shown)
        if more:
            lines.append(Content.styled(f"  {more} more: keep typing, or use Up and Down", "$text 50%"))
        self.update(Content("\n").join(lines))
