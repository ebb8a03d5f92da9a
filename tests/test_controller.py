"""The controller over whole texts, on a virtual clock: as fast as the best fixed length, no slower than none.

Acceptances and costs are simulated (`streams.py`); loop, engine, drafter and controller are the real ones.
Speeds are those of decoding, first token excluded, relative to plain decoding. Seeds are fixed; bounds lie
below the measurements by as much as other seeds move them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
import pytest
from numpy.typing import NDArray
from streams import LONG, MACHINES, Bench, Played, Stream, Timed, stream

from edgespec.core.drafters import Offer, offer
from edgespec.core.loop import Rows, Want
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.odds import Odds, proportional
from edgespec.core.pace.pace import FixedLength
from edgespec.core.pace.record import Record
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import Ask, Judged, Round

EVERYWHERE = pytest.mark.parametrize(
    "machine", ["memory-bound", pytest.param("compute-bound", marks=pytest.mark.slow), "GPU"]
)
TOLD = pytest.mark.parametrize(  # the other half takes 20 s
    "told", [pytest.param(True, marks=pytest.mark.slow), False], ids=["told", "untold"]
)
QUALITIES = {"good": 0.95, "fair": 0.75, "poor": 0.45, "worst": 0.0}


def by_position(quality: Callable[[int], float]) -> NDArray[np.float64]:
    return np.array([quality(t) for t in range(LONG)])


def speed(bench: Bench, played: Played, n_tokens: int = 256) -> float:
    return bench.plain(n_tokens) / played.seconds


# --- the simulation itself


@EVERYWHERE
@pytest.mark.parametrize("k", [1, 3, 7, 16])
def test_the_engine_on_a_virtual_clock_takes_the_time_that_arithmetic_says(machine: str, k: int) -> None:
    bench = Bench(machine, noise=0)
    s = stream(0.8, 1)
    played = bench.play(s, FixedLength(k))
    assert played.tokens == 255
    assert played.seconds == pytest.approx(bench.fixed(s, k))
    assert bench.play(s, FixedLength(0)).seconds == pytest.approx(bench.plain())


# --- streams that stay as they are


@pytest.mark.parametrize(
    "machine",
    ["memory-bound", *(pytest.param(name, marks=pytest.mark.slow) for name in ("compute-bound", "GPU"))],
)
@TOLD
def test_the_controller_is_about_as_fast_as_the_best_fixed_length(machine: str, told: bool) -> None:
    """After one request of learning. Where the draft knows how sure it may be, faster than any."""
    lines, shares = [], {}
    for name, quality in QUALITIES.items():
        plain = ours = best = 0.0
        for seed in range(3):
            bench = Bench(machine, seed=100 * seed)
            texts = [stream(quality, 10 * seed + i, told=told) for i in range(4)]
            bench.play(texts[0])
            ours += sum(bench.play(text).seconds for text in texts[1:])
            k, seconds = bench.best_fixed(texts[1:])
            best += seconds
            plain += 3 * bench.plain()
        shares[name] = best / ours
        lines.append(f"{name}: {plain / ours:.2f}, best fixed length {plain / best:.2f} (k={k})")
    wanted = dict.fromkeys(QUALITIES, 0.93 if machine == "compute-bound" else 0.95)
    # places past those that it uses are thought worse than they are, so it stops short: 7 guesses for 16, say
    wanted["good"] = {"GPU": 0.88, "memory-bound": 0.92}.get(machine, 0.95)
    assert all(shares[name] > wanted[name] for name in QUALITIES), f"{shares} {lines}"
    if told:
        assert fmean(shares.values()) > 0.98, f"{shares} {lines}"


@TOLD
def test_rows_that_cost_in_groups_are_filled_up_where_that_pays(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speeds(quality: float) -> float:
        bench, texts = Bench("in groups"), [stream(quality, i, told=told) for i in range(4)]
        return 4 * bench.plain() / sum(bench.play(text).seconds for text in texts)

    good, fair = speeds(0.95), speeds(0.75)
    with monkeypatch.context() as patch:
        patch.setattr(Timed, "fills", False)
        assert good > 1.01 * speeds(0.95) and fair > 0.97


@pytest.mark.sample(1)
@EVERYWHERE
@TOLD
def test_a_draft_that_is_never_right_costs_next_to_nothing(machine: str, told: bool) -> None:
    """From the first request on, with nothing learned but the costs; 256 tokens."""
    exact = [speed(b, b.play(stream(0.0, b.seed, told=told))) for b in [Bench(machine, noise=0)]]
    noisy = [
        speed(b, b.play(stream(0.0, b.seed, told=told))) for b in (Bench(machine, seed=s) for s in range(8))
    ]
    assert exact[0] >= 0.97, exact
    assert fmean(noisy) >= 0.97 and min(noisy) >= 0.965, noisy


@TOLD
def test_a_draft_is_tried_where_a_single_guess_could_never_pay(told: bool) -> None:
    """Two tokens cost 2.3 times one, and eight 3.8 times. Tries of one guess teach little there and lose even
    if it is right, and longer ones were thought too dear: a draft twice as fast was missed."""
    for quality, share in ((0.985, 0.85), (0.95, 0.65), (0.45, 0.96), (0.0, 0.96)):
        for seed in range(3):
            bench = Bench("two dear", seed=1000 * seed)
            texts = [stream(quality, 10 * seed + i, told=told) for i in range(4)]
            ours = sum(bench.play(text, n_tokens=96).seconds for text in texts)
            best = sum(min(bench.plain(96), bench.fixed(text, 7, n_tokens=96)) for text in texts)
            assert best / ours > share, (quality, seed, best / ours)


@TOLD
def test_a_short_text_pays_next_to_nothing_to_learn_that_a_dear_draft_is_bad(told: bool) -> None:
    """The first 64 tokens of a pair, behind 100 of prompt: 0.94 of plain decoding when three guesses were
    tried at once. Now the draft guesses silently before: one token at a time that is not verified."""
    speeds = []
    for seed in range(8):
        bench = Bench("two dear", seed=1000 * seed, noise=0)
        played = bench.play(stream(0.3, seed, told=told), n_prompt=100, n_tokens=64)
        speeds.append(speed(bench, played, 64))
    assert fmean(speeds) > 0.975 and min(speeds) > 0.955, (
        speeds
    )  # one of them is right by chance, and is tried


def test_nothing_is_read_or_guessed_where_no_draft_can_pay() -> None:
    """Even if all of it is accepted."""
    dear = {1: 20, 2: 45, 4: 90, 8: 180, 16: 360, 48: 1080}
    bench = Bench("no draft", machines={"no draft": dear})
    played = bench.play(stream(1.0, 0), n_prompt=100, n_tokens=400)
    assert played.draft_evaluated == 0


@pytest.mark.parametrize("quality", [0.0, 0.5, 1.0])
def test_silent_guesses_show_what_a_draft_is_worth(quality: float) -> None:
    """They cost no more than they may, whatever comes of them."""
    bench = Bench("two dear", noise=0)
    s = Stream(np.full(LONG, 0.8), np.random.default_rng(1).random(LONG) < quality)
    if quality < 1:
        played = bench.play(s, n_tokens=2000)
        assert sum(round_.drafted > 0 for round_ in played.rounds) < 10
        assert 20 < played.draft_evaluated
        share = bench.experience.places.accepted[0] / bench.experience.places.seen[0]
        assert share == pytest.approx(quality, abs=0.3)
        assert speed(bench, played, 2000) > 0.98
    else:
        assert speed(bench, bench.play(s, n_tokens=200), 200) > 1.4


@pytest.mark.sample(1)
@TOLD
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(name, marks=[] if name in ("memory-bound", "two dear") else pytest.mark.slow)
        for name in MACHINES
    ],
)
def test_a_draft_that_was_hopeless_is_found_when_it_is_good(machine: str, told: bool) -> None:
    """1,000 tokens of nothing accepted, then a good draft. Tries that cannot pay even if all is accepted used
    to eat up the budget where a second token is the dearest, for ever. All of the few tries may fail by
    chance: in one of 50 such runs."""
    shares = []
    for seed in range(4):
        bench = Bench(machine, seed=1000 * seed)
        for i in range(4):
            bench.play(stream(0.0, 10 * seed + i, told=told))
        texts = [stream(0.985, 10 * seed + i, told=told) for i in range(3)]
        _, best = bench.best_fixed(texts)
        *_, last = [bench.play(text).seconds for text in texts]
        shares.append(best / 3 / last)
    assert sorted(shares)[1] > 0.9, shares


@pytest.mark.sample(2)
@EVERYWHERE
@pytest.mark.parametrize("quality", [0.98, 0.9])
def test_a_draft_that_is_right_without_being_sure_is_used_whole(machine: str, quality: float) -> None:
    """As at temperature 1, where a draft like the target is as unsure as that, and accepted all the same. Its
    unsure guesses were refused for want of experience with them: 0.66 to 0.90 of the best fixed length."""
    shares = []
    for seed in range(6):
        rng = np.random.default_rng([seed, 79])
        texts = [Stream(rng.uniform(0.15, 0.95, LONG), rng.random(LONG) < quality) for _ in range(2)]
        bench = Bench(machine, seed=1000 * seed)
        _, best = bench.best_fixed(texts)
        shares.append(best / sum(bench.play(text).seconds for text in texts))
    assert fmean(shares) > 0.93, shares


@pytest.mark.sample(1)
@EVERYWHERE
@TOLD
def test_a_draft_that_has_turned_bad_is_not_tried_for_all_that_it_had_won(machine: str, told: bool) -> None:
    """What had been saved up was spent on tries at once, as fast as plain decoding had been seen again."""
    least: list[float] = []
    for seed in range(4):
        bench = Bench(machine, seed=1000 * seed)
        for i in range(3):
            bench.play(stream(0.75, 10 * seed + i, told=told))
        assert bench.experience.record.budget > 2 * TUNING.start

        def note(_: Round, record: Record = bench.experience.record) -> None:
            least.append(record.trying)

        bench.play(stream(0.0, 10 * seed + 5, told=told), watch=note)
    assert min(least) > -1, min(least)


@TOLD
def test_what_the_cheapest_try_costs_is_saved_up_for(told: bool) -> None:
    """Where no draft of fewer than seven can pay, and seven that fail lose more than may be lost at first."""
    dear = {1: 23, 2: 60, 3: 76, 4: 90, 6: 133, 8: 96, 12: 126, 16: 157, 24: 230, 48: 460}
    bench = Bench("seven or none", machines={"seven or none": dear})
    texts = [stream(0.985, i, told=told) for i in range(3)]
    *_, last = [bench.play(text).seconds for text in texts]
    assert bench.plain() / last > 1.35
    assert bench.experience.record.saving > TUNING.start


class Pausing(Timed):
    """A machine that pauses: one evaluation in 25 takes 2.5 times as long. `paused`: seconds, in all."""

    paused = 0.0

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        before = self.clock.now
        rows = super().score(wants)
        if self._rng.random() < 0.04:
            more = 1.5 * (self.clock.now - before)
            self.clock.now += more
            Pausing.paused += more
        return rows


def test_pauses_of_the_machine_do_not_shut_out_a_good_draft() -> None:
    """Two long drafts that failed in such moments cost it 700 tokens of plain decoding."""
    for seed in range(8):
        bench = Bench("uneven", noise=0.05, seed=1000 * seed, timed=Pausing)
        texts = [stream(0.985, 10 * seed + i, told=False) for i in range(4)]
        Pausing.paused = 0.0
        ours = sum(bench.play(text, n_tokens=96).seconds for text in texts) - Pausing.paused
        best = sum(bench.fixed(text, 16, n_tokens=96) for text in texts)
        assert best / ours > 0.7, (seed, best / ours)


class AlwaysDrafting(Controller):
    """The mutant: it never sees why not."""

    def grants_step(self, ask: Ask, lag: int) -> bool:
        return super().grants_step(ask, lag) or len(ask.tail) < 4


@EVERYWHERE
def test_a_controller_that_always_drafts_is_seen_to_be_slower_than_plain_decoding(machine: str) -> None:
    bench = Bench(machine)
    mutant = AlwaysDrafting(lambda streams: bench.experience.record, max_tokens=256)
    assert speed(bench, bench.play(stream(0.0, 1), mutant)) < 0.8


# --- streams that change


CHANGING: dict[str, Callable[[int], float]] = {
    "falls to nothing": lambda t: max(0.0, 0.95 - t / 256),
    "rises from nothing": lambda t: min(0.95, t / 256),
    "is good, then bad": lambda t: 0.95 if t < 136 else 0.0,
    "is bad, then good": lambda t: 0.0 if t < 136 else 0.95,
    "turns every 8": lambda t: 0.95 * (t // 8 % 2 == 0),
    "turns every 32": lambda t: 0.95 * (t // 32 % 2 == 0),
    "turns every 100": lambda t: 0.95 * (t // 100 % 2 == 0),
}


@pytest.mark.sample(3)
@EVERYWHERE
@pytest.mark.parametrize(
    "change", [*list(CHANGING)[:3], *(pytest.param(of, marks=pytest.mark.slow) for of in list(CHANGING)[3:])]
)
def test_what_a_draft_that_changes_loses_stays_within_the_budget(machine: str, change: str) -> None:
    """Over one text and over several in a row; never more is lost than the budget and one round."""
    quality = by_position(CHANGING[change])
    for told in (True, False):
        bench, over = Bench(machine, seed=5), -99.0

        def watch(round_: Round, bench: Bench = bench) -> None:
            nonlocal over
            record = bench.experience.record
            over = max(over, record.lost - TUNING.start - TUNING.share * record.emitted)

        speeds = [
            speed(bench, bench.play(stream(quality, seed, told=told), watch=watch)) for seed in range(3)
        ]
        assert speeds[0] > 0.96, speeds
        assert 3 / sum(1 / s for s in speeds) > 0.97, speeds
        assert min(speeds) > 0.92, speeds  # credit of earlier texts may be lost again
        assert over < 0.5, over


@EVERYWHERE
def test_a_draft_that_deceives_loses_what_it_had_brought_at_most(machine: str) -> None:
    """Good until it is trusted, then never right again: one text pays, with a part of what was gained."""
    bench = Bench(machine)
    speeds = [
        speed(bench, bench.play(stream(quality, i, told=False)))
        for i, quality in enumerate((0.95, 0.95, 0.0, 0.0, 0.0))
    ]
    assert min(speeds[:2]) > 1.4
    assert 256 / speeds[2] < 256 + TUNING.credit + TUNING.start + TUNING.share * 5 * 256 + 1, speeds
    assert min(speeds[3:]) > 0.97, speeds


@pytest.mark.sample(1)
@EVERYWHERE
@TOLD
def test_a_draft_that_becomes_good_late_is_used_again(machine: str, told: bool) -> None:
    """After 500 bad tokens. The text that it had not read in the meantime used to make every try too dear,
    so that it was never tried again; now it reads the end of it alone."""
    late = by_position(lambda t: 0.0 if t < 508 else 0.95)
    for seed in range(3):
        bench = Bench(machine, seed=50 * seed)
        played = bench.play(stream(late, seed, told=told), n_tokens=1200)
        generated = np.cumsum([len(r.tokens) for r in played.rounds])
        tried = [n - 500 for n, r in zip(generated, played.rounds, strict=True) if r.drafted and n > 500]
        assert tried[0] < 120, tried[:3]
        last = np.searchsorted(generated, 900)
        fast = (generated[-1] - generated[last]) * bench.one / (played.ended[-1] - played.ended[last])
        assert fast > (1.4 if machine == "compute-bound" else 2.2), fast
        bad = np.searchsorted(generated, 500)
        assert played.ended[bad] - played.ended[0] < 500 * bench.one / 0.97


def test_plain_decoding_is_timed_again_now_and_then() -> None:
    bench = Bench("memory-bound")
    played = bench.play(stream(0.98, 1), n_tokens=1500)
    generated = np.cumsum([len(r.tokens) for r in played.rounds])
    plain = [n for n, r in zip(generated, played.rounds, strict=True) if not r.drafted]
    assert max(np.diff(plain)) < TUNING.refresh + 60
    assert len(plain) < 15


# --- costs that are not as they were thought to be


@pytest.mark.sample(2)
@pytest.mark.parametrize("quality", QUALITIES.values(), ids=QUALITIES)
def test_costs_that_are_believed_wrongly_are_found_out(quality: float) -> None:
    """The table says GPU and the machine is bound by compute, or the other way round."""
    for believed, true in (("GPU", "compute-bound"), ("compute-bound", "GPU")):
        bench = Bench(true)
        scale = bench.one / (MACHINES[believed][1] / 1000)
        bench.costs.target = CostTable({n: ms / 1000 * scale for n, ms in MACHINES[believed].items()})
        texts = [stream(quality, i, told=False) for i in range(4)]
        speeds = [speed(bench, bench.play(text)) for text in texts]
        best = bench.plain() * 2 / bench.best_fixed(texts[2:])[1]
        assert speeds[0] > 0.94, speeds
        # sizes that seem too dear are not looked at again: 0.6 of the best where they are cheap in truth
        assert 2 / sum(1 / s for s in speeds[2:]) > (0.55 if quality > 0.9 else 0.85) * best, (speeds, best)


def test_a_machine_that_becomes_slower_is_no_reason_to_draft_otherwise() -> None:
    bench = Bench("memory-bound")
    first = speed(bench, bench.play(stream(0.8, 1)))
    for table in (bench.true.target, bench.true.draft):
        table.slowness.level = 3.0
    slow = [bench.play(stream(0.8, 1)) for _ in range(2)][-1]
    assert 3 * bench.plain() / slow.seconds > 0.95 * first


# --- prompts, and models that cannot go back


@pytest.mark.sample(1)
@EVERYWHERE
@TOLD
def test_a_long_prompt_is_read_by_a_bad_draft_for_next_to_nothing(machine: str, told: bool) -> None:
    """The whole request, prefill included, behind 1,000 tokens."""
    for seed in range(3):
        bench = Bench(machine, seed=20 * seed, noise=0)
        for i in range(2):
            text = stream(0.0, 10 * seed + i, told=told)
            ours = bench.play(text, n_prompt=1000)
            plain = bench.play(text, FixedLength(0), n_prompt=1000)
            assert plain.ended[-1] / ours.ended[-1] > 0.97


@EVERYWHERE
def test_a_long_prompt_is_read_whole_by_a_draft_that_has_shown_what_it_saves(machine: str) -> None:
    bench = Bench(machine)
    first = bench.play(stream(0.95, 0), n_prompt=1000)
    then = bench.play(stream(0.95, 1), n_prompt=1000)
    assert first.draft_evaluated < 600 and speed(bench, first) > 1.3
    assert then.draft_evaluated > 1000 and speed(bench, then) > 1.3


def test_a_draft_reads_nothing_until_it_is_about_to_be_used() -> None:
    bench = Bench("compute-bound")
    bench.experience.record.lost = TUNING.start + 50
    played = bench.play(stream(0.95, 0), n_prompt=500, n_tokens=64)
    assert played.draft_evaluated == 0 and speed(bench, played, 64) == pytest.approx(1, abs=0.02)


class Forgetful(Timed):
    """A recurrent target: to go back it evaluates four tokens again."""

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        (want,) = wants
        if self.tokens.size > self._tokens(want).size - self.missing(want) > 0:
            self.evaluated += 4
            self.clock.now += self.seconds(4, 0)
        return super().score(wants)


@pytest.mark.slow
@pytest.mark.sample(1)
@EVERYWHERE
def test_what_a_recurrent_target_evaluates_again_is_charged_to_the_draft(machine: str) -> None:
    """It was taken for a prompt and not counted at all: a draft that was never right made such a target
    less than half as fast, for ever."""
    for quality in QUALITIES.values():
        bench = Bench(machine, timed=Forgetful)
        speeds = [speed(bench, bench.play(stream(quality, i, told=False))) for i in range(3)]
        fixed = [
            speed(bench, bench.play(stream(quality, i, told=False), FixedLength(k)))
            for k in (2, 4, 7)
            for i in (1, 2)
        ]
        assert min(speeds) > 0.96, speeds
        best = max(2 / (1 / a + 1 / b) for a, b in zip(fixed[::2], fixed[1::2], strict=True))
        assert 2 / (1 / speeds[1] + 1 / speeds[2]) > 0.9 * min(best, best if best > 1.3 else 1.0), (
            speeds,
            fixed,
        )


# --- guesses that cost nothing


class Copying:
    """A guesser that offers as many tokens as it may, each as sure as `confidence`: right, or wrong."""

    name = "copying"

    def __init__(self, token: int, confidence: float = 0.95) -> None:
        self.token, self.confidence = token, confidence
        self.odds: Odds = proportional(0.0, 0.95)

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        n = min(limit, 16)
        return offer((self.token,) * n, (self.confidence,) * n, self.odds)

    def learn(self, judged: Judged) -> None:
        pass


@EVERYWHERE
@pytest.mark.parametrize("quality", QUALITIES.values(), ids=QUALITIES)
def test_copies_are_as_fast_with_a_draft_as_without(machine: str, quality: float) -> None:
    bench, alone = Bench(machine, noise=0), Bench(machine, noise=0)

    class NoModel(Controller):
        def _grants_model(self, ask: Ask, lag: int) -> bool:
            return False

    for i in range(2):
        ours = bench.play(stream(quality, i), guessers=[Copying(0)])
        free = NoModel(lambda streams: alone.experience.record, max_tokens=256)
        theirs = alone.play(stream(quality, i), free, guessers=[Copying(0)])
    assert ours.seconds < 1.02 * theirs.seconds
    assert speed(bench, ours) > 1.7


@pytest.mark.sample(1)
@EVERYWHERE
def test_free_guesses_that_are_never_right_are_soon_left_out(machine: str) -> None:
    for quality in (0.0, 0.75):
        bench, without, wrong = Bench(machine), Bench(machine), Copying(1)
        ours = [bench.play(stream(quality, i), guessers=[wrong]) for i in range(3)]
        theirs = [without.play(stream(quality, i)) for i in range(3)]
        assert sum(one.seconds for one in ours) < 1.06 * sum(one.seconds for one in theirs)
        assert min(speed(bench, one) for one in ours) > 0.95  # two budgets may be lost at once


def test_a_stream_is_what_it_says() -> None:
    for told in (True, False):
        s: Stream = stream(0.7, 3, told=told)
        assert s.right.mean() == pytest.approx(0.7, abs=0.02)
        sure = s.right[s.confidence > 0.75].mean()
        assert sure > 0.9 if told else sure == pytest.approx(0.7, abs=0.02)


def test_a_wrong_idea_of_plain_decoding_does_not_last() -> None:
    """Seen on a machine with slow moments: one token was thought to cost nearly as much as two, so that a
    draft that was never right seemed to lose nothing; 104 rounds in a row were drafted in vain."""
    for seed in range(3):
        bench = Bench("compute-bound", seed=90 + seed)
        bench.costs.target.points[1] = bench.costs.target.points[2]
        played = bench.play(stream(0.0, seed), n_tokens=256)
        assert sum(r.drafted > 0 for r in played.rounds) < 20
        assert played.ended[-1] - played.ended[0] < 256 * bench.one / 0.96
