"""Which turns the model gets: all of them, or without the oldest if the context would not hold them.

Only whole turns go, a question together with its answer; never the system prompt or the last question.
If something has to go, so much goes that half of the context is free, and it stays out in later turns:
what is the same at the beginning of two prompts is not evaluated again.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from edgespec.errors import EndpointError, PromptTooLongError
from edgespec.local.attach import OnProgress
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.sessions.conversation import (
    Conversation,
    Turn,
    messages_of,
    without_media,
    without_old_media,
)

ANSWER_SHARE = 4  # at most one part in four of the context is kept free for the answer
BYTES_PER_TOKEN = 3  # if the endpoint cannot count; few languages have more tokens than that


@dataclass(frozen=True, slots=True)
class Fitting:
    """What the model gets."""

    messages: list[Message]
    left_out: tuple[int, ...] = ()  # turns that no longer fit
    n_tokens: int | None = None  # of the prompt, if known
    is_more: bool = False  # more turns than the last answer was made without


async def leave_out(
    starts: Sequence[int], count: Callable[[int], Awaitable[int]], *, n_ctx: int, answer: int, before: int
) -> int:
    """Returns how many of the oldest turns are left out. count: the tokens of the prompt without so many.

    starts: turns before which may be cut, ascending; the last of them is the last question. answer: tokens
    to keep free. before: turns that the last prompt left out. Raises PromptTooLongError, with both counts,
    if the last question alone is too long.
    """
    at = max((i for i, start in enumerate(starts) if start <= before), default=0)
    if await count(starts[at]) <= n_ctx - answer:
        return starts[at]
    last = len(starts) - 1
    alone = await count(starts[last])
    if alone >= n_ctx:
        raise PromptTooLongError(alone, n_ctx)
    low, high = at + 1, last
    while low < high:
        middle = (low + high) // 2
        if await count(starts[middle]) <= n_ctx // 2:
            high = middle
        else:
            low = middle + 1
    return starts[min(low, last)]


async def fit(
    endpoint: Endpoint,
    conversation: Conversation,
    question: int,
    *,
    n_ctx: int | None,
    reserved: int = 0,
    on_wait: OnProgress = lambda _: None,
) -> Fitting:
    """Returns the messages for an answer to `question`. Raises EndpointError, PromptTooLongError.

    n_ctx: tokens of prompt and answer together; None if unknown, and then nothing is left out. reserved:
    tokens of the prompt that are in no message. on_wait: as `Endpoint.count` has it.
    With an endpoint that cannot count nothing is refused: it reports itself what is too long.
    """
    path, old_media = conversation.path(question), True

    def without(left_out: int) -> list[Message]:
        messages = messages_of(path[left_out:], conversation.system)
        return messages if old_media else without_media(messages)

    try:
        whole = await endpoint.count(without(0), on_wait=on_wait)
    except EndpointError as error:
        if (lighter := without_old_media(without(0), error)) is None:
            raise
        old_media, whole = False, await endpoint.count(lighter, on_wait=on_wait)
    if n_ctx is None:
        return Fitting(without(0), n_tokens=whole)
    starts = sorted({0, *(i for i, turn in enumerate(path) if turn.role == "user")})
    n_ctx -= reserved
    answer = min(n_ctx // ANSWER_SHARE, conversation.max_tokens or n_ctx)
    counts = {} if whole is None else {0: whole}

    async def count(n_out: int) -> int:
        if whole is None:
            return min(estimated(without(n_out)), n_ctx - 1)
        if n_out not in counts:
            counted = await endpoint.count(without(n_out), on_wait=on_wait)
            counts[n_out] = estimated(without(n_out)) if counted is None else counted
        return counts[n_out]

    before = _left_out_before(path)
    n_out = await leave_out(starts, count, n_ctx=n_ctx, answer=answer, before=before)
    left_out = tuple(turn.id for turn in path[:n_out])
    return Fitting(without(n_out), left_out, counts.get(n_out), is_more=n_out > before)


def _left_out_before(path: Sequence[Turn]) -> int:
    """Returns how many turns the last answer on a path was made without (its setting `left_out`)."""
    for turn in reversed(path):
        if turn.role == "assistant":
            noted = turn.settings.get("left_out")
            return noted if isinstance(noted, int) else 0
    return 0


def estimated(messages: Sequence[Message]) -> int:
    """Returns about how many tokens messages have, rather too many than too few."""
    texts = (message.text + (json.dumps(message.extra) if message.extra else "") for message in messages)
    return sum(len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 8 for text in texts)
