"""What the queue of answers needs of a screen."""

from collections.abc import Coroutine, Sequence
from typing import Protocol

from textual.worker import Worker

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError
from edgespec_tui.screens.chat_context import ChatContext
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.transcript import Transcript


class AnswerStage(Protocol):
    """What the queue of answers needs of the screen; `ConversationScreen` is one."""

    context: ChatContext
    conversation: Conversation

    @property
    def transcript(self) -> Transcript: ...

    @property
    def prompt(self) -> PromptInput: ...

    def options(self) -> AnswerOptions: ...

    def tell(self, sentence: str) -> None: ...

    def tell_odds(self, sentence: str) -> None: ...

    def tell_failure(self, error: EdgeSpecError) -> None: ...

    def show_banner(self, sentence: str, *keys: tuple[str, str, str]) -> None: ...

    def show_waiting(self, questions: Sequence[QuestionText]) -> None: ...

    def refresh_state(self) -> None: ...

    def engine_changed(self) -> None: ...

    def run_worker(
        self, work: Coroutine[None, None, None], *, group: str, exclusive: bool
    ) -> Worker[None]: ...
