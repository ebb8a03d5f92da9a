"""Search in the open chat: a line above the input, with the place that it found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from edgespec_tui.sessions.conversation import Turn
from edgespec_tui.terminal.shown_text import Content

AROUND = 24  # characters shown on either side of a place
MOST_PLACES = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn has the words: from this character on."""

    turn: int
    at: int
    number: int  # how many places of its turn come before it
    share: float  # of the turn's text before it


def places_of(turns: Sequence[Turn], words: str) -> list[Place]:
    """Returns where turns have these words, in any case, the newest last."""
    found: list[Place] = []
    sought = words.lower()
    for turn in reversed(turns):
        text, here, at = turn.text.lower(), list[Place](), -1
        while sought and len(here) < MOST_PLACES and (at := text.find(sought, at + 1)) >= 0:
            here.append(Place(turn.id, at, len(here), at / len(text)))
        found = [*here, *found]
        if len(found) >= MOST_PLACES:
            break
    return found


class FindBar(Vertical):
    """Asks for words, and walks through the places that have them. Starts at the newest."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,up", "walk(-1)", "Above", id="find.above", priority=True),
        Binding("down", "walk(1)", "Below", id="find.below", priority=True),
        Binding("escape", "leave", "Back", id="find.leave", priority=True),
    ]

    @dataclass
    class Found(Message):
        """A place should be shown."""

        place: Place
        words: str

    class Left(Message):
        """The search has ended."""

    def __init__(self) -> None:
        super().__init__(id="find")
        self._turns: Sequence[Turn] = ()
        self._places: list[Place] = []
        self._at = 0

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Search this chat", id="find-words")
        yield Static("", id="find-note")

    def begin(self, turns: Sequence[Turn]) -> None:
        """Starts a search in these turns."""
        self._turns, self.display = turns, True
        self.query_one(Input).focus()
        self._search()

    @on(Input.Changed)
    def _search(self) -> None:
        self._places = places_of(self._turns, self.query_one(Input).value)
        self._at = len(self._places) - 1
        self._show()

    def _show(self) -> None:
        words, note = self.query_one(Input).value, "Enter, Up: above. Down: below. Esc leaves."
        if self._places:
            place = self._places[self._at]
            text = next(turn.text for turn in self._turns if turn.id == place.turn)
            around = text[max(0, place.at - AROUND) : place.at + len(words) + AROUND]
            note = f"{self._at + 1:,} of {len(self._places):,}: {' '.join(around.split())}"
            self.post_message(self.Found(place, words))
        elif words:
            note = "Nothing found."
        self.query_one("#find-note", Static).update(Content(note))

    def action_walk(self, step: int) -> None:
        """Goes to the place above or below; after the last comes the first."""
        if self._places:
            self._at = (self._at + step) % len(self._places)
            self._show()

    def action_leave(self) -> None:
        """Ends the search; what it found stays in view."""
        self.display = False
        self.post_message(self.Left())
