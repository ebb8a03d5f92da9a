"""The sampler does what llama.cpp's chain does, for any row and any settings; drawing follows it.

Two yardsticks: `fakes.reference`, the chain again in plain Python, and llama.cpp's own samplers. A row
whose nearest cut is within 1e-5 of falling elsewhere is skipped (float32 against float64), and the
tests count that such rows are rare.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import fakes
import llama_cpp as C
import numpy as np
import pytest
from numpy.typing import NDArray

import edgespec.sampling.sampler
from edgespec.errors import EdgeSpecError, LogitsError, SettingError
from edgespec.sampling.distribution import FEW, WIDE, Few, PointMass
from edgespec.sampling.sampler import (
    Distribution,
    Sampler,
    Sampling,
    draw,
    point_mass,
    sampling_for,
)
from edgespec.sampling.settings import NUMBERS
from edgespec.sampling.truncation import largest

OFF = Sampling(temperature=1, top_p=1, min_p=0)
NEAR = 1e-5
Row = NDArray[np.float32]


def settings(rng: np.random.Generator, n_vocab: int) -> Sampling:
    """Returns settings of which each stage is on about half of the time."""

    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    return Sampling(
        temperature=float(rng.choice([0, 0.05, 0.3, 0.8, 1, 1.7, 40])),
        top_k=maybe(int(rng.integers(1, n_vocab + 3)), 0),
        top_p=maybe(float(rng.choice([0, 0.1, 0.5, 0.9, 0.95, 0.999])), 1.0),
        min_p=maybe(float(rng.choice([1e-6, 0.02, 0.05, 0.5, 1])), 0.0),
        typical_p=maybe(float(rng.choice([0.1, 0.5, 0.9, 0.99])), 1.0),
        top_n_sigma=maybe(float(rng.choice([0.5, 1, 2, 5])), 0.0),
        repeat_penalty=maybe(float(rng.choice([0.7, 1.1, 1.5])), 1.0),
        frequency_penalty=maybe(float(rng.choice([-0.5, 0.1, 1.3])), 0.0),
        presence_penalty=maybe(float(rng.choice([-0.5, 0.1, 1.3])), 0.0),
        penalty_last_n=int(rng.choice([0, 1, 5, 64])),
        logit_bias=maybe({int(rng.integers(n_vocab)): float(rng.choice([-math.inf, -2, 1.5]))}, {}),
    )


def random_row(rng: np.random.Generator, n_vocab: int) -> Row:
    """Returns logits: smooth, heavy-tailed, full of ties, or with impossible tokens."""
    row = rng.normal(0, rng.choice([0.1, 2, 6]), n_vocab)
    kind = rng.integers(4)
    if kind == 0:
        row = np.round(row)  # ties everywhere
    elif kind == 1 and n_vocab > 2:
        row[rng.random(n_vocab) < 0.4] = -np.inf
        row[:2] = 0.25, 0.5
    elif kind == 2:
        row = rng.standard_cauchy(n_vocab) * 3
    return row.astype(np.float32)


def same(found: Distribution, wanted: dict[int, float], within: float = 1e-9) -> bool:
    return found.ids.tolist() == sorted(wanted) and np.allclose(
        found.probs, [wanted[t] for t in sorted(wanted)], rtol=1e-5, atol=within
    )


def without_zeros(p: Distribution) -> Distribution:
    """A distribution over much of a large vocabulary may hold tokens of probability 0."""
    return Distribution(p.ids[p.probs > 0], p.probs[p.probs > 0])


# --- against the chain in plain words


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("n_vocab", "rows"),
    [(1, 40), (2, 150), (7, 700), (63, 250), (64, 150), (65, 250), (130, 250), (1000, 120)],
)
def test_any_row_under_any_settings_comes_out_as_the_plain_chain_says(n_vocab: int, rows: int) -> None:
    rng = np.random.default_rng(n_vocab)
    compared = 0
    for _ in range(rows):
        s, row = settings(rng, n_vocab), random_row(rng, n_vocab)
        if s.logit_bias and n_vocab < 3:
            s = Sampling(temperature=s.temperature, top_p=s.top_p)  # a ban could leave nothing
        history = rng.integers(0, n_vocab, rng.integers(0, 12)).tolist()
        wanted = fakes.reference(row, history, s)
        if wanted.slack > NEAR:
            compared += 1
            assert same(Sampler(s, n_vocab)(row, history), wanted.probs), (s, row.tolist(), history)
    assert compared > 0.85 * rows, "few rows are too close to call"


@pytest.mark.slow
def test_thousands_more_rows_come_out_as_the_plain_chain_says() -> None:
    for n_vocab in (3, 31, 96, 257):
        test_any_row_under_any_settings_comes_out_as_the_plain_chain_says(n_vocab, 4000)


WIDE_SETTINGS = [
    Sampling(),
    OFF,
    Sampling(min_p=0),
    Sampling(temperature=3, top_p=0.98, min_p=0),
    Sampling(top_k=40),
    Sampling(top_k=400, top_p=1, min_p=0),
    Sampling(top_k=12_000, top_p=0.9, min_p=1e-4),
    Sampling(typical_p=0.7, top_p=1, min_p=0),
    Sampling(top_n_sigma=1.5, top_p=0.99, min_p=0),
    Sampling(repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, top_p=0.8),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("s", WIDE_SETTINGS, ids=range(len(WIDE_SETTINGS)))
@pytest.mark.parametrize("spread", [1, 4])
def test_a_vocabulary_of_20000_comes_out_as_the_plain_chain_says(s: Sampling, spread: float) -> None:
    n_vocab = 20_011
    for seed in range(20):
        rng = np.random.default_rng([seed, spread])
        row = rng.normal(0, spread, n_vocab).astype(np.float32)
        history = rng.integers(0, n_vocab, 40).tolist()
        wanted = fakes.reference(row, history, s)
        found = Sampler(s, n_vocab)(row, history)
        if wanted.slack > 1e-6:
            assert same(found, wanted.probs)
            assert found.probs.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)
            return
    pytest.fail("no row whose cuts are clear")


def test_the_order_of_the_stages_matters_and_is_llama_cpps() -> None:
    """Truncation looks at untempered probabilities; penalties come before it, temperature last."""
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    hot = Sampler(Sampling(temperature=10, top_p=0.75, min_p=0), 4)(row)
    assert hot.ids.tolist() == [0, 1], "tempered first, all four would be needed for 0.75"
    punished = Sampler(Sampling(temperature=1, top_k=1, top_p=1, min_p=0, presence_penalty=5), 4)(row, [0])
    assert punished.ids.tolist() == [1]
    after_k = Sampler(Sampling(temperature=1, top_k=2, top_p=0.6, min_p=0), 4)(row)
    assert after_k.ids.tolist() == [0], "0.5 of the remaining 0.8 is 0.625"


def test_a_share_that_is_met_exactly_is_enough_for_top_p_and_not_for_typical_p() -> None:
    """llama.cpp compares with >= in the one and with > in the other."""
    row = np.zeros(4, np.float32)
    for s, kept in [
        (Sampling(temperature=1, min_p=0, top_p=0.5), 2),
        (Sampling(temperature=1, min_p=0, top_p=1, typical_p=0.5), 3),
    ]:
        assert Sampler(s, 4)(row).ids.size == kept == len(llamas(row, [], s))


# --- against llama.cpp itself


@contextmanager
def chain(*samplers: Any) -> Iterator[Any]:
    """Owns a chain of llama.cpp's samplers."""
    made = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    for sampler in samplers:
        C.llama_sampler_chain_add(made, sampler)
    try:
        yield made
    finally:
        C.llama_sampler_free(made)


def llamas(row: Row, history: Sequence[int], s: Sampling) -> dict[int, float]:
    """Returns what llama.cpp's samplers leave of a row, in the order of its common/sampling.cpp."""
    n = row.size
    biases = (C.llama_logit_bias * max(1, len(s.logit_bias)))(*s.logit_bias.items())
    with chain(
        C.llama_sampler_init_logit_bias(n, len(s.logit_bias), biases),
        C.llama_sampler_init_penalties(
            n, s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        C.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        C.llama_sampler_init_top_k(s.top_k),
        C.llama_sampler_init_typical(s.typical_p, 0),
        C.llama_sampler_init_top_p(s.top_p, 0),
        C.llama_sampler_init_min_p(s.min_p, 0),
        C.llama_sampler_init_temp(s.temperature),
        C.llama_sampler_init_dist(1),  # fills in the probabilities
    ) as sampler:
        for token in history:
            C.llama_sampler_accept(sampler, token)
        candidates = np.zeros(n, [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        candidates["id"], candidates["logit"] = np.arange(n), row
        data = candidates.ctypes.data_as(ctypes.POINTER(C.llama_token_data))
        array = C.llama_token_data_array(data, n, -1, False)
        C.llama_sampler_apply(sampler, ctypes.byref(array))
        left = candidates[: array.size]
        left = left[left["logit"] > -np.inf]
        return dict(zip(left["id"].tolist(), left["p"].tolist(), strict=True))


@pytest.mark.parametrize(("n_vocab", "rows"), [(5, 500), (100, 300), (3000, 60)])
def test_llama_cpps_own_samplers_leave_the_same_tokens_with_the_same_probabilities(
    n_vocab: int, rows: int
) -> None:
    """Two things llama.cpp does otherwise are left out: among equal logits its sort keeps any, and typical-p
    computes 0 * log 0 where a token has no probability (so not behind top-n-sigma, nor with -inf)."""
    rng = np.random.default_rng([1, n_vocab])
    compared = 0
    for _ in range(rows):
        s = settings(rng, n_vocab)
        if s.typical_p < 1:
            s = Sampling(
                **{name: getattr(s, name) for name in s.__slots__}
                | {"top_n_sigma": 0.0, "logit_bias": {t: 1.0 for t in s.logit_bias}}
            )
        row = rng.normal(0, rng.choice([0.5, 2, 4]), n_vocab).astype(np.float32)
        history = rng.integers(0, n_vocab, rng.integers(0, 12)).tolist()
        if fakes.reference(row, history, s).slack > NEAR:
            compared += 1
            found = Sampler(s, n_vocab)(row, history)
            assert same(found, llamas(row, history, s), within=1e-5), (s, row.tolist(), history)
    assert compared > 0.85 * rows


@pytest.mark.parametrize(
    "s",
    [
        Sampling(temperature=1, top_p=1, min_p=0, top_k=50),
        Sampling(temperature=1, top_p=0.9, min_p=0),
        Sampling(temperature=1, top_p=1, min_p=0.03),
        Sampling(temperature=1, top_p=1, min_p=0, typical_p=0.8),
        Sampling(temperature=1, top_p=1, min_p=0, top_n_sigma=1),
        Sampling(temperature=0.6, top_p=1, min_p=0, repeat_penalty=1.2, penalty_last_n=8),
        Sampling(temperature=0, top_p=1, min_p=0, frequency_penalty=0.7, presence_penalty=-0.4),
        Sampling(temperature=1, top_p=1, min_p=0, logit_bias={3: 4.0, 20_000: -math.inf}),
    ],
    ids=["top_k", "top_p", "min_p", "typical", "sigma", "repeat", "presence", "bias"],
)
def test_each_stage_alone_agrees_with_llama_cpp_on_a_large_vocabulary(s: Sampling) -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        row = rng.normal(0, 3, 20_011).astype(np.float32)
        history = rng.integers(0, 20_011, 30).tolist()
        if fakes.reference(row, history, s).slack > 1e-6:
            found = Sampler(s, row.size)(row, history)
            assert same(without_zeros(found), llamas(row, history, s), within=1e-5)
            return
    pytest.fail("no row whose cuts are clear")


# --- greedy, extremes, padding


def test_temperature_0_takes_the_lowest_id_among_equals_however_it_is_truncated() -> None:
    row = np.array([1, 7, 3, 7, 7, -np.inf], np.float32)
    for s in (
        Sampling(temperature=0),
        Sampling(temperature=0, top_k=2),
        Sampling(temperature=0, typical_p=0.99, top_p=1, min_p=0),
        Sampling(temperature=0, logit_bias={0: 0.0}),
    ):
        found = Sampler(s, 6)(row)
        assert (found.ids.tolist(), found.probs.tolist()) == ([1], [1.0])


def test_typical_truncation_at_temperature_0_takes_the_best_of_what_is_typical() -> None:
    """Typical-p may drop the likeliest token; greedy then takes the likeliest of the rest, as llama.cpp."""
    row = np.log(np.array([0.3, *[0.1] * 7], np.float32))
    s = Sampling(temperature=0, typical_p=0.5, top_p=1, min_p=0)
    assert Sampler(s, 8)(row).ids.tolist() == [1]
    assert llamas(row, [], s).keys() <= set(range(1, 8))


@pytest.mark.parametrize("n_vocab", [5, WIDE + 100])
@pytest.mark.parametrize("temperature", [1e-300, 1e-50, 1e-6, 1e-3, 100])
def test_extreme_temperatures_give_sound_distributions(temperature: float, n_vocab: int) -> None:
    row = np.random.default_rng(0).normal(0, 3, n_vocab).astype(np.float32)
    row[3] = 20
    found = Sampler(Sampling(temperature=temperature, top_p=1, min_p=0), n_vocab)(row)
    assert (found.probs >= 0).all()
    assert found.probs.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert found.prob(3) == found.probs.max()
    if temperature <= 1e-3:
        assert found.prob(3) == pytest.approx(1)


@pytest.mark.parametrize("n_vocab", [5, WIDE + 100])
def test_huge_but_finite_logits_give_sound_distributions(n_vocab: int) -> None:
    row = np.full(n_vocab, -3e38, np.float32)
    row[2], row[4] = 3e38, 2.9e38
    for s in (Sampling(), OFF, Sampling(top_k=2, top_p=1, min_p=0), Sampling(min_p=0)):
        found = Sampler(s, n_vocab)(row)
        assert (found.ids.tolist(), found.probs.tolist()) == ([2], [1.0])


def test_a_row_may_be_padded_and_is_left_as_it_was() -> None:
    """llama.cpp's rows belong to llama.cpp; ids past the shared vocabulary take no part."""
    row = np.array([1, 2, 3, 99, 99], np.float32)
    for s in (
        OFF,
        Sampling(temperature=0),
        Sampling(repeat_penalty=2, logit_bias={1: 3.0}),
        Sampling(top_k=2),
    ):
        row.flags.writeable = False
        found = Sampler(s, 3)(row, [2, 4, 1])
        assert found.ids.max() <= 2
        assert row.tolist() == [1, 2, 3, 99, 99]


def test_one_sampler_serves_many_rows_without_remembering_any() -> None:
    rng = np.random.default_rng(3)
    s = Sampling(min_p=0, top_n_sigma=2, presence_penalty=0.5)
    rows = rng.normal(0, 2, (20, 300)).astype(np.float32)
    shared = Sampler(s, 300)
    for row in [*rows, *rows[::-1]]:
        once = Sampler(s, 300)(row, [1, 2])
        again = shared(row, [1, 2])
        assert np.array_equal(once.ids, again.ids) and np.array_equal(once.probs, again.probs)


def test_penalties_look_at_the_last_n_tokens_only() -> None:
    row = np.zeros(4, np.float32)
    s = Sampling(temperature=1, top_p=1, min_p=0, frequency_penalty=1, penalty_last_n=3)
    found = Sampler(s, 4)(row, [0, 0, 0, 1, 1, 2])
    weights = np.exp([0, -2, -1, 0])
    assert found.probs.tolist() == pytest.approx(weights / weights.sum())


# --- largest


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 127, 128, 1000, 4096, 20_011])
def test_the_k_largest_come_in_order_with_the_lower_id_first_among_equals(size: int) -> None:
    rng = np.random.default_rng(size)
    makers: list[Callable[[], Any]] = [
        lambda: rng.normal(size=size),
        lambda: rng.integers(-3, 3, size),
        lambda: np.zeros(size),
        lambda: np.where(rng.random(size) < 0.9, -np.inf, rng.integers(0, 3, size)),
        lambda: np.arange(size),
        lambda: -np.arange(size),
    ]
    for make in makers:
        row = make().astype(np.float32)
        wanted = np.lexsort((np.arange(size), -row))
        for k in {1, 2, 3, 10, 63, 64, 65, 400, size // 65 + 1, size // 2 + 1, size}:
            if k <= size:
                assert np.array_equal(largest(row, k), wanted[:k]), (size, k)


# --- damaged logits


@pytest.mark.parametrize(
    "s", [Sampling(), OFF, Sampling(temperature=0), Sampling(top_k=3), Sampling(typical_p=0.5)]
)
@pytest.mark.parametrize("damage", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_reported_not_sampled(s: Sampling, damage: float) -> None:
    for n_vocab in (4, 300):
        row = np.zeros(n_vocab, np.float32)
        row[-1] = damage
        with pytest.raises(LogitsError, match=f"{damage}.*damaged"):
            Sampler(s, n_vocab)(row)
    with pytest.raises(LogitsError, match="-inf"):
        Sampler(s, 4)(np.full(4, -np.inf, np.float32))


# --- settings


@pytest.mark.parametrize(
    ("name", "values"),
    {
        "temperature": [-0.1, math.nan, math.inf, "1", True, None],
        "top_k": [-1, 1.5, 2**40, "40", False],
        "top_p": [-0.01, 1.01, math.nan],
        "min_p": [-1, 2],
        "typical_p": [-0.5, 1.5],
        "top_n_sigma": [-1, math.nan],
        "repeat_penalty": [0, -1, 101],
        "frequency_penalty": [-101, math.inf],
        "presence_penalty": [101, math.nan],
        "penalty_last_n": [-2, 2.5],
    }.items(),
)
def test_a_nonsense_value_is_refused_by_name_with_what_it_must_be(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(SettingError) as caught:
            Sampling(**{name: value})
        message = str(caught.value)
        assert message == f"{name} is {value!r}: it must be {NUMBERS[name].allowed}"
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("bias", "complaint"),
    [
        ({-1: 1.0}, "a token of logit_bias is -1"),
        ({1.5: 1.0}, "a token of logit_bias is 1.5"),
        ({3: math.nan}, "logit_bias of token 3 is nan"),
        ({3: math.inf}, "logit_bias of token 3 is inf"),
        ({3: "much"}, "logit_bias of token 3 is 'much'"),
        ({3: 1e300}, "logit_bias of token 3 is 1e.300"),
    ],
)
def test_a_nonsense_bias_is_refused_with_its_token(bias: dict[Any, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        Sampler(Sampling(logit_bias=bias), 10)(np.zeros(10, np.float32))


def test_a_bias_for_a_token_that_does_not_exist_is_refused_with_the_size_of_the_vocabulary() -> None:
    with pytest.raises(SettingError, match="token 32000: this vocabulary has 32,000 tokens"):
        Sampler(Sampling(logit_bias={32_000: 1.0}), 32_000)


def test_a_ban_on_every_token_is_the_users_doing_and_not_the_models() -> None:
    """The complaint once was that the model is damaged and should be downloaded again."""
    with pytest.raises(EdgeSpecError) as caught:
        Sampler(Sampling(logit_bias={0: -math.inf, 1: -math.inf}), 2)(np.zeros(2, np.float32))
    assert "logit_bias" in str(caught.value) and "download" not in str(caught.value)


# --- what the user says, what the file says, what is usual


def test_without_wishes_or_metadata_the_defaults_hold() -> None:
    s = sampling_for({})
    assert (s.temperature, s.top_p, s.min_p, s.top_k) == (0.8, 0.95, 0.05, 0)
    assert not s.penalises


def test_the_users_wish_stands_over_the_file_and_the_file_over_the_defaults() -> None:
    file = {
        "general.sampling.temp": "0.6",
        "general.sampling.top_k": "20",
        "general.sampling.top_p": "0.9",
        "general.sampling.min_p": "0.0",
        "general.sampling.penalty_last_n": "128",
        "general.sampling.penalty_repeat": "1.05",
        "general.name": "irrelevant",
    }
    s = sampling_for(file, temperature=None, top_k=0, presence_penalty=0.5)
    wanted = Sampling(
        temperature=0.6,
        top_k=0,
        top_p=0.9,
        min_p=0,
        penalty_last_n=128,
        repeat_penalty=1.05,
        presence_penalty=0.5,
    )
    assert s == wanted


@pytest.mark.parametrize("value", ["", "warm", "nan", "inf", "-3", "1e999", "0x10", "  "])
def test_nonsense_in_the_file_is_passed_over(value: str) -> None:
    keys = ("temp", "top_k", "top_p", "min_p", "penalty_last_n", "penalty_repeat")
    assert sampling_for({f"general.sampling.{key}": value for key in keys}) == Sampling()


def test_one_nonsense_value_in_the_file_does_not_spoil_the_others() -> None:
    assert sampling_for({"general.sampling.temp": "hot", "general.sampling.top_k": "40.0"}) == Sampling(
        top_k=40
    )


def test_nonsense_from_the_user_is_refused() -> None:
    with pytest.raises(SettingError, match="top_p is 3"):
        sampling_for({"general.sampling.top_p": "0.9"}, top_p=3)


# --- drawing


def test_a_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    d = Distribution(np.array([2, 5, 9]), np.array([0.25, 0.5, 0.25]))
    almost = math.nextafter
    for u, token in [
        (0.0, 2),
        (almost(0.25, 0), 2),
        (0.25, 5),
        (almost(0.75, 0), 5),
        (0.75, 9),
        (almost(1, 0), 9),
    ]:
        assert draw(d, u) == token


@pytest.mark.parametrize("sums_to", [0.4, 1.0, 3.0])
def test_weights_need_not_sum_to_1_and_a_token_without_weight_is_never_drawn(sums_to: float) -> None:
    """In each of the three shapes: few tokens in lists, arrays, and arrays that are cut into blocks."""
    weights = [0, 0.25 * sums_to, 0, 0.75 * sums_to, 0, 0]
    probs = np.zeros(3 * WIDE)
    probs[[1, 2 * WIDE]] = weights[1], weights[3]
    few, several = Few([2, 5, 9, 11, 12, 13], weights), Distribution(np.arange(6), np.array(weights))
    wide = Distribution(np.arange(3 * WIDE), probs)
    for d, low, high in ((few, 5, 11), (several, 1, 3), (wide, 1, 2 * WIDE)):
        for u in (0.0, 1e-300, math.nextafter(0.25, 0)):
            assert draw(d, u) == low
        for u in (0.25, 0.5, math.nextafter(1, 0), 1.0):  # 1: what rounding makes of the last number below it
            assert draw(d, u) == high


def test_blocks_without_weight_are_passed_over_and_borders_belong_to_what_follows() -> None:
    probs = np.zeros(4 * WIDE, np.float32)
    probs[[WIDE + 7, 3 * WIDE]] = 0.5
    d = Distribution(np.arange(4 * WIDE), probs)
    tokens = [draw(d, u) for u in (0.0, math.nextafter(0.5, 0), 0.5, math.nextafter(1, 0))]
    assert tokens == [WIDE + 7, WIDE + 7, 3 * WIDE, 3 * WIDE]


@pytest.mark.parametrize("n", [WIDE, WIDE + 1, 3 * WIDE, 20_011])
def test_a_draw_from_a_wide_distribution_is_the_same_inverse(n: int) -> None:
    """Past 4,096 tokens a block is found first; the answer is that of one float64 cumulative sum."""
    rng = np.random.default_rng(n)
    probs = rng.gamma(0.3, size=n).astype(np.float32)
    probs[rng.random(n) < 0.5] = 0
    d = Distribution(np.arange(n) * 2 + 1, probs / probs.sum())
    cumulative = d.probs.cumsum(dtype=np.float64)
    for u in [0.0, *rng.random(500).tolist(), math.nextafter(1, 0)]:
        at = int(cumulative.searchsorted(u * cumulative[-1], side="right"))
        if u in (0.0, 1) or np.abs(cumulative - u * cumulative[-1]).min() > 1e-12:
            assert draw(d, u) == d.ids[at]
        assert d.prob(draw(d, u)) > 0


def test_a_draw_at_the_border_of_a_block_has_weight() -> None:
    """A residual is full of zeros; where blocks meet, rounding must not land on one of them."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        probs = rng.gamma(0.3, size=3 * WIDE).astype(np.float32)
        for border in (WIDE, 2 * WIDE, 3 * WIDE):
            probs[border - 5 : border] = 0
            probs[border : border + 5] = 0
        d = Distribution(np.arange(3 * WIDE), probs)
        sums = d.probs.reshape(3, WIDE).sum(axis=1, dtype=np.float64).cumsum()
        for share in sums[:2] / sums[-1]:
            for u in (math.nextafter(share, 0), share, math.nextafter(share, 1)):
                assert d.prob(draw(d, u)) > 0


@pytest.mark.parametrize("n", [4, WIDE + 8])
def test_draws_are_distributed_as_stated(n: int) -> None:
    """Chi-square over 20,000 draws at rate 1e-6."""
    weights = np.zeros(n)
    weights[-4:] = [1, 2, 3, 4]
    d = fakes.distribution_of(weights + (1e-6 if n > WIDE else 0))
    rng = np.random.default_rng(5)
    counts = Counter(max(draw(d, rng.random()) - (n - 5), 0) for _ in range(20_000))
    expected = {i + 1: float(d.prob(n - 4 + i)) for i in range(4)}
    expected[0] = 1 - sum(expected.values()) if n > WIDE else 0.0
    assert fakes.fits(counts, expected)


def test_a_point_mass_is_certain() -> None:
    d = point_mass(7)
    assert (d.prob(7), d.prob(6), draw(d, 0.999)) == (1, 0, 7)


@pytest.mark.parametrize("min_p", [0.0, 1e-6, 0.05, 0.5])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 0.999999])
def test_the_short_way_to_a_nucleus_leaves_what_the_whole_row_leaves(
    top_p: float, min_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat and peaked rows, ties, banned tokens: decided by the bounds, by the mass, or by neither."""
    rng = np.random.default_rng(21)
    rows = [
        rng.normal(scale=scale, size=20_011).astype(np.float32) for scale in (0.5, 1.5, 2.5, 4, 8, 15) * 3
    ]
    rows[5][rng.integers(0, 20_011, 5_000)] = -np.inf
    rows[7] = np.round(rows[7])
    rows[9][-7:] += 20  # the largest are in no block
    ways = Counter[str]()

    def noted(name: str) -> Callable[..., Any]:
        way = getattr(edgespec.sampling.sampler, name)

        def spied(*arguments: Any) -> Any:
            *others, mass_of = arguments
            asked: list[float] = []
            found = way(*others, lambda *a: asked.append(mass_of(*a)) or asked[0])
            ways[f"{name}: " + ("neither" if found is None else "mass" if asked else "bounds")] += 1
            return found

        return spied

    sampler = Sampler(Sampling(temperature=1, top_p=top_p, min_p=min_p), 20_011)
    for name in ("few", "head"):
        monkeypatch.setattr(f"edgespec.sampling.sampler.{name}", noted(name))
    short = [sampler(row) for row in rows]
    for name in ("few", "head"):
        monkeypatch.setattr(f"edgespec.sampling.sampler.{name}", lambda *_: None)
    for quick, row in zip(short, rows, strict=True):
        whole = sampler(row)
        assert np.array_equal(quick.ids, whole.ids)
        assert np.allclose(quick.probs, whole.probs, rtol=2e-6)
    assert min_p < 0.05 or "few: bounds" in ways
    assert top_p > 0.99 or (min_p and "few: bounds" in ways) or "head: bounds" in ways
    assert top_p > 0.99 or len(ways) > 1, "several ways were really taken"


@pytest.mark.parametrize("top_k", [1, 2, 20, 64, 65])
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.0), (0.8, 0.0), (0.95, 0.05), (0.3, 0.5)])
def test_few_tokens_are_reported_in_lists_and_as_the_whole_row_has_them(
    top_k: int, top_p: float, min_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(23)
    rows = [rng.normal(scale=scale, size=5_003).astype(np.float32) for scale in (0.5, 2, 8) * 3]
    rows[3][rng.integers(0, 5_003, 4_000)] = -np.inf
    rows[4][10:] = -np.inf  # fewer than top-k
    rows[5] = np.round(rows[5])
    sampler = Sampler(Sampling(temperature=0.7, top_k=top_k, top_p=top_p, min_p=min_p), 5_003)
    quick = [sampler(row) for row in rows]
    assert top_k > FEW or all(isinstance(found, Few | PointMass) for found in quick)
    assert top_k <= FEW or any(isinstance(found, Few) for found in quick) == (min_p > 0)
    monkeypatch.setattr("edgespec.sampling.sampler.few", lambda *_: None)
    for found, row in zip(quick, rows, strict=True):
        whole = sampler(row)
        assert np.array_equal(found.ids, whole.ids)
        assert np.allclose(found.probs, whole.probs, rtol=2e-6)
        assert found.likeliest()[0] == whole.likeliest()[0]
        assert [draw(found, u) for u in (0.0, 0.4, 0.999)] == [draw(whole, u) for u in (0.0, 0.4, 0.999)]


def test_a_row_whose_last_logits_are_no_numbers_is_refused() -> None:
    """The logits past the last whole block were overlooked by the short way to a nucleus."""
    row = np.random.default_rng(22).normal(size=5_001).astype(np.float32)
    row[-1] = np.nan
    with pytest.raises(LogitsError):
        Sampler(Sampling(), 5_001)(row)


ADVERSARIAL: dict[str, Callable[[np.random.Generator, int], Any]] = {
    "all equal": lambda rng, n: np.zeros(n),
    "two values": lambda rng, n: rng.integers(0, 2, n),
    "few values": lambda rng, n: rng.integers(-40, 3, n),
    "one token alone": lambda rng, n: np.where(np.arange(n) == n // 2, 0, -np.inf),
    "mostly banned": lambda rng, n: np.where(rng.random(n) < 0.99, -np.inf, rng.normal(size=n)),
    "huge": lambda rng, n: rng.normal(size=n) * 3e37,
    "huge and near": lambda rng, n: 3.4e38 - np.abs(rng.normal(size=n)) * 1e32,
    "far below zero": lambda rng, n: rng.normal(size=n) - 1e4,
    "flat": lambda rng, n: rng.normal(size=n) * 0.01,
    "spread": lambda rng, n: rng.normal(size=n) * 3,
    "the largest last": lambda rng, n: np.linspace(-30, 0, n),
    "a head and a cliff": lambda rng, n: np.where(np.arange(n) % 97 == 0, rng.normal(size=n), -20.0),
}


@pytest.mark.parametrize("n", [WIDE - 1, WIDE, WIDE + 1, 64 * 100, 64 * 100 + 63])
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_rows_made_to_mislead_are_cut_as_the_whole_row_sorted_is(kind: str, n: int) -> None:
    """Against the plain definition: sort all, keep the shortest head that has top-p, drop below min-p."""
    rng = np.random.default_rng([7, n])
    row = ADVERSARIAL[kind](rng, n).astype(np.float32)
    order = np.lexsort((np.arange(n), -row))
    logits = np.array(row[order], np.longdouble)
    weights = np.exp(logits - logits[0])
    shares = weights.cumsum() / weights.sum()
    compared = 0
    for top_p, min_p in itertools.product((0.0, 0.3, 0.95, 0.9999, 1.0), (0.0, 1e-6, 0.05, 1.0)):
        inside = logits >= logits[0] + (np.log(np.longdouble(min_p)) if min_p else -np.inf)
        inside &= weights > 0
        share_before = np.concatenate([[0], shares[:-1]])
        kept = inside & ((share_before < top_p) | (np.arange(n) == 0) | (top_p >= 1))
        found = Sampler(Sampling(temperature=1, top_p=top_p, min_p=min_p), n)(
            np.append(row, np.float32(9e37))
        )
        spacing = 1e-6 * max(1.0, float(np.abs(logits[0])))  # of float32 numbers around there
        if 0 < top_p < 1 and np.abs(shares - top_p).min() < 1e-6:
            continue  # too close to call
        if 0 < min_p < 1 and np.abs(logits - logits[0] - math.log(min_p)).min() < spacing:
            continue
        compared += 1
        assert np.array_equal(found.ids, np.sort(order[kept])), (top_p, min_p)
        plain = weights[kept] / weights[kept].sum()
        assert np.allclose(found.probs, plain[np.argsort(order[kept])].astype(float), rtol=1e-4, atol=1e-9)
    assert compared >= 10


def test_minus_one_is_the_whole_context_for_penalties_as_for_dry() -> None:
    """llama.cpp's `repeat_last_n: -1` was refused."""
    wanted = Sampling(penalty_last_n=-1, repeat_penalty=1.5)
    assert wanted.penalises and wanted.in_context(2048) == replace(wanted, penalty_last_n=2048)
    assert Sampling().in_context(2048) == Sampling()
