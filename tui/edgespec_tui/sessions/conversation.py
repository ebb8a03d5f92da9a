"""A conversation as a tree of turns: editing, regenerating and branching add turns and lose none.

The screen shows the path from the first turn to `head`. A turn edited or asked again is a
sibling of the old one; `select` goes back to another. Turns are values; the conversation
owns the set of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from edgespec.client.answer import AnswerOptions
from edgespec.core.values import FinishReason
from edgespec.errors import EdgeSpecError, EndpointError
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.endpoint.media import DIGESTS, MEDIA, texts_of
from edgespec_tui.tools.loop import messages_of_calls
from edgespec_tui.tools.values import calls_of

REFUSED = (400, 415, 422, 500, 501)  # what servers answer to media that their model does not read
TurnRole = Literal["user", "assistant"]
Figure = float | int | str | None
Runs = tuple[tuple[str, int], ...]  # who produced a text: (source, characters) one after the other

SAVED = {"sampling", "seed", "max_tokens", "draft", "tools_off"}  # of a conversation, besides texts and turns


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

    def figure_words(self) -> list[str]:
        """Returns its figures in words, as far as there are any."""
        figures, words = self.figures, []
        if isinstance(n := figures.get("n_tokens"), int) and n:
            words.append(f"{n} token{'' if n == 1 else 's'}")
        if isinstance(speed := figures.get("tok_per_s"), float):
            words.append(f"{speed:.1f} tok/s")
        if isinstance(rate := figures.get("acceptance_rate"), float):
            words.append(f"{rate:.0%} accepted")
        if isinstance(speedup := figures.get("speedup_estimated"), float):
            words.append(f"{speedup:.2f}x estimated")
        return words


@dataclass(slots=True)
class Conversation:
    """All turns, and the current one."""

    id: int | None = None  # of the session that saves it, None if it is not saved
    title: str = ""
    system: str = ""
    # see `AnswerOptions.sampling`; seed, max_tokens likewise
    sampling: dict[str, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    turns: dict[int, Turn] = field(default_factory=dict)
    head: int | None = None
    read_only: bool = False  # another window writes this session
    # what was written here and not asked when it was closed: a question's text and settings
    draft: Mapping[str, str] = field(default_factory=dict)
    tools_off: set[str] = field(default_factory=set)  # servers and tools (see `offer.is_on`)
    approved: set[str] = field(default_factory=set)  # keys of tools; as long as the chat is open

    def saved(self) -> dict[str, object]:
        """Returns what is saved of it besides its texts and turns, as JSON has it."""
        values = {name: getattr(self, name) for name in SAVED}
        return {name: sorted(value) if isinstance(value, set) else value for name, value in values.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Takes what `saved` returned, of an earlier version too."""
        for name in saved.keys() & SAVED:
            is_set = isinstance(getattr(self, name), set)
            setattr(self, name, set(saved[name]) if is_set else saved[name])

    def values(self) -> dict[str, float]:
        """Returns the settings of its answers that are not left to the model."""
        values = {**self.sampling, "seed": self.seed, "max_tokens": self.max_tokens}
        return {name: value for name, value in values.items() if value is not None}

    def set(self, name: str, value: float | None) -> None:
        """Changes a setting of its answers; None leaves it to the model."""
        if name in ("seed", "max_tokens"):
            setattr(self, name, None if value is None else int(value))
        elif value is None:
            self.sampling.pop(name, None)
        else:
            self.sampling[name] = value

    def options(self, others: AnswerOptions) -> AnswerOptions:
        """Returns the options of its answers. others: what it has no setting for."""
        return replace(others, sampling=dict(self.sampling), seed=self.seed, max_tokens=self.max_tokens)

    def path(self, upto: int | None = None) -> list[Turn]:
        """Returns the shown turns, the first first; or those to `upto`, shown or not."""
        found, at = [], self.head if upto is None else upto
        while at is not None:
            found.append(self.turns[at])
            at = self.turns[at].parent
        return found[::-1]

    def add(self, role: TurnRole, text: str = "", *, parent: int | None = None, model: str = "") -> Turn:
        """Adds a turn below `parent` (None: at the very beginning), and makes it current."""
        turn = Turn(max(self.turns, default=0) + 1, parent, role, text, model=model)
        self.turns[turn.id] = turn
        self.head = turn.id
        return turn

    def change(self, turn: Turn) -> None:
        """Replaces a turn by a newer value."""
        assert turn.id in self.turns
        self.turns[turn.id] = turn

    def finish_unfinished(self) -> None:
        """Marks an answer that a crash cut off as cancelled, so that it counts as an answer."""
        for turn in list(self.turns.values()):
            if turn.finish is None and turn.role == "assistant":
                self.change(replace(turn, finish="cancelled"))

    def siblings(self, id: int) -> list[int]:
        """Returns the turns in the same place, this one too, the oldest first."""
        turn = self.turns[id]
        return sorted(t.id for t in self.turns.values() if t.parent == turn.parent and t.role == turn.role)

    def select(self, id: int) -> None:
        """Makes the newest turn below `id` current, so that `id` is on the path."""
        below = id
        while children := [t.id for t in self.turns.values() if t.parent == below]:
            below = max(children)
        self.head = below

    def branch(self, id: int) -> Conversation:
        """Returns a conversation of its own that has the path to `id` and nothing else; not saved yet."""
        copy = self.copy()
        copy.id, copy.head, copy.draft, copy.read_only = None, id, {}, False
        copy.turns = {turn.id: turn for turn in self.path(id)}
        return copy

    def copy(self) -> Conversation:
        """Returns a copy that does not change with this one; what was approved is not copied."""
        return replace(
            self,
            sampling=dict(self.sampling),
            turns=dict(self.turns),
            tools_off=set(self.tools_off),
            approved=set(),
        )

    def messages(self, upto: int | None = None) -> list[Message]:
        """Returns the messages for an endpoint: the system prompt and the path, or the path to `upto`."""
        return messages_of(self.path(upto), self.system)


def messages_of(path: Sequence[Turn], system: str) -> list[Message]:
    """Returns turns as messages for an endpoint, after the system prompt, if there is one.

    Reasoning is not sent again, as models expect. A question that got no answer is left out if another
    follows: strict templates refuse two user messages in a row.
    """
    messages: list[Message] = []
    for turn in path:
        if calls := calls_of(turn.settings):
            told = messages_of_calls(turn.text, calls)
            messages += [Message(role, text, extra=extra) for role, text, extra in told]
        elif turn.text:
            if messages and messages[-1].role == turn.role == "user":
                messages.pop()
            media = texts_of(turn.settings, MEDIA), texts_of(turn.settings, DIGESTS)
            messages.append(Message(turn.role, turn.text, *media))
    return [Message("system", system), *messages] if system else messages


def without_old_media(messages: Sequence[Message], error: EdgeSpecError) -> list[Message] | None:
    """Returns messages without the media of earlier questions, if that may be why they were refused.

    A model that reads no pictures would refuse every later question of a chat in which another one did.
    """
    refused = isinstance(error, EndpointError) and error.status in REFUSED
    if not refused or not any(message.media for message in messages[:-1]):
        return None
    return without_media(messages)


def without_media(messages: Sequence[Message]) -> list[Message]:
    """Returns messages of which only the last one has its media."""
    return [*(replace(message, media=(), digests=()) for message in messages[:-1]), messages[-1]]
