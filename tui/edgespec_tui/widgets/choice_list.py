"""The list above the input: suggestions for what is being written. Keys stay with the input."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from edgespec_tui.widgets.completions import Choices

ROWS = 8
GAP = 3  # cells between a choice and its description
WIDEST = 40


class ChoiceList(Static):
    """Shows choices, a few at a time around the marked one; a click takes one."""

    def __init__(self) -> None:
        super().__init__("", id="choices")
        self.display = False

    def show(self, choices: Choices | None) -> None:
        """Shows them; None hides the list."""
        self.display = choices is not None
        if choices is None:
            return
        first = min(max(0, (choices.at or 0) - ROWS // 2), max(0, len(choices.items) - ROWS))
        shown = choices.items[first : first + ROWS]
        width = min(WIDEST, max(len(one.text.rstrip()) for one in shown)) + GAP
        lines = []
        for number, one in enumerate(shown, first):
            name = one.text.rstrip().strip('"').ljust(width)
            line = Content.from_markup(
                f"[@click=screen.take_choice({number})]$mark$name[/]$about",
                mark="› " if number == choices.at else "  ",
                name=name,
                about=one.about,
            )
            lines.append(line.stylize("bold $primary" if number == choices.at else "$text 70%"))
        more = len(choices.items) - len(shown)
        if more:
            lines.append(Content.styled(f"  {more} more: keep typing, or use Up and Down", "$text 50%"))
        self.update(Content("\n").join(lines))
