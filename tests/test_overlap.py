"""Drafting while the target verifies: the same rounds, from logits that are ready sooner, or from none."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from fakes import TableModel
from fakes import rounds_of as stepped

from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.costs import Beside, measure_beside
from edgespec.core.pace.pace import FixedLength
from edgespec.core.text import TextRelease
from edgespec.core.values import Round
from edgespec.core.verify import Coupled, Independent, Rule
from edgespec.engine.parallel_draft import ParallelDraft
from edgespec.errors import FatalDecodeError
from edgespec.sampling.sampler import Sampler, Sampling

N_VOCAB = 12
ALWAYS = Beside(0.0, 1.0, 0.0)
GREEDY = Sampling(temperature=0)
WARM = Sampling(temperature=1, top_p=1, min_p=0)


class Slow(TableModel):
    """A target that takes a moment, so that something can happen beside it."""

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        time.sleep(0.004)
        return super().score(wants)


def pair(spread: float, *, slow: bool = True) -> tuple[TableModel, TableModel]:
    target = Slow(N_VOCAB, seed=5) if slow else TableModel(N_VOCAB, seed=5)
    return target, TableModel(N_VOCAB, seed=6, near=target, spread=spread)


def rounds_of(
    sampling: Sampling, rule: Rule, beside: Beside | None, *, spread: float = 0.1, k: int = 3
) -> tuple[list[Round], ParallelDraft | None, TableModel]:
    """One text of 60 tokens, with the draft ahead or (None) as ever; with who read and what it read."""
    target, draft = pair(spread, slow=beside is not None)
    ahead = ParallelDraft(target, draft, beside, n_ctx=500, n_vocab=N_VOCAB) if beside else None
    sampler = Sampler(sampling, N_VOCAB)
    prompt = np.array([1, 2, 3], np.int32)
    loop = generate(
        prompt,
        drafter=Competition([], DraftModel(sampler, n_ctx=500, n_vocab=N_VOCAB)),
        sampler=sampler,
        rule=rule,
        text=TextRelease(lambda token: bytes([97 + token])),
        limits=Limits(60, 512),
    )
    contexts = {"target": target, "draft": draft}
    scorers = {"target": ahead.target, "draft": ahead.draft} if ahead else None
    try:
        return list(stepped(loop, contexts, FixedLength(k), prompt, scorers=scorers)), ahead, draft
    finally:
        if ahead:
            ahead.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0], ids=["a perfect draft", "a fair one", "a useless one"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_every_round_is_what_it_is_without_reading_ahead(sampling: Sampling, spread: float) -> None:
    """The drawn ones with the same random numbers: the draft's logits are the same, so all draws are."""
    for seed in range(3):
        without, _, _ = rounds_of(sampling, Independent(np.random.default_rng(seed)), None, spread=spread)
        ahead, _, _ = rounds_of(sampling, Independent(np.random.default_rng(seed)), ALWAYS, spread=spread)
        assert ahead == without
        without, _, _ = rounds_of(sampling, Coupled(seed), None, spread=spread)
        assert rounds_of(sampling, Coupled(seed), ALWAYS, spread=spread)[0] == without


def test_a_perfect_draft_has_its_logits_before_they_are_asked_for() -> None:
    rounds, ahead, _ = rounds_of(GREEDY, Coupled(1), ALWAYS, spread=0.0)
    assert ahead and ahead.used >= 2 * (len(rounds) - 4)  # of three rows a round
    assert ahead.expected > 0.8


def test_a_useless_draft_has_nothing_ready_and_that_is_learned() -> None:
    _, ahead, _ = rounds_of(GREEDY, Coupled(1), ALWAYS, spread=5.0)
    assert ahead and ahead.used < 6 and ahead.expected < 0.1


def test_nothing_is_read_ahead_where_it_does_not_pay() -> None:
    """Seconds that a verification takes longer weigh against those of drafting that it hides."""
    rounds, ahead, draft = rounds_of(GREEDY, Coupled(1), Beside(0.01, 0.005, 0.001), spread=0.0)
    assert ahead and ahead.used == 0
    plain, _, alone = rounds_of(GREEDY, Coupled(1), None, spread=0.0)
    assert rounds == plain and draft.evaluated == alone.evaluated


def test_what_pays_depends_on_how_often_it_is_right() -> None:
    beside = Beside(seconds=0.002, hidden=0.010, step=0.004)
    assert beside.pays(0.9) and not beside.pays(0.3)
    assert not Beside(0.0, 0.0, 0.0).pays(1.0)


def test_the_thread_is_done_when_the_target_is() -> None:
    """The draft's context is not for two threads at once."""
    busy = threading.Lock()

    class Guarded(TableModel):
        def score(self, wants: Sequence[Want]) -> list[Rows]:
            assert busy.acquire(blocking=False), "two threads in one context"
            try:
                time.sleep(0.001)
                return super().score(wants)
            finally:
                busy.release()

    target = Slow(N_VOCAB, seed=5)
    draft = Guarded(N_VOCAB, seed=6, near=target, spread=0.2)
    ahead = ParallelDraft(target, draft, ALWAYS, n_ctx=500, n_vocab=N_VOCAB)
    tokens = np.array([1, 2, 3], np.int32)
    for _ in range(10):
        ahead.draft.score([Want(tokens, (), 1)])
        ahead.target.score([Want(tokens, (4, 5), 3)])
        assert busy.acquire(blocking=False)
        busy.release()
    ahead.close()


def test_a_draft_that_fails_in_the_thread_leaves_the_verification_alone() -> None:
    """Who asks it next is told."""
    target, _ = pair(0.0)

    class Failing(TableModel):
        def score(self, wants: Sequence[Want]) -> list[Rows]:
            if threading.current_thread() is not threading.main_thread():
                raise FatalDecodeError("no")
            return super().score(wants)

    draft = Failing(N_VOCAB, seed=6, near=target, spread=0.0)
    ahead = ParallelDraft(target, draft, ALWAYS, n_ctx=500, n_vocab=N_VOCAB)
    tokens = np.array([1, 2, 3], np.int32)
    ahead.draft.score([Want(tokens, (), 1)])
    rows = ahead.target.score([Want(tokens, (4,), 2)])[0].copy()
    assert np.array_equal(rows, target.score([Want(tokens, (4,), 2)])[0])
    assert ahead.draft.missing(Want(np.array([1, 2, 3, 4, 5], np.int32))) > 0
    ahead.close()


def test_a_row_is_given_out_only_for_exactly_the_tokens_it_follows() -> None:
    """The mutant that looks at the length alone answers for another text."""
    target, draft = pair(0.0)
    ahead = ParallelDraft(target, draft, ALWAYS, n_ctx=500, n_vocab=N_VOCAB)
    tokens = np.array([1, 2, 3], np.int32)
    ahead.draft.score([Want(tokens, (), 1)])
    ahead.target.score([Want(tokens, (4,), 2)])
    bonus = int(draft.row([1, 2, 3, 4])[:N_VOCAB].argmax())
    right = Want(np.array([1, 2, 3, 4, bonus], np.int32))
    wrong = Want(np.array([1, 2, 3, 4, (bonus + 1) % N_VOCAB], np.int32))
    found = ahead.row(right)
    assert found is not None and np.array_equal(found[0], draft.row([1, 2, 3, 4, bonus]))
    assert ahead.row(wrong) is None
    assert ahead.row(Want(right.tokens, (), 1, 1)) is None
    ahead.close()


def test_reading_ahead_stops_where_the_draft_is_full() -> None:
    target, draft = pair(0.0)
    ahead = ParallelDraft(target, draft, ALWAYS, n_ctx=5, n_vocab=N_VOCAB)
    tokens = np.array([1, 2, 3], np.int32)
    ahead.draft.score([Want(tokens, (), 1)])
    ahead.target.score([Want(tokens, (4,), 2)])
    assert len(draft.texts[0]) <= 5
    ahead.close()


def test_two_things_that_do_not_disturb_each_other_are_seen_to_hide_one_another() -> None:
    """Sleeping needs no core. Bounds are wide: machines pause."""
    found = measure_beside(
        lambda: time.sleep(0.03), lambda: time.sleep(0.005), alone=0.03, one_step=0.005, steps=4
    )
    assert found.hidden >= 0.01 and found.pays(0.9)


def test_two_things_that_want_the_same_core_are_seen_to_hide_nothing() -> None:
    lock = threading.Lock()

    def alone(seconds: float) -> None:
        with lock:
            time.sleep(seconds)

    found = measure_beside(lambda: alone(0.03), lambda: alone(0.01), alone=0.03, one_step=0.01, steps=4)
    assert not found.pays(0.9)


@pytest.mark.parametrize("read_most", [10_000, 20])
@pytest.mark.parametrize("beside", [None, ALWAYS], ids=["as ever", "reading ahead"])
def test_a_draft_with_a_short_memory_is_of_use_to_the_end_of_a_long_text(
    beside: Beside | None, read_most: int
) -> None:
    """Its window moves on; what the pace lets it read of a prompt, and what it reads ahead, follow it."""

    class Reading(FixedLength):
        def window(self, lag: int) -> int:
            return min(lag, read_most)

    target = TableModel(N_VOCAB, seed=5)
    draft = TableModel(N_VOCAB, seed=6, near=target, spread=0.1)
    ahead = ParallelDraft(target, draft, beside, n_ctx=80, n_vocab=N_VOCAB) if beside else None
    sampler = Sampler(GREEDY, N_VOCAB)
    prompt = np.random.default_rng(1).integers(0, N_VOCAB, 50).astype(np.int32)
    loop = generate(
        prompt,
        drafter=Competition([], DraftModel(sampler, n_ctx=80, n_vocab=N_VOCAB)),
        sampler=sampler,
        rule=Coupled(1),
        text=TextRelease(lambda token: bytes([97 + token])),
        limits=Limits(300, 512),
    )
    contexts = {"target": target, "draft": draft}
    scorers = {"target": ahead.target, "draft": ahead.draft} if ahead else None
    rounds = list(stepped(loop, contexts, Reading(4), prompt, scorers=scorers))
    if ahead:
        ahead.close()
    text = prompt.tolist()
    for round_ in rounds:
        for token in round_.tokens:
            assert token == int(target.row(text)[:N_VOCAB].argmax())
            text.append(token)
    late = rounds[len(rounds) // 2 :]
    assert sum(r.accepted for r in late) > 0.7 * sum(r.drafted for r in late) > 0
    assert all(len(held) <= 80 for held in draft.texts.values())
