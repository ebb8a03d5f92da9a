"""A request of a client that lags: its memory has a bound, its time too, and the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgespec.events import Candidate, Emitted, Round, Started, TokenScore
from edgespec.messages import Accepted, Submit
from edgespec.sampling import Sampling
from edgespec.server.generation import UNREAD_MOST, Generation
from edgespec.server.refusal import Refusal


class Worker:
    """A supervisor whose worker says what the test lets it say."""

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}

    def submit(self, message: Submit, listener: Any) -> None:
        self.listeners[message.id] = listener
        listener(message.id, Accepted(message.id, 3), 0.0, ())

    def cancel(self, id: str) -> None:
        self.listeners.pop(id, None)

    def say(self, what: Round | None = None) -> None:
        for id, listener in tuple(self.listeners.items()):
            listener(id, Emitted(id, what) if what else Started(id, 3, 0), 1.0, ())


class Nobody:
    """Counts nothing."""

    def emitted(self, *_: object) -> None: ...

    def ended(self, *_: object, **__: object) -> None: ...


async def begun(worker: Any, seconds: float | None = None) -> Generation:
    submit = Submit("", "a", True, Sampling(), None, (), None, 0, "auto", None, False)
    generation = Generation(worker, [submit], Nobody(), seconds=seconds)
    await generation.submit()
    worker.say()
    return generation


def test_an_answer_that_nobody_reads_is_ended_before_it_fills_the_memory() -> None:
    async def lag(round_: Round, most: int) -> None:
        worker = Worker()
        generation = await begun(worker)
        said = 0
        while worker.listeners:
            worker.say(round_)
            said += 1
            assert said <= most
        read = 0
        with pytest.raises(Refusal, match="does not read"):
            async for _ in generation.parts():
                read += 1
        assert read == said - 1

    asyncio.run(lag(Round((1,), "a", 0, 0, ("target",)), UNREAD_MOST))
    scores = (TokenScore(Candidate(1, -1.0), (Candidate(1, -1.0),) * 20),)
    asyncio.run(lag(Round((1,), "a", 0, 0, ("target",), scores=scores), UNREAD_MOST // 20))


def test_one_that_is_read_in_time_has_no_limit() -> None:
    async def read() -> int:
        worker = Worker()
        generation = await begun(worker)
        parts, n = generation.parts(), 0
        for _ in range(UNREAD_MOST // 10):
            worker.say(Round(tuple(range(20)), "a", 0, 0, ("target",) * 20))
            n += len((await anext(parts)).round.tokens)
        await parts.aclose()
        return n

    assert asyncio.run(read()) == 2 * UNREAD_MOST


def test_what_was_not_read_in_time_is_not_waited_for() -> None:
    """Rounds that wait already do not let a slow client go on past the limit."""

    async def read() -> list[str | None]:
        worker = Worker()
        generation = await begun(worker, seconds=0.1)
        for _ in range(100):
            worker.say(Round((1,), "a", 0, 0, ("target",)))
        ends = []
        async for part in generation.parts():
            ends.append(part.round.finish)
            await asyncio.sleep(0.03)
        assert not worker.listeners
        return ends

    ends = asyncio.run(read())
    assert ends[-1] == "length" and 2 < len(ends) < 10
