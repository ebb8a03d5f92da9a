"""On a card, evaluations of a new size cost more than those that follow: llama.cpp captures another graph.

On the virtual clock of `streams.py`, with the costs of 8B Q4_0 on an H100, where a guess by the draft takes
0.35 of a token.
"""

from __future__ import annotations

import statistics

import pytest
from streams import Bench, Captured, stream

from edgespec.core.pace import costs
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.pace import FixedLength


def card(seed: int) -> Bench:
    return Bench("captured", seed=seed, timed=Captured, draft_step=0.35, settling=Captured.settling)


@pytest.mark.sample(1)
@pytest.mark.parametrize("quality", [0.0, 0.4, 0.7])
def test_drafts_that_do_not_pay_cost_next_to_nothing(quality: float) -> None:
    found = []
    for seed in range(8):
        bench = card(seed)
        for n in range(4):
            found.append(bench.plain() / bench.play(stream(quality, 10 * seed + n)).seconds)
    assert statistics.geometric_mean(found) > 0.96


def test_drafts_that_pay_are_made() -> None:
    found = []
    for seed in range(8):
        bench = card(seed)
        for n in range(4):
            found.append(bench.plain() / bench.play(stream(0.97, 10 * seed + n)).seconds)
    assert statistics.geometric_mean(found) > 1.2


def test_the_draft_reads_token_by_token() -> None:
    """After guesses that were all accepted it has two to read: at once, they would need another graph."""
    bench = card(1)
    played = bench.play(stream(1.0, 1), FixedLength(4))
    read = [round_.drafted for round_ in played.rounds]
    one = bench.true.draft.seconds(1)
    spent = played.seconds - sum(bench.true.target.seconds(n + 1) for n in read[1:])
    assert spent == pytest.approx(one * played.draft_evaluated, rel=0.2)


class Machine:
    """Evaluates in the time that the last sizes make it."""

    def __init__(self, one: float, row: float, more: float) -> None:
        self._one, self._row, self._more, self._sizes = one, row, more, [0, 0]

    def __call__(self, n: int) -> float:
        settled = self._sizes == [n, n]
        self._sizes = [self._sizes[1], n]
        return self._one + (n - 1) * self._row + (0.0 if settled else self._more)


def test_single_tokens_are_timed_as_plain_decoding_has_them_and_other_sizes_as_they_come() -> None:
    found = Costs(CostTable({1: 9.0, 16: 9.0}, slope=0.0), CostTable({1: 9.0}, slope=0.0))
    found.target.settling = found.draft.settling = 2
    target, draft = Machine(3.0, 0.5, 1.0), Machine(1.0, 0.1, 1.0)
    for _ in range(20):
        costs.look(found, target, draft, sizes=(2, 4, 8), read=(2, 48), n_ctx=0, budget=1000.0)
    assert found.target.seconds(1) == pytest.approx(3.0, rel=0.02)
    assert found.target.seconds(4) == pytest.approx(5.5, rel=0.05)
    assert found.draft.seconds(1) == pytest.approx(1.0, rel=0.05)
