"""The list above the input: suggestions for what is being written. Keys stay with the input."""

from textual.content import Content
from textual.widgets import Static

from edgespec_tui.widgets.completions import Suggestions

ROWS = 8
OTHERS = 8  # lines of a window that belong to the input and what else always stands there
GAP = 3  # cells between a choice and its description
WIDEST = 40


class ChoiceList(Static):
    """Shows choices, a few at a time around the marked one; a click takes one."""

    def __init__(self) -> None:
        super().__init__("", id="choices")
        self.display = False

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
