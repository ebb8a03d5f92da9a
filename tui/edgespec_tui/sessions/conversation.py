"""A conversation as a tree of turns: editing, regenerating and branching add turns and lose none.

What is on the screen is the path from the first turn to `head`. A turn edited or asked for again is a
sibling of the old one; `select` goes back to another. Turns are values; the conversation
owns which there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgespec.core.values import FinishReason
from edgespec_tui.endpoint.endpoint import Message

TurnRole = Literal["user", "assistant"]
Figure = float | int | str | None
Runs = tuple[tuple[str, int], ...]  # who produced a text: (source, characters) one after the other


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. id counts within its conversation; parent is the turn it answers or follows."""

    id: int
    parent: int | None
    role: TurnRole
    text: str = ""
    reasoning: str = ""
    finish: FinishReason | None = None  # None while it is being answered, and in a turn of the user's
    runs: Runs = ()  # as long as text, or empty
    # what the panel knew of it at its end (numbers and short texts by name)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    model: str = ""  # who answered
    # how it was asked for (temperature, seed, speculation and so on, by name)
    settings: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(slots=True)
class Conversation:
    """The turns there are, and where in them we stand."""

    id: int | None = None  # of the session it is kept in, None where it is not kept
    title: str = ""
    system: str = ""
    # see `AnswerOptions.sampling`; seed, max_tokens likewise
    sampling: dict[str, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    turns: dict[int, Turn] = field(default_factory=dict)
    head: int | None = None
    read_only: bool = False  # another window writes this session

    def path(self) -> list[Turn]:
        """Returns the turns that are shown, the first first."""
        found, at = [], self.head
        while at is not None:
            found.append(self.turns[at])
            at = self.turns[at].parent
        return found[::-1]

    def add(self, role: TurnRole, text: str = "", *, parent: int | None = None, model: str = "") -> Turn:
        """Adds a turn below `parent` (None: at the very beginning), and stands on it."""
        turn = Turn(max(self.turns, default=0) + 1, parent, role, text, model=model)
        self.turns[turn.id] = turn
        self.head = turn.id
        return turn

    def change(self, turn: Turn) -> None:
        """Puts a newer value in the place of a turn."""
        assert turn.id in self.turns
        self.turns[turn.id] = turn

    def siblings(self, id: int) -> list[int]:
        """Returns the turns that stand where this one does, this one too, the oldest first."""
        turn = self.turns[id]
        return sorted(t.id for t in self.turns.values() if t.parent == turn.parent and t.role == turn.role)

    def select(self, id: int) -> None:
        """Stands on the newest turn below `id`, so that `id` is on the path."""
        below = id
        while children := [t.id for t in self.turns.values() if t.parent == below]:
            below = max(children)
        self.head = below

    def branch(self, id: int) -> Conversation:
        """Returns a conversation of its own that holds the path to `id` and nothing else; not kept yet."""
        copy = replace(self, id=None, turns={}, head=None, sampling=dict(self.sampling), read_only=False)
        copy.turns = {turn.id: turn for turn in self._path_to(id)}
        copy.head = id
        return copy

    def _path_to(self, id: int) -> list[Turn]:
        return replace(self, head=id).path()

    def messages(self, upto: int | None = None) -> list[Message]:
        """Returns what an endpoint is told: the system prompt and the path, or the path to `upto`."""
        return messages_of(self.path() if upto is None else self._path_to(upto), self.system)


def messages_of(path: Sequence[Turn], system: str) -> list[Message]:
    """Returns turns as an endpoint is told them, behind the system prompt, if there is one.

    Reasoning is not told again, as models expect. A question that got no answer is left out where another
    follows: strict templates refuse two user messages in a row.
    """
    told: list[Message] = []
    for turn in path:
        if turn.text:
            if told and told[-1].role == turn.role == "user":
                told.pop()
            told.append(Message(turn.role, turn.text))
    return [Message("system", system), *told] if system else told
