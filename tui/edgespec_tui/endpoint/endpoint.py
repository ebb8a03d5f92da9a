"""What the app needs of an endpoint, and nothing more: a protocol, and the values that go through it.

Everything is asynchronous and on the app's own event loop; threads and sockets stay inside an endpoint.
An answer is an iterator of happenings; closing it (`aclose`) cancels the answer in the engine. Failures are
the program's own: `EndpointError`, `EngineDiedError` where the engine is gone (then `restart` may help),
`PromptTooLongError` with both counts where the endpoint tells them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from edgespec.core.values import FinishReason, Round

Role = Literal["system", "user", "assistant"]
DrafterChoice = Literal["auto", "model", "lookup", "none"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn as an endpoint is told it."""

    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """How an answer is to be made. None leaves a value to the endpoint.

    sampling: temperature, top_k, top_p, min_p and the others, by the name they have in a request.
    speculation: False asks for plain decoding. logit_bias: what is added to a token's logit, by its number.
    """

    sampling: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    speculation: bool = True
    drafter: DrafterChoice | None = None
    draft_length: int | None = None
    logit_bias: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Info:
    """What answers.

    speculates: it tells its rounds, so that speculation can be shown. embedded: it is the pair that ships
    with the program. n_ctx: tokens that prompt and answer may have together. plain_s: seconds that a token
    of plain decoding takes, as the engine measured it. memory: bytes that it holds. None: not told.
    where: an address, for people. lent: it is another window's, and ends with that.
    told: what people should know of it, in sentences.
    """

    model: str
    draft: str | None = None
    n_ctx: int | None = None
    memory: int | None = None
    plain_s: float | None = None
    speculates: bool = True
    embedded: bool = False
    where: str = ""
    lent: bool = False
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """One round. pieces: the text of each of its tokens (empty where the endpoint does not say).

    reasoning: text of the round that is thinking and not answer (`reasoning_content`). at: when the round
    was received, seconds on a monotonic clock. runs: (source, characters) of the round's text, which may lag
    behind its tokens; empty where that is not known.
    """

    round: Round
    at: float
    pieces: tuple[str, ...] = ()
    reasoning: str = ""
    runs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer has ended; the figures are the endpoint's own, None where it does not tell them.

    prompt_tokens: of the whole prompt; cached_tokens: those of them that needed no evaluation. speedup: the
    estimate for the whole answer (what plain decoding would have taken, over what was taken), or measured
    where speedup_measured. ttft_s: from the request to the first text. drafted, accepted: tokens guessed, and
    those that stayed.
    """

    finish: FinishReason
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    n_tokens: int | None = None
    tok_per_s: float | None = None
    speedup: float | None = None
    ttft_s: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    speedup_measured: bool = False


Happening = Told | Ended


class Endpoint(Protocol):
    """Something that answers conversations."""

    async def start(self) -> Info:
        """Makes it ready (attaches to a server, or starts one) and says what it is.

        Raises EndpointError, EngineDiedError.
        """
        ...

    async def restart(self) -> Info:
        """Makes it ready again after the engine died; raises as `start` does."""
        ...

    async def use(self, target: Path, draft: Path | None) -> Info:
        """Lets go of this engine and goes on with one for these files; raises as `start` does.

        Where it fails, `restart` tries these files again.
        """
        ...

    def answer(self, messages: Sequence[Message], wishes: Wishes) -> AsyncGenerator[Happening, None]:
        """Yields the rounds of an answer, and last its end. Closing the generator cancels the answer."""
        ...

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Returns how many tokens the prompt of these messages has; None where the endpoint cannot say."""
        ...

    async def close(self) -> None:
        """Lets go of it: a server that was started for this app ends."""
        ...
