"""A text from a prompt or a conversation, whole or round by round: `edgespec.generate`, `edgespec.stream`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.core.request import Request
from edgespec.core.stats import Statistics, Tally
from edgespec.core.values import FinishReason, Round
from edgespec.engine.pair import Pair

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}, as chat templates expect


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    text: str
    tokens: tuple[int, ...]  # ids of the target's vocabulary, without the end token
    finish: FinishReason | None  # "stop": by itself or at a stop string; "length"; "cancelled"
    figures: Statistics


class Generation(Iterator[Round]):
    """An answer as it comes: iterate over its rounds; `answer` has what came so far.

    One at a time per pair: the next may start once this one has ended or was cancelled.
    """

    def __init__(self, pair: Pair, prompt: str | Sequence[Message], request: Request | None = None) -> None:
        """Raises an EdgeSpecError for messages that the chat template does not render."""
        ids = pair.prompt_tokens(prompt) if isinstance(prompt, str) else pair.chat_tokens(prompt)
        self._cancelled = False
        self._tally = Tally(pair.busy)
        self._n_prompt = int(ids.size)
        self._rounds = pair.generate(ids, request or Request(), cancelled=lambda: self._cancelled)
        self._text: list[str] = []
        self._tokens: list[int] = []

    def __next__(self) -> Round:
        """Makes the next round. Raises PromptTooLongError, SettingError or an EngineError."""
        round_ = next(self._rounds)
        self._tally.note(round_)
        self._text.append(round_.text)
        self._tokens += round_.tokens
        return round_

    def cancel(self) -> None:
        """Ends it after the current round; from any thread."""
        self._cancelled = True

    @property
    def answer(self) -> Answer:
        """Returns the answer so far, with its figures."""
        figures = self._tally.statistics(self._n_prompt)
        return Answer("".join(self._text), tuple(self._tokens), self._tally.finish, figures)


def generate(pair: Pair, prompt: str | Sequence[Message], request: Request | None = None) -> Answer:
    """Answers a prompt (a text to continue) or a conversation. Raises what Generation raises."""
    generation = Generation(pair, prompt, request)
    for _ in generation:
        pass
    return generation.answer
