"""A request of a client that lags: its memory is bounded, its time too, and the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from edgespec.core.request import Request
from edgespec.core.values import Candidate, Emitted, Round, Started, TokenScore
from edgespec.protocol.messages import Accepted, Submit
from edgespec.server.answering import Answering
from edgespec.server.choice_results import ChoiceResults
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.generation import UNREAD_MOST, AnswerChoices
from edgespec.server.metrics import ENOUGH, Plain
from edgespec.server.pair_session import PairSession
from edgespec.server.refusal import Refusal
from edgespec.server.settings import ServerSettings


class Worker:
    """A supervisor whose worker says what the test lets it say."""

    about = None

    def __init__(self) -> None:
        self.listeners: dict[str, Any] = {}

    def submit(self, message: Submit, listener: Any) -> None:
        self.listeners[message.id] = listener
        listener(message.id, Accepted(message.id, 3), 0.0)

    def cancel(self, id: str) -> None:
        self.listeners.pop(id, None)

    @property
    def engine(self) -> Worker:
        return self

    def say(self, what: Round | None = None) -> None:
        for id, listener in tuple(self.listeners.items()):
            listener(id, Emitted(id, what) if what else Started(id, 3, 0, {}), 1.0)


class Nobody:
    """Counts nothing."""

    def emitted(self, *_: object) -> None: ...

    def ended(self, *_: object, **__: object) -> None: ...

    def plain_s(self, *_: object) -> None: ...


async def begun(worker: Any, seconds: float | None = None) -> AnswerChoices:
    submit = Submit("", "a", True, Request())
    generation = AnswerChoices(worker, [submit], Nobody(), seconds=seconds)
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
            async for _ in generation.rounds():
                read += 1
        assert read == said - 1

    asyncio.run(lag(Round((1,), "a", 0, 0, ("target",)), UNREAD_MOST))
    scores = (TokenScore(Candidate(1, -1.0), (Candidate(1, -1.0),) * 20),)
    asyncio.run(lag(Round((1,), "a", 0, 0, ("target",), scores=scores), UNREAD_MOST // 20))


def test_one_that_is_read_in_time_has_no_limit() -> None:
    async def read() -> int:
        worker = Worker()
        generation = await begun(worker)
        parts, n = generation.rounds(), 0
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
        async for part in generation.rounds():
            ends.append(part.round.finish)
            await asyncio.sleep(0.03)
        assert not worker.listeners
        return ends

    ends = asyncio.run(read())
    assert ends[-1] == "length" and 2 < len(ends) < 10


# ---- figures


def test_the_speed_up_is_estimated_at_this_length_of_text_and_measured_where_plain_decoding_ran() -> None:
    choice = ChoiceResults(prompt_tokens=1000, first=1.0, last=3.0, growth_s=1e-5)
    choice.n_tokens, choice.drafted = 101, 80
    timings = choice.timings(0.04)
    assert timings["speedup_estimated"] == pytest.approx((0.04 + 1e-5 * 1050.5) / 0.02)
    assert "speedup_measured" not in timings
    choice.measured_s = 0.05
    assert choice.timings(0.04)["speedup_measured"] == pytest.approx(2.5)
    choice.drafted = 0  # nothing was guessed: there is nothing to compare
    assert not {"speedup_estimated", "speedup_measured"} & choice.timings(0.04).keys()
    choice.n_tokens, choice.drafted = 1, 1
    short = choice.timings(0.04)
    assert "speedup_estimated" not in short and None not in short.values()


def test_plain_decoding_is_known_from_enough_tokens_and_follows_what_changes() -> None:
    plain = Plain()
    plain.note(ENOUGH - 1, 1.0)
    assert plain.seconds_per_token is None
    plain.note(ENOUGH - 1, 1.0)
    assert plain.seconds_per_token == pytest.approx(1 / (ENOUGH - 1))
    for _ in range(20):
        plain.note(ENOUGH, ENOUGH * 2.0)
    assert plain.seconds_per_token == pytest.approx(2.0, rel=0.02)


class Ready:
    """A pair that is loaded."""

    def loaded(self) -> SimpleNamespace:
        return SimpleNamespace(sampling={}, adapters=())


def test_a_lease_that_comes_as_the_time_is_up_is_given_back() -> None:
    """Nobody gave it back: no other pair could be loaded until the server was started again."""

    class Lease:
        held = False

        def __init__(self, waiter: asyncio.Task[None]) -> None:
            self._waiter = waiter

        async def __aenter__(self) -> Ready:
            asyncio.get_running_loop().call_soon(self._waiter.cancel)  # before the waiter hears of it
            self.held = True
            return Ready()

        async def __aexit__(self, *_: object) -> None:
            self.held = False

    class Asked:
        state = "ready"

        def __init__(self) -> None:
            everything: Any = self
            self.answering = Answering(everything, ServerSettings(), everything, everything)

        def called(self, name: object) -> object:
            return name

        def of(self, what: object) -> Asked:
            return self

        def lease(self, load: object, *, waits: bool) -> object:
            return lease

        @with_pair
        async def answer(self, session: PairSession) -> None:
            await asyncio.sleep(60)

    async def late() -> bool:
        nonlocal lease
        waiter = asyncio.create_task(Asked().answer())
        lease = Lease(waiter)
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return lease.held

    lease: Lease | None = None

    assert not asyncio.run(late())


def test_a_stream_waits_for_its_model_while_the_server_starts() -> None:
    """It got 503, as what is answered in one piece does, and no sign of life."""

    class Body(BaseModel):
        stream: bool

    class Starting(Dialect):
        state, load, loading = "loading", None, (None, 0.0)

        def __init__(self) -> None:
            everything: Any = self
            super().__init__(Answering(everything, ServerSettings(), everything, everything))

        def called(self, name: object) -> object:
            return name

        def of(self, what: object) -> Any:
            return self

        @asynccontextmanager
        async def lease(self, load: object, *, waits: bool) -> AsyncIterator[Ready]:
            waited.append(waits)
            yield Ready()

        @with_pair
        async def answer(self, session: PairSession, *, body: Body) -> None: ...

    waited: list[bool] = []
    for stream in (True, False):
        asyncio.run(Starting().answer(body=Body(stream=stream)))
    assert waited == [True, False]
