"""One request of a client: its choices as they come from the worker, and their figures."""

import asyncio
import bisect
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgespec.core.values import Emitted, FinishReason, PromptProgress, Round, Started
from edgespec.protocol.messages import Accepted, Submit
from edgespec.server.choice_results import ChoiceResults
from edgespec.server.logprobs import Scored, ScoreRelease
from edgespec.server.metrics import Metrics
from edgespec.server.refusal import Refusal, unavailable
from edgespec.server.worker_life import WorkerLife
from edgespec.server.worker_requests import WorkerEvent

_ids = itertools.count(1)
UNREAD_MOST = 50_000  # tokens, and their alternatives, that may wait for a client: some 10 MB


@dataclass(frozen=True, slots=True)
class ChoiceRound:
    """A round of one choice, with what was asked for with its text."""

    index: int
    round: Round
    pieces: tuple[str, ...]  # the text of each token
    scored: tuple[Scored, ...] = ()  # of shown ones
    seconds: float = 0.0  # that it took, in a lane
    reading: bool = False  # not a round: reports that more of the prompt has been read


NO_ROUND = Round((), "", 0, 0, ())


def _too_late() -> Refusal:
    return unavailable("the request waited too long for its turn: try again in a moment")


def _weight(round_: Round) -> int:
    return 1 + len(round_.tokens) + sum(len(score.top) for score in round_.scores)


class AnswerChoices:
    """The choices of one request. Close it: what nobody reads any more is cancelled."""

    def __init__(
        self,
        worker: WorkerLife,
        wanted: Sequence[Submit],
        metrics: Metrics,
        *,
        seconds: float | None = None,
        progress: bool = False,
    ) -> None:
        """wanted: one for each choice; they get their ids here. seconds: how long all of it may take.

        progress: `rounds` also reports how much of the prompts has been read.
        """
        self._progress = progress
        self._worker, self._metrics = worker, metrics
        self._wanted = [replace(submit, id=f"r{next(_ids)}") for submit in wanted]
        self._index = {submit.id: i for i, submit in enumerate(self._wanted)}
        self._open = set(self._index)
        self._events: asyncio.Queue[tuple[str, WorkerEvent, float]] = asyncio.Queue()
        self._until = asyncio.get_running_loop().time() + seconds if seconds else None
        self._unread = 0
        self.failed: str | None = None  # why it ended before its time
        self.choices = [ChoiceResults(normalized=submit.normalized) for submit in wanted]
        self._scores = [ScoreRelease() if submit.request.scoring else None for submit in wanted]

    async def submit(self) -> None:
        """Has all choices in the worker's queue. Raises Refusal, and none runs, if one is refused or late."""
        try:
            async with asyncio.timeout_at(self._until):
                for submit in self._wanted:
                    self._worker.engine.submit(submit, self._on_event)
                await self._accepted()
        except TimeoutError:
            self.close()
            raise _too_late() from None
        except BaseException:
            self.close()
            raise

    async def _accepted(self) -> None:
        """Waits until all are accepted; messages that arrive until then follow."""
        missing = set(self._index)
        early = []
        while missing:
            item = await self._events.get()
            if isinstance(item[1], Refusal):
                raise item[1]
            if isinstance(item[1], Accepted):
                missing.discard(item[0])
                self.choices[self._index[item[0]]].prompt_tokens = item[1].prompt_tokens
            else:
                early.append(item)
        later = [self._events.get_nowait() for _ in range(self._events.qsize())]
        for item in early + later:
            self._events.put_nowait(item)

    def _on_event(self, id: str, event: WorkerEvent, at: float) -> None:
        if isinstance(event, Emitted):
            self._unread += _weight(event.round)
            if self._unread > UNREAD_MOST:  # others go on, but what waits for this client takes memory
                event = Refusal(408, "this client does not read its answer: it was ended", code="not_read")
                for other in self._open:
                    self._worker.engine.cancel(other)
        self._events.put_nowait((id, event, at))

    async def rounds(self) -> AsyncIterator[ChoiceRound]:
        """Yields the rounds of all choices as they come. Raises Refusal if the worker fails.

        What is not finished in time ends with the reason "length".
        """
        try:
            while self._open:
                try:
                    async with asyncio.timeout_at(self._until):
                        if self._late():  # nobody waits any longer for what is still unread either
                            raise TimeoutError
                        id, event, at = await self._events.get()
                except TimeoutError:
                    for part in self._out_of_time():
                        yield part
                    return
                if isinstance(event, Refusal):
                    self.failed = event.code
                    raise event
                if id not in self._open:  # its end was decided here
                    continue
                i = self._index[id]
                choice, reads = self.choices[i], False
                if isinstance(event, Emitted):
                    self._unread -= _weight(event.round)
                    reads = choice.read(choice.prompt_tokens, at)
                elif isinstance(event, PromptProgress):
                    reads = choice.read(event.known_tokens, at)
                elif isinstance(event, Started):
                    if about := self._worker.about:
                        choice.growth_s, choice.n_ctx = about.plain_growth_s, about.n_ctx
                    choice.began(self._placed(event, i), at)
                    reads = True
                if reads and self._progress:
                    yield ChoiceRound(i, NO_ROUND, (), reading=True)
                if isinstance(event, Emitted):
                    choice.note(event.round, at)
                    choice.plain_s = self._worker.about.plain_s if self._worker.about else None
                    self._metrics.emitted(event.round)
                    if event.round.finish:
                        self._end(id)
                    scores = self._scores[i]
                    scored = scores.feed(event.round, event.pieces) if scores else ()
                    yield ChoiceRound(i, event.round, event.pieces, scored, event.seconds)
        finally:
            self.close()

    def _placed(self, event: Started, i: int) -> Started:
        """Returns it with the message in which a prompt differs from an earlier one."""
        spans, why = self._wanted[i].messages, event.broken
        if not (spans and why and why.was + why.now):
            return event
        message = max(1, bisect.bisect_right([begin for begin, _ in spans], why.ahead))
        return event._replace(broken=why._replace(message=message))

    def stop(self, index: int, finish: FinishReason) -> None:
        """Ends one choice before the model does."""
        id = self._wanted[index].id
        if id in self._open:
            self._worker.engine.cancel(id)
            self.choices[index].finish = finish
            self._end(id)

    def _late(self) -> bool:
        return self._until is not None and asyncio.get_running_loop().time() > self._until

    def _out_of_time(self) -> list[ChoiceRound]:
        if not any(choice.rounds for choice in self.choices):
            raise _too_late()
        late = sorted(self._index[id] for id in self._open)
        for i in late:
            self.choices[i].finish = "length"
        return [ChoiceRound(i, Round((), "", 0, 0, (), "length"), ()) for i in late]

    def figures(self) -> dict[str, Any]:
        """Returns the counts of all choices together, for the log."""
        finishes = [choice.finish or "cancelled" for choice in self.choices]
        broken = next((choice.broken for choice in self.choices if choice.broken), None)
        again = {"again": broken.again, "cause": broken.cause} if broken else {}
        return {
            **({"code": self.failed} if self.failed else {}),
            **again,
            "cached_from": next((choice.origin for choice in self.choices if choice.cached_tokens), None),
            "prompt_tokens": sum(choice.prompt_tokens for choice in self.choices),
            "cached_tokens": sum(choice.cached_tokens for choice in self.choices),
            "tokens": sum(choice.n_tokens for choice in self.choices),
            "drafted": sum(choice.drafted for choice in self.choices),
            "accepted": sum(choice.accepted for choice in self.choices),
            "finish": finishes[0] if len(finishes) == 1 else finishes,
        }

    def close(self) -> None:
        """Cancels what has not ended."""
        for id in tuple(self._open):
            self._worker.engine.cancel(id)
            self._end(id)

    def _end(self, id: str) -> None:
        self._open.discard(id)
        i = self._index[id]
        self.choices[i].measured_s = self._metrics.plain_s(self._worker)
        if self.choices[i].started:  # a choice that never got a slot is not an answer
            self._metrics.ended(self.choices[i], self._worker, self._wanted[i])

    def usage(self) -> dict[str, Any]:
        """Returns the counts as OpenAI has them: a prompt counts once, however many choices it has."""
        prompts = [c for s, c in zip(self._wanted, self.choices, strict=True) if s.request.choice == 0]
        prompt = sum(choice.prompt_tokens for choice in prompts)
        completion = sum(choice.n_tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(c.cached_tokens for c in prompts)},
        }
