"""If a token is so cheap that looking for guesses shows, nobody looks for what never comes.

On a virtual clock: a token takes half a millisecond, n tokens n times as long and a part more after another
size (llama.cpp builds a graph), and looking for guesses takes another part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes import TableModel, rounds_of
from numpy.typing import NDArray
from streams import Clock

from edgespec.core.drafters import Offer
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.pace import FixedLength
from edgespec.core.pace.record import Record, Watch
from edgespec.core.pace.tuning import TUNING
from edgespec.core.text import TextRelease
from edgespec.core.values import LONGEST_DRAFT, NO_DRAFT, Round
from edgespec.core.verify import Independent
from edgespec.sampling.sampler import Sampler, Sampling

N_VOCAB = 40
GREEDY = Sampling(temperature=0)
ONE, GRAPH, LOOK, ELSE = 0.0005, 0.0002, 0.0001, 0.00005  # seconds; ELSE: of Python, in each round


class Timed(TableModel):
    """A table whose evaluations move a clock."""

    def __init__(self, clock: Clock, one: float, slower: float) -> None:
        super().__init__(N_VOCAB, seed=4, spread=6.0)
        self._clock, self._one, self._slower, self._size = clock, one, slower, 1
        self._rng = np.random.default_rng(3)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.evaluated
        rows = super().score(wants)
        n = self.evaluated - before
        seconds = self._one * (1 + self._slower * (n - 1)) + (GRAPH if n != self._size else 0.0)
        self._size = n
        self._clock.now += seconds * float(np.exp(0.03 * self._rng.standard_normal())) + ELSE
        return rows


class Slow(SuffixLookup):
    """Takes its time to look."""

    clock: Clock
    looked = 0

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        self.clock.now += LOOK
        self.looked += 1
        return super().offer(tokens, limit)


def seconds_of(
    costs: Costs, record: Record, *, one: float, slower: float, n: int = 700, plain: bool = False
) -> tuple[float, int]:
    """Returns the seconds of a greedy text of n tokens, and how often somebody looked for guesses."""
    clock = Clock()
    model, lookup = Timed(clock, one, slower), Slow()
    lookup.clock = clock
    prompt = np.array([1, 2, 3], np.int32)
    pace = FixedLength(0) if plain else Controller(lambda streams: record, max_tokens=n)
    loop = generate(
        prompt, drafter=Competition([lookup, TokenRecycling(N_VOCAB)], looks=pace.looks),
        sampler=Sampler(GREEDY, N_VOCAB), rule=Independent(np.random.default_rng(5)),
        text=TextRelease(lambda token: b"a"), limits=Limits(n, 4096),
    )  # fmt: skip
    for _ in rounds_of(loop, {"target": model}, pace, prompt, costs=costs, clock=clock):
        pass
    return clock.now, lookup.looked


def costs_of(one: float, slower: float) -> Costs:
    """Returns what would have been measured: without what Python takes, and off by a fifth."""
    points = {n: 1.2 * (one * (1 + slower * (n - 1)) + (n > 1) * GRAPH) for n in (1, 2, 4, 8, 16)}
    return Costs(CostTable(points, slope=0.0), CostTable({1: 1.0}))


@pytest.mark.parametrize("slower", [1.0, 0.85])
def test_a_light_target_is_never_under_97_hundredths_of_plain_decoding(slower: float) -> None:
    """Texts go round and round here: lookup is right, and still brings nothing."""
    record, costs = Record(), costs_of(ONE, slower)
    plain, _ = seconds_of(costs_of(ONE, slower), Record(), one=ONE, slower=slower, plain=True)
    for least in (0.96, 0.97):
        found, _ = seconds_of(costs, record, one=ONE, slower=slower)
        assert plain / found > least


def test_where_guesses_pay_they_are_made_on_a_light_target_too() -> None:
    record, costs = Record(), costs_of(ONE, 0.05)
    plain, _ = seconds_of(costs_of(ONE, 0.05), Record(), one=ONE, slower=0.05, plain=True)
    found, _ = seconds_of(costs, record, one=ONE, slower=0.05)
    assert plain / found > 2


def test_what_a_token_of_plain_decoding_takes_is_found_out_however_wrong_it_was_measured() -> None:
    record, costs = Record(), costs_of(1.5 * ONE, 1.0)
    seconds_of(costs, record, one=ONE, slower=1.0)
    assert costs.target.seconds(1) == pytest.approx(ONE + ELSE, rel=0.05)


def test_a_step_behind_another_size_and_a_pause_say_little_of_a_token() -> None:
    costs = Costs(CostTable({1: ONE}, slope=0.0), CostTable({1: 1.0}))
    costs.note_size(1)
    costs.note_plain(0, 9 * ONE)
    assert costs.target.seconds(1) == ONE, "it followed another size"
    costs.note_size(1)
    costs.note_plain(0, 1000 * ONE)
    assert ONE < costs.target.seconds(1) < 1.05 * ONE
    for _ in range(200):
        costs.note_plain(0, 2 * ONE)
    assert costs.target.seconds(1) == pytest.approx(2 * ONE, rel=0.01)


def test_looks_become_rarer_until_a_guess_is_made() -> None:
    watch, looks = Watch(), []
    for i in range(2000):
        if watch.left:
            watch.left -= 1
        else:
            looks.append(i)
            watch.note(False)
    first = looks[:: TUNING.look]
    assert [b - a for a, b in zip(first, first[1:], strict=False)][:5] == [
        TUNING.look + rest for rest in (30, 60, 120, 224, 224)
    ]
    watch.left = 0
    watch.note(True)
    assert watch == Watch()


def test_the_next_request_goes_on_resting_where_the_last_one_did() -> None:
    record, costs = Record(), costs_of(ONE, 1.0)
    _, first = seconds_of(costs, record, one=ONE, slower=1.0, n=600)
    _, later = seconds_of(costs, record, one=ONE, slower=1.0, n=600)
    assert later < first
    assert later <= 4 * TUNING.look


def test_the_cheaper_a_token_the_longer_nobody_looks() -> None:
    """Looking takes 0.3 to 0.5 ms: six hundredths of a token of SmolLM2, whose guesses seldom pay."""
    rests = [costs_of(one / 1.2, 1.0).longest_rest for one in (0.0005, 0.0019, 0.003, 0.0064, 0.0089, 0.01)]
    assert rests == [TUNING.longest_rest, TUNING.longest_rest, 8, 4, 2, 0]


def test_a_target_of_middling_weight_looks_in_a_third_of_the_rounds_and_learns_what_a_token_takes() -> None:
    record, costs = Record(), costs_of(0.0064, 1.0)
    _, looked = seconds_of(costs, record, one=0.0064, slower=1.0, n=300)
    assert 90 < looked < 120
    assert costs.target.seconds(1) == pytest.approx(0.0064 + ELSE, rel=0.08)


def test_a_stream_that_rests_asks_nobody_for_guesses() -> None:
    """Its rounds are those of plain decoding: one ask, of the target. Being asked took a tenth of a token."""
    record, costs = Record(watch=Watch(left=20)), costs_of(ONE, 1.0)
    controller = Controller(lambda streams: record, max_tokens=100)
    controller.enter(BatchPlan(costs, {0: 1}, LONGEST_DRAFT + 1, 3), 0)
    drafter, tokens = Competition([SuffixLookup()], looks=controller.looks), np.array([1, 2, 3], np.int32)
    with pytest.raises(StopIteration) as ended:
        next(drafter.draft(tokens, 8, Independent(np.random.default_rng(5))))
    assert ended.value.value is NO_DRAFT
    assert record.watch.left == 19


def test_a_target_that_has_become_slow_is_not_left_to_rest() -> None:
    """A busy machine makes a light target a heavy one, for which looking is not felt."""
    record, costs = Record(watch=Watch(left=TUNING.longest_rest)), costs_of(ONE, 1.0)
    controller = Controller(lambda streams: record, max_tokens=100)
    for slower, looks in ((1, False), (1, False), (100, True), (100, True)):
        costs.target.slowness.level = float(slower)
        controller.enter(BatchPlan(costs, {0: 1}, LONGEST_DRAFT + 1, 3), 0)
        assert controller.looks() == looks


def test_what_is_not_looked_at_is_not_noted_either() -> None:
    """A round in which nobody looked leaves the table of recycling as it was."""
    recycling = TokenRecycling(N_VOCAB)
    prompt = np.array([1, 2, 3], np.int32)
    loop = generate(
        prompt, drafter=Competition([recycling], looks=FixedLength(0).looks),
        sampler=Sampler(GREEDY, N_VOCAB), rule=Independent(np.random.default_rng(5)),
        text=TextRelease(lambda token: b"a"), limits=Limits(50, 4096),
    )  # fmt: skip
    rounds: list[Round] = list(
        rounds_of(loop, {"target": TableModel(N_VOCAB, seed=4)}, FixedLength(0), prompt)
    )
    noted = int((recycling._single[:, 0] >= 0).sum())
    assert len(rounds) == 50
    assert noted <= 1, "the first round is learned from before anybody was asked"
