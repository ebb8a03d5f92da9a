"""A draft's rows become distributions over the target's tokens: the same as of rows put into its order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fakes import distance

from edgespec.sampling.distribution import Distribution
from edgespec.sampling.row_order import RowOrder
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec.sampling.translated_sampler import SharedTokens, TranslatedSampler

N_TARGET, N_DRAFT = 5000, 6000
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "usual": Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "top-p alone": Sampling(temperature=1.2, top_k=0, top_p=0.9, min_p=0.0),
    "typical": Sampling(temperature=0.8, typical_p=0.5),
    "top-n-sigma": Sampling(temperature=1, top_k=0, top_p=1, min_p=0, top_n_sigma=1.0),
    "penalties": Sampling(repeat_penalty=1.5, frequency_penalty=0.4, presence_penalty=0.3),
    "bias": Sampling(temperature=0.7, logit_bias={token: 2.0 - token % 5 for token in range(400)}),
    "dry": Sampling(dry_multiplier=2.0, dry_allowed_length=1),
    "xtc": Sampling(xtc_probability=0.5, xtc_threshold=0.05),
    "dynamic temperature": Sampling(dynatemp_range=0.5),
    "another order": Sampling(samplers=("temperature", "top_k", "penalties"), repeat_penalty=1.3),
}


def tables(rng: np.random.Generator, n_target: int, n_draft: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns to_draft and to_target of vocabularies of which a part is shared, some of it in runs."""
    to_draft, to_target = np.full(n_target, -1, np.int32), np.full(n_draft, -1, np.int32)
    n = min(n_target, n_draft) * 4 // 5
    ours, theirs = rng.permutation(n_target)[:n], rng.permutation(n_draft)[:n]
    ours[: n // 2].sort()
    theirs[: n // 2].sort()
    to_draft[ours], to_target[theirs] = theirs, ours
    return to_draft, to_target


def reference(row: np.ndarray, to_draft: np.ndarray) -> np.ndarray:
    """Returns a row in the target's order, token by token."""
    return np.where(to_draft >= 0, row[to_draft], np.float32(-np.inf))


def as_law(found: Distribution) -> dict[tuple[int, ...], float]:
    return {(token,): prob for token, prob in zip(found.ids.tolist(), found.probs.tolist(), strict=True)}


@pytest.mark.parametrize("sizes", [(N_TARGET, N_DRAFT), (N_DRAFT, N_TARGET), (1000, 2500)], ids=str)
@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_distribution_is_that_of_the_row_in_the_targets_order(name: str, sizes: tuple[int, int]) -> None:
    rng, sampling = np.random.default_rng(len(name)), SAMPLINGS[name]
    to_draft, to_target = tables(rng, *sizes)
    shared = SharedTokens(to_draft, to_target, n_target=sizes[0], n_draft=sizes[1])
    ours, plain = TranslatedSampler(shared, sampling), Sampler(sampling, sizes[0])
    for _ in range(5):
        row = (2.5 * rng.standard_normal(sizes[1])).astype(np.float32)
        history = rng.integers(0, sizes[0], 30).astype(np.int32)
        history[-3:] = history[:3]
        wanted = plain(reference(row, to_draft), history)
        found = ours(row.copy(), history)
        assert distance(as_law(found), as_law(wanted)) < 1e-6
        assert (np.diff(found.ids) > 0).all() and abs(float(found.probs.sum()) - 1) < 1e-5
        best = wanted.likeliest()[0]
        assert ours.place(best) == to_draft[best]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_where_nothing_is_cut_off_what_is_left_out_is_slight(temperature: float) -> None:
    """What guesses are drawn from is what is told; it may differ from the draft's own by a little."""
    rng, sampling = np.random.default_rng(1), Sampling(temperature=temperature, top_k=0, top_p=1, min_p=0)
    to_draft, to_target = tables(rng, N_TARGET, N_DRAFT)
    shared = SharedTokens(to_draft, to_target, n_target=N_TARGET, n_draft=N_DRAFT)
    row = rng.permutation(-1.5 * np.log(np.arange(1, N_DRAFT + 1))).astype(np.float32)
    found = TranslatedSampler(shared, sampling)(row.copy())
    wanted = Sampler(sampling, N_TARGET)(reference(row, to_draft))
    assert distance(as_law(found), as_law(wanted)) < 0.03
    assert temperature > 1 or found.ids.size < N_TARGET / 4
    assert abs(float(found.probs.sum()) - 1) < 1e-5


def test_a_wide_distribution_is_reported_over_all_tokens() -> None:
    to_draft, to_target = tables(np.random.default_rng(2), 6000, 7000)
    shared = SharedTokens(to_draft, to_target, n_target=6000, n_draft=7000)
    row = np.random.default_rng(3).standard_normal(7000).astype(np.float32)
    found = TranslatedSampler(shared, Sampling(temperature=3, top_k=0, top_p=1, min_p=0))(row.copy())
    assert found.ids.size == 6000 and abs(float(found.probs.sum()) - 1) < 1e-5
    assert not found.probs[to_draft < 0].any()


def test_ids_of_padding_are_nobodys() -> None:
    """Rows may be longer than vocabularies, and tables may name tokens that a model does not have."""
    to_draft, to_target = np.array([0, 5, 9, -1], np.int32), np.array([0, -1, -1, -1, -1, 1, -1], np.int32)
    shared = SharedTokens(to_draft, to_target, n_target=6, n_draft=8, block=4)
    assert shared.places.tolist() == [0, 5, -1, -1, -1, -1]
    row = np.arange(8, dtype=np.float32)
    found = TranslatedSampler(shared, Sampling(temperature=1, top_p=1, min_p=0))(row)
    assert found.ids.tolist() == [0, 1] and np.isneginf(row[[1, 2, 3, 4, 6, 7]]).all()
    penalised = TranslatedSampler(shared, Sampling(temperature=1, top_p=1, min_p=0, repeat_penalty=9.0))
    assert penalised(np.arange(8, dtype=np.float32), np.array([5, 1], np.int32)).ids.size == 2


@pytest.mark.parametrize("token", range(3))
def test_a_bias_keeps_to_its_token_when_the_temperature_is_learned(token: int) -> None:
    """The draft's temperature is changed by `at`, whose sampling has been made of one that told places."""
    to_draft, to_target = np.array([2, 0, 1], np.int32), np.array([1, 2, 0], np.int32)
    shared = SharedTokens(to_draft, to_target, n_target=3, n_draft=3)
    sampler = TranslatedSampler(shared, Sampling(temperature=1, logit_bias={token: 50.0}))
    warmer = sampler.at(Sampling(temperature=1.5, logit_bias=sampler.sampling.logit_bias))
    for one in (sampler, warmer):
        assert one(np.zeros(3, np.float32)).likeliest()[0] == token


@pytest.mark.parametrize("long", [1, 2, 3])
def test_every_short_order_is_what_a_table_says(long: int) -> None:
    row = np.array([5.0, 6.0, 7.0], np.float32)
    for known in itertools.product((-1, 0, 1, 2), repeat=4):
        order = RowOrder(np.array(known, np.int32), long)
        into = order.rows(1)[0]
        order.put(row, into)
        assert into.tolist() == [row[place] if place >= 0 else -np.inf for place in known], known


@pytest.mark.parametrize("runs", [1, 3, 40])
@pytest.mark.parametrize("long", [1, 8, 10_000])
def test_rows_in_another_order_are_what_a_table_says(runs: int, long: int) -> None:
    """Copied runs, gathered places and unknown ones, in every mixture, in room that was used before."""
    rng = np.random.default_rng(runs)
    for _ in range(20):
        parts = [np.arange(n) + rng.integers(0, 400) for n in rng.integers(1, 60, runs)]
        known = np.concatenate(parts).astype(np.int32)
        for start in rng.integers(0, known.size, runs // 2):
            known[start : start + rng.integers(1, 30)] = -1
        order = RowOrder(known, long)
        into = order.rows(2)[1]
        for _ in range(2):
            row = rng.standard_normal(500).astype(np.float32)
            order.put(row, into)
            assert (into == np.where(known >= 0, row[known], -np.inf)).all()
