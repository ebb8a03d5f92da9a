"""Several pairs answer the same prompts in turn, greedy and without an end, within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgespec.core.request import Request
    from edgespec.core.stats import Statistics
    from edgespec.core.values import DrafterName
    from edgespec.engine.pair import Pair

TOKENS = 64  # of an answer
FEWEST = 3  # prompts that a verdict rests on
PATIENCE = 2.0  # times the intended time, after which an answer is cut short
Prompts = Sequence[Sequence[int]]


def endless(pair: Pair, drafter: DrafterName, draft_length: int | None = None) -> Request:
    """Returns a greedy request whose answers all have one length."""
    import edgespec

    bias = {token: -math.inf for token in pair.target.end_tokens}
    sampling = edgespec.Sampling(temperature=0.0, logit_bias=bias)
    return edgespec.Request(max_tokens=TOKENS, sampling=sampling, drafter=drafter, draft_length=draft_length)


def answer(pair: Pair, prompt: Sequence[int], request: Request, until: float = math.inf) -> Statistics:
    """Returns the figures of an answer, which ends at a moment of the monotonic clock at the latest."""
    from edgespec.core.stats import Tally
    from edgespec.errors import EngineError

    tally = Tally(pair.busy)
    for round_ in pair.generate(prompt, request, cancelled=lambda: time.monotonic() > until):
        tally.note(round_)
    if tally.notice:
        raise EngineError(tally.notice)
    return tally.statistics(len(prompt))


def in_turn(
    lines: Sequence[tuple[Pair, Request]], prompts: Prompts, seconds: float, on_stage: Callable[[str], None]
) -> list[tuple[Statistics, ...]]:
    """Returns the figures of each line for each prompt that all of them answered, but for the first.

    What is measured and learned on the first is not timed. It ends when the time is over, but not before
    FEWEST prompts; after PATIENCE times the time in any case, with fewer.
    """
    begun = time.monotonic()
    last = begun + PATIENCE * seconds
    found: list[tuple[Statistics, ...]] = []
    for n, prompt in enumerate(prompts):
        on_stage(f"speed: prompt {n + 1} of {len(prompts)}{time_left(begun, seconds, n, len(prompts))} ...")
        turn = [(n + i) % len(lines) for i in range(len(lines))]
        said = {i: answer(lines[i][0], prompt, lines[i][1], last) for i in turn}
        if time.monotonic() > last:
            break
        if n and all(figures.tok_per_s for figures in said.values()):
            found.append(tuple(said[i] for i in range(len(lines))))
        if len(found) >= FEWEST and time.monotonic() > begun + seconds:
            break
    return found


def time_left(begun: float, seconds: float, done: int, of: int) -> str:
    """Returns how much time is left, in words; "" if nothing is done yet."""
    spent = time.monotonic() - begun
    if not done:
        return ""
    whole = min(max(seconds, spent / done * (FEWEST + 1)), spent / done * of)
    left = max(0.0, whole - spent)
    return f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"
