"""What the app needs of an endpoint, and nothing more: a protocol over the values of `edgespec.client`.

Everything is asynchronous and on the app's own event loop; threads and sockets stay inside an endpoint.
An answer is an iterator of events; closing it (`aclose`) cancels the answer in the engine. Failures are
the program's own: `EndpointError`, `EngineDiedError` if the engine is gone (then `restart` may help),
`PromptTooLongError` with both counts if the endpoint gives them.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from edgespec.client.answer import AnswerOptions, Ended, Info, StreamedRound
from edgespec.local.attach import OnProgress

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn as an endpoint receives it."""

    role: Role
    text: str
    media: tuple[str, ...] = ()  # files of pictures and sounds
    digests: tuple[str, ...] = ()  # of what they held; none of older chats
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields, as OpenAI has them: its calls


StreamEvent = StreamedRound | Ended


class Endpoint(Protocol):
    """Something that answers conversations."""

    async def start(self) -> Info:
        """Attaches to a server, or starts one, and says what it is. Raises EndpointError, EngineDiedError."""

    async def restart(self) -> Info:
        """Makes it ready again after the engine died; raises as `start` does."""

    async def use(self, target: Path, draft: Path | None) -> Info:
        """Releases this engine and continues with one for these files; raises as `start` does.

        If that fails, `restart` tries these files again.
        """

    async def models(self) -> tuple[Info, ...]:
        """Returns what the server can answer with; raises EndpointError."""

    async def choose(self, model: str) -> Info:
        """Lets one of these models answer from now on; raises EndpointError."""

    def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yields the rounds of an answer, and last its end. Closing the generator cancels the answer."""

    async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = lambda _: None) -> int | None:
        """Returns how many tokens the prompt of these messages has; None if the endpoint cannot say.

        on_wait: called, on the event loop, while this waits for an engine that is being loaded.
        """

    async def close(self) -> None:
        """Releases it: a server that was started for this app ends."""
