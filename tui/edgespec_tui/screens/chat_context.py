"""What a chat needs: the engine, the saved chats, the settings. One for the life of the app."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from edgespec.client.answer import AnswerOptions
from edgespec.client.attach import OnProgress
from edgespec.errors import SessionError
from edgespec_tui.endpoint.endpoint import Endpoint
from edgespec_tui.endpoint.engine_state import KnownEngine
from edgespec_tui.sessions.context_fit import Fitting, fit
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings.system_prompts import SystemPrompts
from edgespec_tui.widgets.quiet_moments import QuietMoments


class Keeper(Protocol):
    """Saves conversations; `sessions.Sessions` is one."""

    def save(self, conversation: Conversation) -> None: ...

    def leave(self, conversation: Conversation) -> None: ...

    def regained(self, id: int) -> Future[Conversation | None]: ...


@dataclass(slots=True)
class ChatContext:
    """What a chat needs."""

    endpoint: Endpoint
    engine: KnownEngine
    sessions: Keeper | None = None  # None keeps nothing
    new_conversation: Callable[[], Conversation] = Conversation
    moments: QuietMoments = field(default_factory=QuietMoments)
    first_conversation: Conversation = field(default_factory=Conversation)
    options: AnswerOptions = field(default_factory=AnswerOptions)  # the options of every answer
    tint: bool = False  # tokens are coloured from the start
    prompts: SystemPrompts = field(default_factory=SystemPrompts.usual)

    def keep(self, conversation: Conversation) -> None:
        """Saves what is new in a conversation that is not empty."""
        if self.sessions is not None and conversation.turns:
            self.sessions.save(conversation)

    def leave(self, conversation: Conversation) -> None:
        """Releases a conversation that is no longer shown."""
        if self.sessions is not None:
            self.sessions.leave(conversation)

    async def regained(self, conversation: Conversation) -> Conversation | None:
        """Returns what has become of a conversation that another window had; None while it still has it."""
        if self.sessions is None or conversation.id is None:
            return None
        try:
            return await asyncio.wrap_future(self.sessions.regained(conversation.id))
        except SessionError:  # it was deleted there
            return None

    async def fit(self, conversation: Conversation, question: int, *, on_wait: OnProgress) -> Fitting:
        """Returns the messages for an answer to `question`. Raises EdgeSpecError.

        on_wait: as `Endpoint.count` has it.
        """
        info = self.engine.info
        return await fit(
            self.endpoint,
            conversation,
            question,
            n_ctx=info.n_ctx if info else None,
            max_tokens=conversation.max_tokens,
            on_wait=on_wait,
        )
