"""Takes one sample: of the loaded pair, or of a peer on the same files.

Every generation starts with empty caches, on our side as on the peer's: what the line before left there
would make the next one's prompt free, or reveal its text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil
from numpy.typing import NDArray

from edgespec.commands.bench.figures import RoundRecord, Sample
from edgespec.commands.bench.lines import Line, Unit
from edgespec.commands.bench.peer import Completion, LlamaServer
from edgespec.commands.bench.peer_command import PeerSettings
from edgespec.core.request import Request
from edgespec.core.stats import Tally
from edgespec.core.values import DrafterName, Round
from edgespec.engine.pair import Pair
from edgespec.errors import EngineError, PeerError
from edgespec.sampling.sampler import Sampling

Cancelled = Callable[[], bool]
WARM_UP_TOKENS = 8
FREE_SHARE = 0.5  # of the free memory, for peers that are kept running


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


def _whose(line: Line, unit: Unit, seed: int) -> tuple[int, str, str, str, str, int]:
    """Returns what a sample begins with."""
    return unit.number, line.mode, line.name, unit.prompt.name, unit.prompt.kind, seed


# ---- our side ---------------------------------------------------------------------------------------------


class PairTaker:
    """Takes samples from a loaded pair."""

    def __init__(self, pair: Pair, asked: Asked, prompts: dict[str, NDArray[np.int32]], cancelled: Cancelled):
        """prompts: name -> tokens."""
        self.pair, self.asked, self.prompts, self.cancelled = pair, asked, prompts, cancelled

    def warm_up(self, unit: Unit) -> None:
        """Runs our lines of a unit before measuring: this reads files and measures costs."""
        short = replace(self.asked, max_tokens=WARM_UP_TOKENS)
        for line in unit.lines:
            if not line.peer and not self.cancelled():
                PairTaker(self.pair, short, self.prompts, self.cancelled)(line, unit)

    def __call__(self, line: Line, unit: Unit) -> Sample | None:
        prompt = self.prompts[unit.prompt.name]
        request = self.asked.request(line, unit.repeat)
        self.pair.forget()
        tally, watch = Tally(self.pair.busy), RoundWatch()
        pieces: list[str] = []
        for round_ in self.pair.generate(prompt, request, cancelled=self.cancelled):
            tally.note(round_)
            watch.note(round_)
            pieces.append(round_.text)
        if tally.notice:
            raise EngineError(tally.notice)
        figures = tally.statistics(len(prompt))
        if figures.finish_reason == "cancelled":
            return None
        steps = max(0, figures.n_tokens - 1)
        return Sample(
            *_whose(line, unit, self.asked.seed + unit.repeat),
            n_tokens=figures.n_tokens,
            prompt_tokens=len(prompt),
            ttft_s=figures.ttft_s,
            steps=steps,
            decode_s=steps * (figures.tpot_s or 0.0),
            wall_s=watch.passed,
            drafted=figures.drafted,
            accepted=figures.accepted,
            seconds=figures.seconds,
            rounds=tuple(watch.records),
            finish_reason=figures.finish_reason,
            text="".join(pieces),
        )


class RoundWatch:
    """Keeps a record of every round with the time it took."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.records: list[RoundRecord] = []
        self.passed = 0.0
        self._clock, self._last = clock, clock()

    def note(self, round_: Round) -> None:
        now = self._clock()
        seconds, self._last = now - self._last, now
        self.passed += seconds
        counts = len(round_.tokens), round_.drafted, round_.accepted
        self.records.append(RoundRecord(seconds, *counts, tuple(round_.sources), round_.gain))


# ---- the peer's side --------------------------------------------------------------------------------------


class PeerTaker:
    """Takes samples from llama-server: one process for each draft length, started when first needed.

    They are kept running if all of them together fit into half of the free memory; otherwise each ends
    before the next is started. Use it in a `with`.
    """

    def __init__(
        self,
        settings: PeerSettings,
        lines: Sequence[Line],
        asked: Asked,
        prompts: dict[str, NDArray[np.int32]],
        cancelled: Cancelled,
    ) -> None:
        self.settings, self.asked, self.prompts, self.cancelled = settings, asked, prompts, cancelled
        n_servers = len({(line.plain, line.draft_length) for line in lines if line.peer})
        files = [path for path in (settings.target, settings.draft) if path]
        weight = n_servers * sum(path.stat().st_size for path in files)
        self.keeps = weight < FREE_SHARE * psutil.virtual_memory().available
        self._running: dict[tuple[bool, int | None], LlamaServer] = {}
        self._failed: PeerError | None = None

    def __enter__(self) -> PeerTaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()

    def _close_all(self) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def warm_up(self, lines: Sequence[Line]) -> None:
        """Starts what is kept running, before time counts. A failure is reported at the first sample."""
        try:
            for line in lines:
                if line.peer and self.keeps and not self.cancelled():
                    self._server(line)
        except PeerError as error:
            self._failed = error
            self._close_all()

    def _server(self, line: Line) -> LlamaServer:
        key = (line.plain, line.draft_length)
        if key not in self._running:
            if not self.keeps:
                self._close_all()
            guessing = replace(self.settings, draft_length=line.draft_length)
            settings = self.settings.plain if line.plain else guessing
            server = self._running[key] = LlamaServer(settings, cancelled=self.cancelled)
            warm_up = self.asked.sampling_for(line)
            server.complete([1], sampling=warm_up, max_tokens=WARM_UP_TOKENS)
        return self._running[key]

    def __call__(self, line: Line, unit: Unit) -> Sample | None:
        if self._failed:
            raise self._failed
        seed = self.asked.seed + unit.repeat
        try:
            answer = self._server(line).complete(
                self.prompts[unit.prompt.name].tolist(),
                sampling=self.asked.sampling_for(line),
                max_tokens=self.asked.max_tokens,
                seed=seed,
                stop=self.asked.stop,
            )
        except PeerError:
            self._close_all()
            raise
        return peer_sample(answer, line, unit, seed)


def peer_sample(answer: Completion, line: Line, unit: Unit, seed: int) -> Sample:
    """Returns the peer's answer as a sample; it reports neither its rounds nor where its time went."""
    ended = answer.finish_reason == "stop" and not answer.text.strip() == ""
    return Sample(
        *_whose(line, unit, seed),
        n_tokens=max(0, answer.steps + 1 - ended),
        prompt_tokens=answer.n_prompt,
        ttft_s=answer.prompt_s,
        steps=answer.steps,
        decode_s=answer.decode_s,
        wall_s=answer.wall_s,
        drafted=answer.drafted,
        accepted=answer.accepted,
        seconds=None,
        rounds=(),
        finish_reason=answer.finish_reason,
        text=answer.text,
    )
