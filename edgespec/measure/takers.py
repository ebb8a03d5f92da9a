"""Takes one sample of the loaded pair.

Every generation starts with empty caches: what the line before left there would make the next one's prompt
free, or reveal its text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgespec.core.request import Request
from edgespec.core.stats import Tally
from edgespec.core.values import DrafterName
from edgespec.engine.pair import Pair
from edgespec.errors import EngineError
from edgespec.measure.figures import RoundRecord, Sample
from edgespec.measure.lines import Line, Unit
from edgespec.sampling.sampler import Sampling

Cancelled = Callable[[], bool]
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of every line."""

    sampling: Sampling
    max_tokens: int
    seed: int
    stop: Sequence[str] = ()
    drafter: DrafterName = "auto"

    def sampling_for(self, line: Line) -> Sampling:
        return replace(self.sampling, temperature=0.0) if line.mode == "greedy" else self.sampling

    def request(self, line: Line, repeat: int) -> Request:
        """Returns our request for a line; repeats have seeds of their own, the same for all lines."""
        seed = self.seed + repeat
        request = Request(
            sampling=self.sampling_for(line),
            max_tokens=self.max_tokens,
            stop=self.stop,
            seed=seed if line.mode == "coupled" else None,
            rng_seed=None if line.mode == "coupled" else seed,
            drafter="none" if line.plain else self.drafter,
        )
        return request if line.draft_length is None else replace(request, draft_length=line.draft_length)


def whose(line: Line, unit: Unit, seed: int) -> tuple[int, str, str, str, str, int]:
    """Returns what a sample begins with."""
    return unit.number, line.mode, line.name, unit.prompt.name, unit.prompt.kind, seed


class PairTaker:
    """Takes samples from a loaded pair."""

    def __init__(self, pair: Pair, asked: Asked, prompts: dict[str, NDArray[np.int32]], cancelled: Cancelled):
        """prompts: name -> tokens."""
        self.pair, self.asked, self.prompts, self.cancelled = pair, asked, prompts, cancelled

    def warm_up(self, unit: Unit) -> None:
        """Runs our lines of a unit before measuring: this reads files and measures costs."""
        short = replace(self.asked, max_tokens=WARM_UP_TOKENS)
        for line in unit.lines:
            if not self.cancelled():
                PairTaker(self.pair, short, self.prompts, self.cancelled)(line, unit)

    def __call__(self, line: Line, unit: Unit) -> Sample | None:
        prompt = self.prompts[unit.prompt.name]
        request = self.asked.request(line, unit.repeat)
        self.pair.forget()
        tally, records, pieces = Tally(self.pair.busy), list[RoundRecord](), list[str]()
        last = time.perf_counter()
        for round_ in self.pair.generate(prompt, request, cancelled=self.cancelled):
            tally.note(round_)
            pieces.append(round_.text)
            now, counts = time.perf_counter(), (len(round_.tokens), round_.drafted, round_.accepted)
            records.append(RoundRecord(now - last, *counts, tuple(round_.sources), round_.gain))
            last = now
        if tally.notice:
            raise EngineError(tally.notice)
        figures = tally.statistics(len(prompt))
        if figures.finish_reason == "cancelled":
            return None
        steps = max(0, figures.n_tokens - 1)
        return Sample(
            *whose(line, unit, self.asked.seed + unit.repeat),
            n_tokens=figures.n_tokens,
            prompt_tokens=len(prompt),
            ttft_s=figures.ttft_s,
            steps=steps,
            decode_s=steps * (figures.tpot_s or 0.0),
            wall_s=sum(record.seconds for record in records),
            drafted=figures.drafted,
            accepted=figures.accepted,
            seconds=figures.seconds,
            rounds=tuple(records),
            finish_reason=figures.finish_reason,
            text="".join(pieces),
        )
