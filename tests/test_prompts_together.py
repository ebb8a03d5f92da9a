"""Prompts that come together: whose first token comes when, and what running streams notice of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from test_scheduler import FLAT, GREEDY, FakePair, Virtual

from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.request import Request
from edgespec.core.values import Emitted
from edgespec.engine.engine import Engine
from edgespec.engine.prompt_reader import PATIENCE, PAUSE_S, PAUSES

# Seconds of so many tokens: 0.6B F16 on two cores of an EPYC with AVX-512, 2026-11-22, and what is thought of
# them at a first start: 48 tokens were not measured, and reading seems to take nearly twice as long.
TRUE = {
    1: 0.034, 2: 0.043, 4: 0.054, 8: 0.08, 16: 0.095, 36: 0.135, 48: 0.17, 63: 0.212, 64: 0.21, 128: 0.409,
    512: 1.56,
}  # fmt: skip
TOKEN_S = TRUE[512] / 512
THOUGHT = {n: TRUE[n] for n in (1, 2, 4, 8, 16)} | {48: 0.28}
# Of prompts, in tokens: quantiles of the held-out ones.
LENGTHS = (18, 20, 23, 27, 28, 29, 33, 44, 47, 54, 69, 80, 94, 108, 117, 125, 144, 157)
LATEST_S = 0.5  # that a stream may stand still


class Misjudged(FakePair):
    """A pair whose costs are other ones than it thinks."""

    def costs(self) -> Costs:
        return Costs(CostTable(dict(THOUGHT), slope=0.0), CostTable({1: 0.004, 64: 0.02}, slope=0.0))


@dataclass
class Machine(Virtual):
    """Its clock goes on by what evaluations really take."""

    true: CostTable = field(default_factory=lambda: CostTable(dict(TRUE), slope=0.0))

    def __call__(self) -> float:
        for call in self.pair.target.calls:
            self.now += self.true.seconds(sum(n for n, _ in call.values()))
        self.pair.target.calls.clear()
        return self.now


def prompt_of(n: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Returns n tokens that share no beginning worth the name with others."""
    return np.random.default_rng(seed).integers(0, 8, n).astype(np.int32)


def first_tokens(lengths: Sequence[int], n_tokens: int = 40) -> tuple[list[float], list[float]]:
    """Returns when each first token came, and the gaps of all streams. The first prompt comes alone."""
    pair = Misjudged(slots=8, drafter="none", n_ctx=512, cells=8 * 512)
    clock = Machine(pair)
    engine = Engine(pair, slots=8, clock=clock)
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    gaps = []
    for i, n in enumerate(lengths):
        if i == 1:
            told = engine.step()
        engine.submit(str(i), prompt_of(n, i), Request(GREEDY, n_tokens))
    while told or not engine.idle:
        for one in told:
            if isinstance(one, Emitted):
                gaps += [clock() - last[one.id]] if one.id in last else []
                last[one.id] = clock()
                first.setdefault(one.id, clock())
        told = engine.step() if not engine.idle else []
    return [first[str(i)] for i in range(len(lengths))], gaps


def read_at_once(lengths: Sequence[int]) -> list[float]:
    """Returns when first tokens come where all that wait are read in one evaluation, and nobody goes on."""
    table = CostTable(dict(TRUE), slope=0.0)
    first = table.seconds(lengths[0])
    return [first] + [first + table.seconds(1 + sum(lengths[1:]))] * (len(lengths) - 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("n", "median", "late"), [(4, 0.75, 0.93), (8, 0.5, 1.06)])
def test_first_tokens_come_hardly_later_than_where_nobody_goes_on(n: int, median: float, late: float) -> None:
    """The 95th percentile was 1.03 times llama-server's with four streams; in
    this model of it that was 0.94, and 1.11 with eight.

    That reads all prompts that wait in one evaluation, while streams that run stand still: it has no round
    of its own in between, and no pause has an end. Ours have one, of half a second.
    """
    rng = np.random.default_rng(3)
    ours, theirs, gaps = list[float](), list[float](), list[float]()
    for _ in range(40):
        lengths = rng.choice(LENGTHS, n).tolist()
        came, paused = first_tokens(lengths)
        ours, gaps, theirs = ours + came, gaps + paused, theirs + read_at_once(lengths)
    assert np.percentile(ours, 95) < late * np.percentile(theirs, 95)
    assert np.median(ours) < median * np.median(theirs)
    assert max(gaps) < LATEST_S


@pytest.mark.parametrize(("n", "longest"), [(300, PAUSE_S), (2000, 2000 * TOKEN_S / PAUSES), (6000, 1.5)])
def test_the_more_waits_to_be_read_the_longer_running_streams_pause(n: int, longest: float) -> None:
    """Pauses of 0.4 s had three agents' prompts read in 1.6 times the time that they take one by one."""
    pair = Misjudged(slots=4, drafter="none", n_ctx=4096, cells=4 * 4096)
    clock, gaps = Machine(pair), list[float]()
    engine = Engine(pair, slots=4, clock=clock)
    engine.submit("running", prompt_of(20), Request(GREEDY, 100))
    engine.step()
    at = clock()
    for i in range(3):
        engine.submit(str(i), prompt_of(n // 3, i + 1), Request(GREEDY, 2))
    while not engine.idle:
        if "running" in answers_of(engine):
            gaps, at = [*gaps, clock() - at], clock()
    assert longest / 2 < max(gaps) < longest + 0.1, "whole tiles, and a round"


def test_short_prompts_are_read_before_long_ones_that_came_with_them() -> None:
    came, _ = first_tokens([30, 170, 90, 140, 25])
    assert np.argsort(came).tolist() == [0, 4, 2, 3, 1]


def test_who_has_waited_long_is_read_before_shorter_prompts_that_come_later() -> None:
    """Short prompts that keep coming do not keep a long one waiting for ever."""
    pair = Misjudged(slots=4, drafter="none", n_ctx=512, cells=4 * 512)
    clock = Machine(pair)
    engine = Engine(pair, slots=4, queue=64, clock=clock)
    engine.submit("first", prompt_of(20), Request(GREEDY, 2))
    engine.submit("long", prompt_of(200, 1), Request(GREEDY, 2))
    reading_s = clock.true.seconds(200)
    came, said = 0, set[str]()
    while "long" not in said and clock() < 30:
        while len(engine._queue) < 2:
            came += 1
            engine.submit(f"short {came}", prompt_of(100, came + 1), Request(GREEDY, 2))
        said |= {one.id for one in engine.step() if isinstance(one, Emitted)}
    assert len(said) > 5, "shorter ones went first"
    assert clock() < (PATIENCE + 2) * reading_s


def test_what_is_read_while_nobody_listens_keeps_nobody_waiting() -> None:
    """A round was due behind the first prompt at once: it counted as a pause, in which nobody stood still."""
    engine, clock = two_prompts(200, 80)
    assert answers_of(engine) == ["a"] and answers_of(engine) == ["b"]
    assert clock() == pytest.approx(clock.true.seconds(200) + clock.true.seconds(80))


def test_how_long_reading_takes_is_seen_in_the_first_chunk() -> None:
    """Costs at start were believed for the first seconds, in which streams that start together start."""
    engine, clock = two_prompts(119, 120)
    assert answers_of(engine) == ["a"]
    began = clock()
    assert answers_of(engine) == ["b"], "as much as a pause has room for is read at once"
    assert 0.9 * PAUSE_S < clock() - began < PAUSE_S


def two_prompts(a: int, b: int) -> tuple[Engine, Machine]:
    """Returns an engine that was asked to go on from two prompts of so many tokens, and its clock."""
    pair = Misjudged(slots=2, drafter="none", n_ctx=512)
    clock = Machine(pair)
    engine = Engine(pair, slots=2, clock=clock)
    for id, n in {"a": a, "b": b}.items():
        engine.submit(id, prompt_of(n, n), Request(GREEDY, 8))
    engine._queue[0].since -= 100  # so "a" is first, however long
    return engine, clock


def answers_of(engine: Engine) -> list[str]:
    """Does a step; returns whose tokens it brought."""
    return [one.id for one in engine.step() if isinstance(one, Emitted)]


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_nobody_guesses_in_the_evaluation_that_brings_a_first_token(drafter: str) -> None:
    """Guesses of others, and what their drafts had to read for them, came before the last first token."""
    pair = FakePair(slots=4, drafter=drafter, points=FLAT, spread=0.0)
    engine = Engine(pair, slots=4)
    engine.submit("a", prompt_of(40) % 2, Request(GREEDY, 150, draft_length=3))
    drafted = [one.round.drafted for _ in range(12) for one in engine.step() if isinstance(one, Emitted)]
    assert drafted[-1] > 0
    for i in range(2):
        engine.submit(str(i), prompt_of(20, i + 1), Request(GREEDY, 60, draft_length=3))
    pair.target.calls.clear()
    pair.draft.calls.clear()
    rounds = {one.id: one.round for one in engine.step() if isinstance(one, Emitted)}
    assert rounds.keys() == {"a", "0", "1"} and len(pair.target.calls) == 1
    assert not pair.draft.calls and not any(round_.drafted for round_ in rounds.values())
    drafted = [one.round.drafted for _ in range(3) for one in engine.step() if isinstance(one, Emitted)]
    assert any(drafted)
