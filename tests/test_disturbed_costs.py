"""Other programs at work beside a pair: how soon it is as fast as if they had never been there.

On a virtual clock; loop, engine, drafter, controller and cost table are the real ones. Beside one busy loop
on two cores, single tokens took 1.7 to 8 times as long as in quiet, n tokens as much, with no relation
between one evaluation and the next (AMD EPYC, 0.6B F16 and 1.1B Q4_0): so here. A hot processor is slower by
30 %, all evaluations alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from streams import Bench, Played, Stream, Timed, stream

from edgespec.core.loop import Rows, Want
from edgespec.core.pace import cost_table, costs
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.row_costs import FLOAT, ON_CARD, QUANTISED, Shape

HEALED = 40  # tokens of quiet after which the speed is to be that of an undisturbed start
MEASURED = 200  # tokens over which that is measured
SHAPES: dict[str, Shape] = {
    "memory-bound": FLOAT,
    "compute-bound": QUANTISED,
    "two dear": QUANTISED,
    "GPU": ON_CARD,
}


@dataclass
class Work:
    """What other programs do to the evaluations of a machine."""

    least: float = 1.0  # times as long as in quiet, each evaluation takes at least
    spread: float = 0.0  # of the logarithm of what it takes more

    def factor(self, rng: np.random.Generator) -> float:
        return self.least * float(np.exp(self.spread * abs(rng.standard_normal())))


QUIET, ONE_CORE, TWO_CORES, HOT = Work(), Work(1.7, 0.6), Work(2.0, 0.8), Work(1.3)
WORK = {"one core": ONE_CORE, "two cores": TWO_CORES, "hot": HOT}


class Disturbed(Timed):
    """A context beside other programs."""

    work = QUIET

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.clock.now
        rows = super().score(wants)
        self.clock.now += (Disturbed.work.factor(self._rng) - 1) * (self.clock.now - before)
        return rows


class Machine(Bench):
    """A machine whose costs are measured as at a real start, perhaps beside other programs."""

    def start(self, work: Work) -> None:
        """Measures the costs, as at a first start."""
        rng = np.random.default_rng([self.seed, 81])
        one, step = (
            table.seconds(1) * min(work.factor(rng), work.factor(rng))
            for table in (self.true.target, self.true.draft)
        )
        self.costs = Costs(costs.assumed(SHAPES[self.machine], one), costs.assumed(QUANTISED, step))
        self.look(work, costs.SIZES * 3, 0.8)

    def look(self, work: Work, sizes: Sequence[int], budget: float) -> None:
        """Times sizes beside other programs."""
        rng = np.random.default_rng([self.seed, 80])

        def timed(table: CostTable) -> Callable[[int], float]:
            return lambda n: table.seconds(n) * work.factor(rng) * float(np.exp(0.03 * rng.standard_normal()))

        verify, step = timed(self.true.target), timed(self.true.draft)
        costs.look(self.costs, verify, step, sizes=sizes, n_ctx=4, budget=budget)


def played(bench: Machine, text: Stream, works: Callable[[int], Work], n_tokens: int) -> Played:
    """Plays a text; `works` says what disturbs it from how many tokens on."""
    generated = 0
    Disturbed.work = works(0)

    def watch(round_: object) -> None:
        nonlocal generated
        generated += len(round_.tokens)  # type: ignore[attr-defined]
        Disturbed.work = works(generated)

    return bench.play(text, n_tokens=n_tokens, watch=watch)


def seconds_after(played: Played, token: int) -> float:
    """Returns the seconds from the round that reached a token to the one that reached MEASURED more."""
    generated = np.cumsum([len(round_.tokens) for round_ in played.rounds])
    first, last = np.searchsorted(generated, [token, token + MEASURED])
    return (played.ended[last] - played.ended[first]) * MEASURED / float(generated[last] - generated[first])


# tokens of the text after which there is quiet, and what is at work at each of them
KINDS: dict[str, tuple[int, Callable[[int], bool]]] = {
    "start": (0, lambda t: False),  # beside which costs were measured
    "idle": (0, lambda t: False),  # beside which sizes were timed again
    "from the beginning": (120, lambda t: t < 120),
    "middle": (150, lambda t: 60 <= t < 150),
    "alternating": (260, lambda t: t < 260 and t // 20 % 2 == 1),
}


def seconds(machine: str, kind: str, work: Work, quality: float, seed: int) -> float:
    """Returns the seconds of MEASURED tokens after HEALED tokens of quiet."""
    ended, at_work = KINDS[kind]
    bench = Machine(machine, seed=1000 * seed, timed=Disturbed)
    bench.start(work if kind == "start" else QUIET)
    if kind == "idle":
        bench.look(work, costs.SIZES[:8], 2.0)
    text = stream(quality, 10 * (seed % 4), told=False)
    found = played(bench, text, lambda t: work if at_work(t) else QUIET, ended + HEALED + MEASURED + 40)
    return seconds_after(found, ended + HEALED)


def errors(machine: str, kind: str, work: Work, seed: int) -> tuple[list[float], list[float]]:
    """Returns how far ratios are off in the end, as logarithms: of the sizes in use, and of all up to 16."""
    ended, at_work = KINDS[kind]
    bench = Machine(machine, seed=1000 * seed, timed=Disturbed)
    bench.start(work if kind == "start" else QUIET)
    if kind == "idle":
        bench.look(work, costs.SIZES[:8], 2.0)
    text = stream(0.75, 10 * seed, told=False)
    found = played(bench, text, lambda t: work if at_work(t) else QUIET, ended + HEALED + MEASURED)
    used = Counter(round_.drafted + 1 for round_ in found.rounds[-80:])
    believed, true = (
        table.prices(16) / table.seconds(1) for table in (bench.costs.target, bench.true.target)
    )
    off = np.log(believed[1:] / true[1:])
    in_use = [float(off[n - 1]) for n, times in used.items() if 1 < n <= 16 and times > 3]
    return in_use, [float(off[n - 1]) for n in (2, 3, 4, 5, 6, 8, 12, 16)]


def compared(machine: str, kind: str, work: Work, quality: float, seeds: int) -> tuple[float, float]:
    """Returns the speed over that after a start that nothing disturbed, and the standard error of that."""
    ours, undisturbed = (
        np.array([seconds(machine, kind, how, quality, seed) for seed in range(seeds)])
        for how in (work, QUIET)
    )
    ratio = float(undisturbed.mean() / ours.mean())
    errors = [float(x.std(ddof=1) / x.mean()) / np.sqrt(seeds) for x in (ours, undisturbed)]
    return ratio, ratio * float(np.hypot(*errors))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "work", ["one core", *(pytest.param(work, marks=pytest.mark.slow) for work in list(WORK)[1:])]
)
@pytest.mark.parametrize(
    "kind", [*(pytest.param(kind, marks=pytest.mark.slow) for kind in list(KINDS)[:3]), *list(KINDS)[3:]]
)
def test_after_40_tokens_of_quiet_it_is_as_fast_as_if_nothing_had_been(kind: str, work: str) -> None:
    """0.95 of an undisturbed start within two standard errors: one comparison in 40 is below by chance.
    With level and ratios learned together, sizes that looked dear were never tried again."""
    for machine, quality in (("memory-bound", 0.75), ("compute-bound", 0.95)):
        ratio, error = compared(machine, kind, WORK[work], quality, 4)
        assert ratio > 0.95 - 2 * error and error < 0.08, (machine, ratio, error)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "machine", ["memory-bound", *(pytest.param(name, marks=pytest.mark.slow) for name in list(SHAPES)[1:])]
)
def test_ratios_are_known_as_well_as_without_disturbance(machine: str, kind: str) -> None:
    """Measured over all machines and kinds, with one and two busy cores: sizes in use are off by 2 to 5 %
    (root mean square), 8 % at most, as in quiet; all sizes, which are mostly assumed, by 2 to 21 %."""
    in_use: list[float] = []
    all_sizes: list[float] = []
    for seed in range(3):
        used, every = errors(machine, kind, TWO_CORES, seed)
        in_use, all_sizes = in_use + used, all_sizes + every
    assert np.abs(in_use).max(initial=0.0) < 0.12
    assert np.sqrt(np.square(all_sizes).mean()) < 0.27


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", SHAPES)
def test_on_every_machine_and_with_any_draft(machine: str, kind: str, work: str) -> None:
    """As above, over 8 seeds each, or 24 where speeds differ most from seed to seed."""
    for quality in (0.95, 0.75, 0.0):
        ratio, error = compared(machine, kind, WORK[work], quality, 24 if machine == "two dear" else 8)
        assert ratio > 0.95 - 2 * error and error < 0.08, (quality, ratio, error)


class Stubborn(CostTable):
    """The mutant: what the first look at a size said is never corrected and never forgotten."""

    def correct(self, n: int, off: float, context: float, *, times: int = 1, noisy: bool = False) -> None:
        if n not in self.offsets:
            super().correct(n, off, context, times=times)

    def age(self, share: float) -> None:
        pass


def test_a_table_that_keeps_what_a_noisy_start_stated_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [("compute-bound", "start", TWO_CORES, 0.95, seed) for seed in range(6)]
    ours = sum(seconds(*case) for case in cases)
    monkeypatch.setattr(costs, "CostTable", Stubborn)
    monkeypatch.setattr(cost_table, "AGREE", 99.0)
    assert ours / sum(seconds(*case) for case in cases) < 0.93
