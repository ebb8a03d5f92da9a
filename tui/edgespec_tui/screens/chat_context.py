"""What a chat needs: the engine, the saved chats, the settings. One for the life of the app."""

from collections.abc import Callable
from dataclasses import dataclass, field

from edgespec.client.answer import AnswerOptions
from edgespec_tui.endpoint.engine_state import KnownEngine
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.system_prompts import SystemPrompts
from edgespec_tui.widgets.quiet_moments import QuietMoments


@dataclass(slots=True)
class ChatContext:
    """What a chat needs."""

    engine: KnownEngine
    sessions: Sessions
    new_conversation: Callable[[], Conversation] = Conversation
    moments: QuietMoments = field(default_factory=QuietMoments)
    first_conversation: Conversation = field(default_factory=Conversation)
    options: AnswerOptions = field(default_factory=AnswerOptions)  # the options of every answer
    tint: bool = False  # tokens are coloured from the start
    prompts: SystemPrompts = field(default_factory=SystemPrompts.usual)

    def keep(self, conversation: Conversation) -> None:
        """Saves what is new in a conversation that is not empty."""
        if conversation.turns:
            self.sessions.save(conversation)
