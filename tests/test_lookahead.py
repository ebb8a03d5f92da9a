"""Lookahead: it reads the rows after rejected guesses in the right places, and slows nothing down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from fakes import Remembering, TableModel, rounds_of
from numpy.typing import NDArray
from streams import MACHINES, Clock

from edgespec.core.drafters import Guesser
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.lookahead import BLANK, GRAM, ITERATE, MOST, PIECE, WINDOW, Lookahead
from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.text import TextRelease
from edgespec.core.values import Draft, Judged
from edgespec.core.verify import Independent, Rule
from edgespec.engine.experience import Experience
from edgespec.sampling.sampler import Sampling, point_mass

GREEDY, WARM = Sampling(temperature=0), Sampling(temperature=1.0, top_p=1.0, min_p=0.0)
N_VOCAB = 50


def tokens(*ids: int) -> NDArray[np.int32]:
    return np.array(ids, np.int32)


def judged(before: Sequence[int], guesses: Sequence[int], said: Sequence[int], rest: Sequence[int]) -> Judged:
    """A verification that said so much and rejected what differs."""
    draft = Draft(tuple(guesses), tuple(map(point_mass, guesses)))
    behind = (np.array(rest)[:, None] == np.arange(max(rest) + 1)).astype(np.float32)
    return Judged(tokens(*before, *said), len(said), draft, len(said) - 1, (), behind)


def test_what_stood_behind_a_rejected_guess_is_offered_behind_what_was_emitted() -> None:
    lookahead = Lookahead()
    lookahead.learn(judged([1, 2], [3, 4, 5], [3, 9], [6, 7]))
    made = lookahead.offer(tokens(1, 2, 3, 9), 2)
    assert made.tokens == (6, 7)
    assert made.confidence[0] >= ITERATE
    assert lookahead.offer(tokens(1, 2, 3, 9, 8), 2).tokens[0] == 8, "an iterate lies behind one text"


def test_pieces_are_found_again_by_their_first_token_and_surer_each_time() -> None:
    lookahead, sure = Lookahead(), -1.0
    for _ in range(3):
        lookahead.learn(judged([1, 2], [3, 4, 5, 5], [9], [6, 7, 8]))
        made = lookahead.for_text().offer(tokens(4, 4, 9), 3)
        assert made.tokens == (6, 7, 8)
        assert made.confidence[0] > sure
        sure = made.confidence[0]
    assert sure == pytest.approx(PIECE + 0.2), "a tenth each time"


def test_rows_that_only_look_ahead_fill_the_window_and_promise_next_to_nothing() -> None:
    made = Lookahead().offer(tokens(1, 2), 48)
    assert made.tokens == (2,) * WINDOW
    assert made.confidence == (BLANK,) * WINDOW
    assert sum(made.reach) < 0.05
    assert list(made.reach) == sorted(made.reach, reverse=True)
    assert Lookahead().offer(tokens(), 4).tokens == ()


def test_rows_that_stand_elsewhere_are_left_alone() -> None:
    """Where a grammar settled more than was verified, or the text ended."""
    lookahead = Lookahead()
    draft = Draft((3, 4), tuple(map(point_mass, (3, 4))))
    behind = np.eye(N_VOCAB, dtype=np.float32)[[6]]
    lookahead.learn(Judged(tokens(1, 2, 9, 9, 9), 3, draft, 0, (), behind))
    assert lookahead.offer(tokens(1, 2, 9, 9, 9), 2).tokens == (9, 9)


def test_the_pool_keeps_its_size() -> None:
    lookahead = Lookahead()
    for token in range(0, 3 * MOST, GRAM):
        lookahead.learn(judged([token], [0] * GRAM, [token + 1], range(token + 2, token + 1 + GRAM)))
    assert len(lookahead._pool) == MOST


def test_the_loop_tells_what_every_row_behind_the_first_rejected_guess_finds_likeliest() -> None:
    model, heard = TableModel(N_VOCAB, seed=1), []

    class Listening(Lookahead):
        def learn(self, judged: Judged) -> None:
            heard.append(replace(judged, behind=np.array(judged.behind)))
            super().learn(judged)

    run(model, [Listening()], GREEDY, n=30, fixed=4)
    assert any(len(one.behind) for one in heard)
    for one in heard:
        before = one.tokens[: one.tokens.size - one.fresh].tolist()
        rows = [model.row([*before, *one.draft.tokens[:i]]) for i in range(len(one.draft.tokens) + 1)]
        likeliest = [int(row[:N_VOCAB].argmax()) for row in rows]
        if one.fresh == one.accepted + 1:
            assert one.tokens[-one.fresh :].tolist() == likeliest[: one.fresh]
            assert [row.argmax() for row in one.behind] == likeliest[one.fresh :]


# ---- on a virtual clock -----------------------------------------------------------------------------------


class Timed(TableModel):
    """A table whose evaluations move a clock."""

    def __init__(self, clock: Clock, costs: CostTable, seed: int, spread: float) -> None:
        super().__init__(N_VOCAB, seed=seed, spread=spread)
        self._clock, self._costs = clock, costs
        self._rng = np.random.default_rng([seed, 1])

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.evaluated
        rows = super().score(wants)
        noise = float(np.exp(0.03 * self._rng.standard_normal()))
        self._clock.now += noise * self._costs.seconds(self.evaluated - before)
        return rows


def run(
    model: TableModel, guessers: Sequence[Guesser], sampling: Sampling, *, n: int, fixed: int | None = None,
    clock: Clock | None = None, points: dict[int, float] | None = None, known: Experience | None = None,
) -> list[int]:  # fmt: skip
    """Says n tokens; returns them."""
    from edgespec.core.pace.pace import FixedLength

    rule: Rule = Independent(np.random.default_rng(5))
    prompt = tokens(1, 2, 3)
    loop = generate(
        prompt, drafter=Competition(guessers), sampler=Remembering(sampling, N_VOCAB), rule=rule,
        text=TextRelease(lambda token: b"a"), limits=Limits(n, 4096),
    )  # fmt: skip
    known = known or Experience()
    pace = FixedLength(fixed) if fixed else Controller(lambda streams: known.record, max_tokens=n)
    costs = Costs(CostTable(dict(points or {1: 1.0})), CostTable({1: 1.0}))
    found = rounds_of(loop, {"target": model}, pace, prompt, costs=costs, clock=clock or Clock())
    return [token for round_ in found for token in round_.tokens]


def seconds(machine: str, seed: int, sampling: Sampling, *, lookahead: bool, spread: float) -> float:
    """Returns the time of three texts, with lookup and recycling and perhaps with lookahead."""
    points = {n: ms / 1000 for n, ms in MACHINES[machine].items()}
    clock, known = Clock(), Experience()
    model = Timed(clock, CostTable(dict(points), slope=0.0), seed, spread)
    guessers: list[Guesser] = [SuffixLookup(), TokenRecycling(N_VOCAB)]
    for _ in range(3):
        free = [known.take_up(guesser.for_text()) for guesser in [*guessers, *[Lookahead()] * lookahead]]
        run(model, free, sampling, n=200, clock=clock, points=points, known=known)
    return clock.now


@pytest.mark.parametrize("machine", ["memory-bound", "compute-bound", "GPU"])
@pytest.mark.parametrize(
    "sampling", [GREEDY, pytest.param(WARM, marks=pytest.mark.slow)], ids=["greedy", "warm"]
)
def test_nothing_gets_slower_by_it(machine: str, sampling: Sampling) -> None:
    """Texts that repeat themselves more (greedy) and less (warm); measured: 0.98 to 1.01 of the time."""
    with_, without = (
        sum(seconds(machine, seed, sampling, lookahead=on, spread=2.0) for seed in range(3))
        for on in (True, False)
    )
    assert with_ < 1.02 * without
