"""What a chat stands on: the engine, the sessions, the settings. One for the life of the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from edgespec_tui.conversation import Conversation
from edgespec_tui.endpoint import Endpoint, Message
from edgespec_tui.engine_state import EngineState

if TYPE_CHECKING:
    from edgespec_tui.chat_commands import ChatCommands


@dataclass(frozen=True, slots=True)
class Fitting:
    """What the model is told. left_out: turns that no longer fit; n_tokens: of the prompt, if known."""

    messages: list[Message]
    left_out: tuple[int, ...] = ()
    n_tokens: int | None = None


class Keeper(Protocol):
    """Who keeps conversations; `sessions.Sessions` is one."""

    def save(self, conversation: Conversation) -> None: ...

    def leave(self, conversation: Conversation) -> None: ...


@dataclass(slots=True)
class ChatContext:
    """What a chat stands on. sessions: None keeps nothing."""

    endpoint: Endpoint
    engine: EngineState
    commands: ChatCommands
    sessions: Keeper | None = None
    new_conversation: Callable[[], Conversation] = Conversation
    first_conversation: Conversation = field(default_factory=Conversation)

    def keep(self, conversation: Conversation) -> None:
        """Saves what is new in a conversation."""
        if self.sessions is not None:
            self.sessions.save(conversation)

    def leave(self, conversation: Conversation) -> None:
        """Lets go of a conversation that is not shown any more."""
        if self.sessions is not None:
            self.sessions.leave(conversation)

    async def fit(self, conversation: Conversation, question: int) -> Fitting:
        """Returns what the model is told for an answer to `question`. Raises EdgeSpecError."""
        messages = conversation.messages(upto=question)
        return Fitting(messages, n_tokens=await self.endpoint.count(messages))
