"""A race: the same questions answered plain and with speculation, in turn, a few rounds each.

Not at the same moment: two answers would share the machine, and neither would run as it runs alone. The
engine gives each lane a few rounds at a time, so that a slow phase of the machine hits both, and says how
long they took: a lane's clock stands still while the other one runs. Greedy or seeded, so that both texts
should be the same; if they are not, the difference is explained and not hidden.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from edgespec.client.answer import AnswerOptions, Ended, StreamedRound
from edgespec.core.stats import Counts
from edgespec.errors import EndpointError
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.widgets.origins import join
from edgespec_tui.widgets.panel import MeasuredSpeedUp

Runner = Literal["plain", "speculative"]
RUNNERS: tuple[Runner, Runner] = ("plain", "speculative")
LONGEST = 256  # tokens of a race, unless the chat's limit is shorter
PARTS, FEWEST = 12, 5  # of the time, whose speed-ups are compared
SURE = 2.8  # standard errors: Student's t at 95 % for five parts, and more for more
SHOWN = 30  # characters of each text around where they part
ALIKE = "Nothing was guessed, so both columns are the same way of writing: there is no speed-up to measure."


@dataclass(slots=True)
class LaneAnswer:
    """One answer of a lane: its text so far, and who produced which characters."""

    question: str = ""
    text: str = ""
    runs: list[tuple[str, int]] = field(default_factory=list)

    def add(self, streamed: StreamedRound) -> None:
        """Takes a round."""
        join(self.runs, "", len(streamed.reasoning))
        for span in streamed.spans:
            join(self.runs, span.source, len(span.text))
        self.text += streamed.reasoning + streamed.round.text


@dataclass(slots=True)
class Lane:
    """One way of answering: what it has written, and when, by a clock that stands still while the other runs.

    An answer's first round is not timed: its prompt was read with it.
    """

    runner: Runner
    answers: list[LaneAnswer] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds at the end of each timed round
    tokens: list[int] = field(default_factory=list)  # of timed rounds so far
    counts: Counts = field(default_factory=Counts)  # of all rounds

    @property
    def text(self) -> str:
        """The current answer."""
        return self.answers[-1].text if self.answers else ""

    @property
    def texts(self) -> list[str]:
        """All answers."""
        return [answer.text for answer in self.answers]

    @property
    def seconds(self) -> float:
        return self.times[-1] if self.times else 0.0

    def begin(self, question: str = "") -> None:
        """Begins the next answer."""
        self.answers.append(LaneAnswer(question))

    def note(self, streamed: StreamedRound, *, first: bool) -> None:
        """Takes a round of the current answer."""
        round_ = streamed.round
        self.answers[-1].add(streamed)
        self.counts.count(round_, streamed.n_tokens)
        if not first:
            self.time(streamed.seconds, streamed.n_tokens)

    def time(self, seconds: float, n: int) -> None:
        """Notes that so many tokens took so long."""
        self.times.append(self.seconds + seconds)
        self.tokens.append((self.tokens[-1] if self.tokens else 0) + n)

    def progress_at(self, seconds: float) -> tuple[float, int]:
        """Returns the end of the last round by then, and the tokens."""
        n = bisect_right(self.times, seconds)
        return (self.times[n - 1], self.tokens[n - 1]) if n else (0.0, 0)

    def tok_per_s(self, until: float = math.inf) -> float | None:
        """Returns tokens a second; None if there are too few."""
        seconds, n = self.progress_at(until)
        return n / seconds if n and seconds else None

    def speeds(self, until: float, n_parts: int) -> list[float]:
        """Returns the speeds in equal parts of the time; 0 in one that no round ended in."""
        ends = [self.progress_at(until * i / n_parts) for i in range(n_parts + 1)]
        parts = zip(ends, ends[1:], strict=False)
        return [(n - m) / (end - begin) if end > begin else 0.0 for (begin, m), (end, n) in parts]


@dataclass(slots=True)
class Race:
    """What is raced, and how it goes."""

    endpoint: Endpoint
    questions: Sequence[Sequence[Message]]  # conversations, answered one after the other by each lane
    options: AnswerOptions
    own_seed: bool = False  # the chat's: it stays when raced again
    longest_s: float = math.inf  # by the clock of each lane
    name: str = field(default_factory=lambda: f"{random.randrange(2**32):08x}")  # tells races apart
    lanes: dict[Runner, Lane] = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = {runner: Lane(runner) for runner in RUNNERS}

    @property
    def is_greedy(self) -> bool:
        return self.options.sampling.get("temperature") == 0

    def again(self, rng: random.Random) -> Race:
        """Returns another race; with another seed, so that no text is repeated."""
        seed = self.options.seed if self.own_seed or self.is_greedy else rng.randrange(2**31)
        return Race(
            self.endpoint, self.questions, replace(self.options, seed=seed), self.own_seed, self.longest_s
        )

    async def warm(self, tokens: int = 1, ways: Sequence[bool] = (False,)) -> None:
        """Has the last question answered before anything is timed: both lanes find prompt and weights read.

        ways: with speculation or without. Raises EdgeSpecError.
        """
        for speculation in ways:
            options = replace(self.options, max_tokens=tokens, speculation=speculation)
            async with aclosing(self.endpoint.answer(self.questions[-1], options)) as events:
                async for _ in events:
                    pass

    async def run(self) -> None:
        """Runs both lanes to their end. Raises EdgeSpecError."""
        tasks = [asyncio.create_task(self._run(lane)) for lane in self.lanes.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, lane: Lane) -> None:
        for question in self.questions:
            await self._answer(lane, question)
            if lane.seconds >= self.longest_s:
                break

    async def _answer(self, lane: Lane, question: Sequence[Message]) -> None:
        speculation = lane.runner == "speculative"
        options = replace(self.options, speculation=speculation, lane=f"{self.name} {lane.runner}")
        lane.begin(question[-1].text if question else "")
        first = True
        async with aclosing(self.endpoint.answer(question, options)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    return
                if event.round.tokens and not event.seconds:
                    raise EndpointError("the server is an older EdgeSpec, which cannot race: restart it")
                lane.note(event, first=first)
                first = False
                if lane.seconds >= self.longest_s:
                    return

    @property
    def guessed(self) -> bool:
        """Whether anything was guessed: otherwise both lanes are the same way of answering."""
        return self.lanes["speculative"].counts.drafted > 0

    def measured(self) -> MeasuredSpeedUp | None:
        """Returns the speed-up over the time that both have run; None if that is too short.

        Its error: by how far the speed-ups of its parts differ. In each part both ran in turn.
        """
        lanes = [self.lanes[runner] for runner in RUNNERS]
        end = min(lane.seconds for lane in lanes)
        plain, speculative = (lane.tok_per_s(end) for lane in lanes)
        if not (plain and speculative and self.guessed):
            return None
        most = min(PARTS, *(bisect_right(lane.times, end) // 2 for lane in lanes))
        for n_parts in range(most, FEWEST - 1, -1):
            speeds = [lane.speeds(end, n_parts) for lane in lanes]
            if all(map(all, speeds)):
                logs = [math.log(guessing / plain) for plain, guessing in zip(*speeds, strict=True)]
                return MeasuredSpeedUp(speculative, plain, statistics.stdev(logs) / math.sqrt(n_parts))
        return None

    def comparison(self) -> str:
        """Says whether both texts are the same, and what a difference means."""
        return compared(self.lanes["plain"].text, self.lanes["speculative"].text, greedy=self.is_greedy)


def drawn(
    endpoint: Endpoint, messages: Sequence[Message], options: AnswerOptions, *, rng: random.Random
) -> Race:
    """Returns a race of one question; sampled answers get a seed if they have none."""
    greedy, own_seed = options.sampling.get("temperature") == 0, options.seed is not None
    seed = options.seed if options.seed is not None or greedy else rng.randrange(2**31)
    options = replace(options, seed=seed, max_tokens=min(options.max_tokens or LONGEST, LONGEST))
    return Race(endpoint, [messages], options, own_seed)


def together(results: Sequence[MeasuredSpeedUp]) -> MeasuredSpeedUp | None:
    """Returns the geometric means, whose ratio is the mean speed-up, and its error; None of nothing."""
    if not results:
        return None
    squares = statistics.fmean(one.error**2 for one in results)
    if len(results) > 1:  # races differ by more than their parts where the machine has slow phases
        squares = max(squares, statistics.variance(math.log(one.speedup) for one in results))
    speculative = statistics.geometric_mean(one.speculative for one in results)
    plain = statistics.geometric_mean(one.plain for one in results)
    return MeasuredSpeedUp(speculative, plain, math.sqrt(squares / len(results)))


def bounds(measured: MeasuredSpeedUp) -> tuple[float, float]:
    """Returns between which speed-ups a measured one lies."""
    half = math.exp(SURE * measured.error)
    return measured.speedup / half, measured.speedup * half


def sure_gain(measured: MeasuredSpeedUp | None) -> float | None:
    """Returns the speed-up if it could be told from none; else None."""
    if measured is None:
        return None
    low, high = bounds(measured)
    return None if low < 1 < high else measured.speedup


def verdict(measured: MeasuredSpeedUp | None, where: str) -> str:
    """Says what was measured, and whether that could tell a difference. where: "here just now"."""
    if measured is None:
        return "Too few tokens to measure a speed."
    x, (low, high) = measured.speedup, bounds(measured)
    between = f"measured {where} ({low:.2f} to {high:.2f})"
    if sure_gain(measured) is None:
        return f"{x:.2f}x: no difference with speculation that this could show, {between}."
    return f"{x:.2f}x {'faster' if x >= 1 else 'the speed: slower'} with speculation, {between}."


def compared(plain: str, speculative: str, *, greedy: bool) -> str:
    """Says whether two texts are the same; if they part, how, and why that may be."""
    if plain == speculative:
        return "Both texts are identical."
    pairs = zip(plain, speculative, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain), len(speculative)))
    there, here = (repr(text[at : at + SHOWN]) if text[at:] else "its end" for text in (plain, speculative))
    choice = "two tokens were almost equally likely" if greedy else "a random draw was almost a tie"
    return (
        f"The same for {at} characters; then plain says {there}, speculative {here}. Checking several tokens "
        "at once, or next to another text, changes the last digits of scores, which tips the choice where "
        f"{choice}. Either is as likely under your model; `edgespec verify` tests that."
    )
