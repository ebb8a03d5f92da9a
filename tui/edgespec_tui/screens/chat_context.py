"""What a chat needs: the engine, the saved chats, the settings; and what its queue of answers needs."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from textual.worker import Worker

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError
from edgespec_tui.endpoint.engine_state import KnownEngine
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.system_prompts import SystemPrompts
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.quiet_moments import QuietMoments
from edgespec_tui.widgets.transcript import Transcript


@dataclass(slots=True)
class ChatContext:
    """What a chat needs. One for the life of the app."""

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


class AnswerStage(Protocol):
    """What the queue of answers needs of the screen; `ConversationScreen` is one."""

    context: ChatContext
    conversation: Conversation
    transcript: Transcript
    prompt: PromptInput

    def options(self) -> AnswerOptions: ...

    def tell(self, sentence: str) -> None: ...

    def tell_odds(self) -> None: ...

    def tell_failure(self, error: EdgeSpecError) -> None: ...

    def show_banner(self, sentence: str, *keys: tuple[str, str, str]) -> None: ...

    def show_waiting(self, questions: Sequence[QuestionText]) -> None: ...

    def refresh_state(self) -> None: ...

    def engine_changed(self) -> None: ...

    def run_worker(
        self, work: Coroutine[None, None, None], *, group: str, exclusive: bool
    ) -> Worker[None]: ...
