"""What a chat needs: the engine, the saved chats, the settings; and what its queue of answers needs."""

import json
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from textual.worker import Worker

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EdgeSpecError, SettingError
from edgespec_tui.endpoint.engine_state import KnownEngine
from edgespec_tui.screens.tool_questions import ToolQuestions
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.settings import Settings
from edgespec_tui.settings.waits import Waits
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.attached_files import read_text
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.quiet_moments import QuietMoments
from edgespec_tui.widgets.transcript import Transcript

FORM = "response_format"  # the field of a request


@dataclass(slots=True)
class ChatContext:
    """What a chat needs. One for the life of the app."""

    engine: KnownEngine
    sessions: Sessions
    settings: Settings = field(default_factory=Settings)
    moments: QuietMoments = field(default_factory=QuietMoments)
    first_conversation: Conversation = field(default_factory=Conversation)
    options: AnswerOptions = field(default_factory=AnswerOptions)  # the options of every answer
    toolbox: Toolbox = field(default_factory=lambda: Toolbox(()))  # the servers whose tools may be called
    waits: Waits = Waits()

    def constrain(self, file: str) -> str:
        """Has all answers follow the JSON schema of a file, "off": none; says so. Raises SettingError."""
        others = {name: value for name, value in self.options.extra.items() if name != FORM}
        if not file:
            return "Answers follow a JSON schema." if FORM in self.options.extra else "No schema is set."
        if file != "off":
            path = Path(file.strip("'\"")).expanduser()
            try:
                schema = json.loads(read_text(path))
            except (ValueError, RecursionError) as error:
                raise SettingError(f"{path} is not JSON: {error}") from None
            if not isinstance(schema, dict):
                raise SettingError(f"{path} holds no JSON schema: one is an object in braces")
            others[FORM] = {"type": "json_schema", "json_schema": {"name": "chat", "schema": schema}}
        self.options = replace(self.options, extra=others)
        return (
            "Answers are free again."
            if file == "off"
            else f"Answers follow {file} from now on; /schema off ends that."
        )


class AnswerStage(Protocol):
    """What the queue of answers needs of the screen; `ConversationScreen` is one."""

    context: ChatContext
    conversation: Conversation
    transcript: Transcript
    prompt: PromptInput
    questions: ToolQuestions

    def options(self) -> AnswerOptions: ...

    def tell(self, sentence: str) -> None: ...

    def tell_odds(self) -> None: ...

    def tell_failure(self, error: EdgeSpecError) -> None: ...

    def show_banner(self, sentence: str, *keys: tuple[str, str, str]) -> None: ...

    def show_waiting(self, questions: Sequence[QuestionText]) -> None: ...

    def refresh_state(self) -> None: ...

    def engine_changed(self) -> None: ...

    def announce_end(self) -> None: ...

    def run_worker(
        self, work: Coroutine[None, None, None], *, group: str, exclusive: bool
    ) -> Worker[None]: ...
