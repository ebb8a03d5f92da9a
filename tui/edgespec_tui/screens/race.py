"""A race: one prompt answered plain and with speculation, one after the other, from the same cached prefix.

Not side by side: two answers at once would share the machine, and neither would run as it runs alone. The
order is random, so that a machine that warms up or slows down favours neither. Greedy or seeded, so that
both should be the same; if they are not, the difference is explained and not hidden.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Literal

from edgespec.client.answer import AnswerOptions, Ended
from edgespec_tui.endpoint.endpoint import Endpoint, Message
from edgespec_tui.widgets.panel import Measured

Runner = Literal["plain", "speculative"]
LONGEST = 256  # tokens of a race, unless the chat's limit is shorter
PARTS, FEWEST = 8, 3  # of a run, whose speeds are compared
SURE = 2.8  # standard errors: Student's t at 95 % for two runs of three parts, and more for longer ones
SHOWN = 30  # characters of each text around where they part


@dataclass(slots=True)
class Leg:
    """One run: which text came when. Times are seconds since it was asked."""

    runner: Runner
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # tokens so far
    ended: Ended | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def note(self, at: float, text: str, n_tokens: int) -> None:
        """Takes a round."""
        self.texts.append(text)
        self.times.append(at)
        self.counts.append((self.counts[-1] if self.counts else 0) + n_tokens)

    def at(self, seconds: float) -> tuple[str, int]:
        """Returns the text and tokens by then: its replay."""
        n = bisect_right(self.times, seconds)
        return "".join(self.texts[:n]), self.counts[n - 1] if n else 0

    def tok_per_s(self) -> float | None:
        """Returns tokens a second after the first round, by our own clock for both runners."""
        if len(self.times) < 2 or self.times[-1] <= self.times[0]:
            return None
        return (self.counts[-1] - self.counts[0]) / (self.times[-1] - self.times[0])

    def error(self) -> float | None:
        """Returns the standard error of the logarithm of the speed, by how far its parts differ.

        None if there are too few rounds. Machines have slow phases; those longer than a run do not show.
        """
        n_parts = min(PARTS, (len(self.times) - 1) // 2)
        if n_parts < FEWEST:
            return None
        ends = [round(i * (len(self.times) - 1) / n_parts) for i in range(n_parts + 1)]
        pairs = list(zip(ends[:-1], ends[1:], strict=True))
        tokens = [self.counts[b] - self.counts[a] for a, b in pairs]
        seconds = [self.times[b] - self.times[a] for a, b in pairs]
        if not all(n > 0 and s > 0 for n, s in zip(tokens, seconds, strict=True)):
            return None
        logs = [math.log(n / s) for n, s in zip(tokens, seconds, strict=True)]
        return statistics.stdev(logs) / math.sqrt(n_parts)


@dataclass(slots=True)
class Race:
    """What is raced, and how it goes."""

    endpoint: Endpoint
    messages: Sequence[Message]
    options: AnswerOptions
    order: tuple[Runner, Runner]  # who runs first and second
    own_seed: bool = False  # the chat's: it stays when raced again
    clock: Callable[[], float] = time.monotonic  # seconds, monotonic
    legs: dict[Runner, Leg] = field(init=False)

    def __post_init__(self) -> None:
        self.legs = {runner: Leg(runner) for runner in self.order}

    @property
    def is_greedy(self) -> bool:
        return self.options.sampling.get("temperature") == 0

    def again(self, rng: random.Random) -> Race:
        """Returns another race in the other order; with another seed, so that no text is repeated."""
        seed = self.options.seed if self.own_seed or self.is_greedy else rng.randrange(2**31)
        order = (self.order[1], self.order[0])
        return Race(self.endpoint, self.messages, replace(self.options, seed=seed), order, self.own_seed)

    async def warm(self) -> None:
        """Has the prompt read once, so that neither runner has to. Raises EdgeSpecError."""
        options = replace(self.options, max_tokens=1, speculation=False)
        async with aclosing(self.endpoint.answer(self.messages, options)) as happenings:
            async for _ in happenings:
                pass

    async def run(self, runner: Runner) -> AsyncIterator[Leg]:
        """Runs one leg; yields it after each round. Raises EdgeSpecError."""
        leg = self.legs[runner]
        options = replace(self.options, speculation=runner == "speculative")
        began = self.clock()
        async with aclosing(self.endpoint.answer(self.messages, options)) as happenings:
            async for happening in happenings:
                if isinstance(happening, Ended):
                    leg.ended = happening
                else:
                    n = len(happening.round.tokens) or bool(happening.round.text)
                    leg.note(happening.at - began, happening.reasoning + happening.round.text, n)
                yield leg

    def measured(self) -> Measured | None:
        """Returns the speed-up, once both have run long enough to have a speed."""
        plain, speculative = (self.legs[runner].tok_per_s() for runner in ("plain", "speculative"))
        return Measured(speculative, plain) if plain and speculative else None

    def error(self) -> float | None:
        """Returns the standard error of the logarithm of the speed-up; None if the runs were too short."""
        plain, speculative = (self.legs[runner].error() for runner in ("plain", "speculative"))
        return None if plain is None or speculative is None else math.hypot(plain, speculative)

    def comparison(self) -> str:
        """Says whether both texts are the same, and what a difference means."""
        return compared(self.legs["plain"].text, self.legs["speculative"].text, greedy=self.is_greedy)


def drawn(
    endpoint: Endpoint, messages: Sequence[Message], options: AnswerOptions, *, rng: random.Random
) -> Race:
    """Returns a race in random order; sampled answers get a seed if they have none."""
    greedy, own_seed = options.sampling.get("temperature") == 0, options.seed is not None
    seed = options.seed if options.seed is not None or greedy else rng.randrange(2**31)
    options = replace(options, seed=seed, max_tokens=min(options.max_tokens or LONGEST, LONGEST))
    runners: list[Runner] = ["plain", "speculative"]
    rng.shuffle(runners)
    return Race(endpoint, messages, options, (runners[0], runners[1]), own_seed)


def together(results: Sequence[Measured]) -> Measured | None:
    """Returns the geometric means, whose ratio is the mean speed-up; None of nothing."""
    if not results:
        return None
    speculative = math.exp(sum(math.log(one.speculative) for one in results) / len(results))
    plain = math.exp(sum(math.log(one.plain) for one in results) / len(results))
    return Measured(speculative, plain, len(results))


def verdict(results: Sequence[Measured], errors: Sequence[float]) -> str:
    """Says what one race or several have shown, and whether they could tell it. errors: of each race."""
    mean = together(results)
    if mean is None:
        return "Too few tokens to measure a speed: race a longer answer."
    x, races = mean.speedup, "this one race" if mean.n == 1 else f"{mean.n} races"
    faster = "faster" if x >= 1 else "the speed: slower"
    squares = statistics.fmean(error**2 for error in errors)
    if mean.n > 1:  # races differ by more than their parts where the machine has slow phases
        squares = max(squares, statistics.variance(math.log(one.speedup) for one in results))
    half = SURE * math.sqrt(squares / mean.n)
    low, high = x * math.exp(-half), x * math.exp(half)
    between = f"{low:.2f} to {high:.2f}"
    if low < 1 < high:
        return f"{x:.2f}x: no difference with speculation that {races} could show ({between}). r races again."
    return f"{x:.2f}x {faster} with speculation, measured in {races} ({between})."


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
        f"at once changes the last digits of scores, which tips the choice where {choice}. Either is as "
        "likely under your model; `edgespec verify` tests that."
    )
