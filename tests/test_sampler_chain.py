"""XTC, DRY, dynamic temperature, samplers in any order: as llama.cpp's own, and exact under speculation."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import fakes
import llama_cpp as C
import numpy as np
import pytest
from fakes import Restless, TableModel, speculate, tokens_of
from test_decode import DRAFTERS, drafter_named, emitted, exact_law
from test_sampling import chain

from edgespec.core.verify import Coupled, Independent, verify_block, verify_tokens
from edgespec.errors import SettingError
from edgespec.llama.model import Model
from edgespec.sampling import sampler
from edgespec.sampling.repetition import Breakers, Repetition, _lengths, last_of_text
from edgespec.sampling.sampler import QUICK, Sampler, Sampling
from edgespec.sampling.settings import LETTERS, ORDER, sampler_order

RULES = pytest.mark.parametrize("judge", [verify_block, verify_tokens])
WIDE = Sampling(temperature=1.0, top_p=1.0, min_p=0.0)
MANY = 30  # tokens in most rows here


def llamas(
    row: np.ndarray, history: Sequence[int], s: Sampling, vocab: Any = None, breakers: Sequence[str] = ()
) -> dict[int, float]:
    """Returns what llama.cpp's own samplers make of a row, in the order of `s.samplers`."""
    n = row.size
    texts = (ctypes.c_char_p * max(1, len(breakers)))(*(text.encode() for text in breakers))
    make = {
        "penalties": lambda: C.llama_sampler_init_penalties(
            n, s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        "dry": lambda: C.llama_sampler_init_dry(
            vocab,
            s.dry_multiplier,
            s.dry_base,
            s.dry_allowed_length,
            s.dry_penalty_last_n,
            texts,
            len(breakers),
        ),
        "top_n_sigma": lambda: C.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        "top_k": lambda: C.llama_sampler_init_top_k(s.top_k),
        "typ_p": lambda: C.llama_sampler_init_typical(s.typical_p, 0),
        "top_p": lambda: C.llama_sampler_init_top_p(s.top_p, 0),
        "min_p": lambda: C.llama_sampler_init_min_p(s.min_p, 0),
        "xtc": lambda: C.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, 1),
        "temperature": lambda: C.llama_sampler_init_temp_ext(
            s.temperature, s.dynatemp_range, s.dynatemp_exponent
        ),
    }
    on = s.stages_on() - (set() if s.repeats_dry else {"dry"})
    stages = [make[name]() for name in s.samplers if name in on]
    with chain(*stages, C.llama_sampler_init_dist(1)) as sampler:
        for token in history:
            C.llama_sampler_accept(sampler, token)
        candidates = np.zeros(n, [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        candidates["id"], candidates["logit"] = np.arange(n), row
        data = candidates.ctypes.data_as(ctypes.POINTER(C.llama_token_data))
        array = C.llama_token_data_array(data, n, -1, False)
        C.llama_sampler_apply(sampler, ctypes.byref(array))
        at = ctypes.addressof(array.data.contents) - candidates.ctypes.data  # XTC moves the beginning
        left = candidates[at // candidates.itemsize :][: array.size]
        left = left[(left["logit"] > -np.inf) & (left["p"] > 0)]
        return dict(zip(left["id"].tolist(), left["p"].tolist(), strict=True))


def apart(found: fakes.Distribution, wanted: dict[int, float]) -> float:
    own = dict(zip(found.ids.tolist(), found.probs.tolist(), strict=True))
    return fakes.distance(own, wanted)


def random_settings(rng: np.random.Generator) -> Sampling:
    def maybe(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    return Sampling(
        temperature=float(rng.choice([0, 0.3, 0.8, 1.7])),
        top_k=maybe(int(rng.integers(2, MANY)), 0),
        top_p=maybe(float(rng.choice([0.5, 0.9])), 1.0),
        min_p=maybe(float(rng.choice([0.02, 0.2])), 0.0),
        typical_p=maybe(float(rng.choice([0.5, 0.9])), 1.0),
        top_n_sigma=maybe(float(rng.choice([1, 2])), 0.0),
        repeat_penalty=maybe(1.3, 1.0),
        presence_penalty=maybe(0.4, 0.0),
        xtc_probability=maybe(1.0, 0.0),
        xtc_threshold=float(rng.choice([0.05, 0.2, 0.4])),
        dynatemp_range=maybe(float(rng.choice([0.3, 1.0])), 0.0),
        dynatemp_exponent=float(rng.choice([0.5, 1.0, 2.0])),
    )


def at_an_edge(s: Sampling, row: np.ndarray, history: Sequence[int], found: fakes.Distribution) -> bool:
    """True where a cut would fall elsewhere if the row were a little different."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        near = row + rng.normal(0, 1e-5, row.size).astype(np.float32)
        if Sampler(s, row.size)(near, history).ids.tolist() != found.ids.tolist():
            return True
    return False


@pytest.mark.parametrize("order", ["usual", "any"])
def test_rows_come_out_as_of_llama_cpps_own_samplers_in_any_order(order: str) -> None:
    """Two things llama.cpp does otherwise are left out, both behind top-n-sigma, which leaves what it bans in
    place: typical-p computes 0 * log 0 of it, and the dynamic temperature counts it as if it might come."""
    rng = np.random.default_rng(5)
    edges = worked = 0
    for _ in range(300):
        s = random_settings(rng)
        if order == "any":
            s = replace(s, samplers=tuple(rng.permutation(ORDER)[: rng.integers(2, 10)].tolist()))
        if s.typical_p < 1 and (s.top_n_sigma > 0 or s.temperature == 0):
            s = replace(s, typical_p=1.0)
        if s.dynatemp_range > 0:
            s = replace(s, top_n_sigma=0.0)
        row = rng.normal(0, rng.choice([0.5, 2, 4]), MANY).astype(np.float32)
        history = rng.integers(0, MANY, rng.integers(0, 12)).tolist()
        found = Sampler(s, MANY)(row, history)
        if apart(found, llamas(row, history, s)) > 1e-5:
            assert at_an_edge(s, row, history, found), (s, row.tolist(), history)
            edges += 1
        worked += s.excludes_top and found.ids.size < MANY
    assert edges < 4 and worked > 25


def test_the_lot_of_xtc_is_weighed_and_not_drawn() -> None:
    rng = np.random.default_rng(6)
    for s in (WIDE, replace(WIDE, temperature=0), replace(WIDE, top_k=9, dynatemp_range=0.5)):
        for share in (0.2, 0.5, 0.9):
            row = rng.normal(0, 1.5, MANY).astype(np.float32)
            off, on, some = (
                Sampler(replace(s, xtc_probability=x, xtc_threshold=0.05), MANY)(row)
                for x in (0.0, 1.0, share)
            )
            every = np.arange(MANY)
            assert np.abs(some.on(every) - (1 - share) * off.on(every) - share * on.on(every)).max() < 1e-12
            assert off.likeliest()[0] != on.likeliest()[0]


def test_xtc_counts_a_token_that_is_exactly_as_likely_as_its_threshold() -> None:
    row = np.zeros(4, np.float32)  # a quarter each
    found = Sampler(replace(WIDE, temperature=1, xtc_probability=1.0, xtc_threshold=0.25), 4)(row)
    assert found.likeliest() == (3, 1.0), "of equals, the last stays"


# --- DRY


def tails(breakers: Sequence[Sequence[int]]) -> dict[int, list[tuple[int, ...]]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for first, *rest in breakers:
        found.setdefault(first, []).append(tuple(rest))
    return found


@pytest.mark.parametrize(
    ("history", "breakers", "allowed", "wanted"),
    [  # token -> length of the repetition that it would go on with
        ([1, 2, 3, 1, 2], [], 2, {3: 2}),
        ([1, 2, 3, 3, 2, 3, 7, 1, 2, 3], [], 2, {3: 3, 7: 2}),
        ([1, 2, 3, 1, 2], [[2]], 2, {}),
        ([1, 2, 3, 1, 2], [[1]], 2, {}),
        ([9, 1, 2, 3, 9, 1, 2], [[9]], 2, {3: 2}),
        ([1, 2, 3, 4, 1, 2, 3], [[1, 2]], 1, {4: 1}),
        ([1, 2, 9, 1, 2], [[9]], 2, {}),  # what follows is a breaker itself
        ([5, 5, 5, 5], [], 2, {5: 3}),
        ([1, 2, 3], [], 2, {}),
        ([1], [], 2, {}),
        ([], [], 2, {}),
    ],
)  # fmt: skip
def test_what_would_repeat_loses_by_the_length_of_the_repetition(
    history: list[int], breakers: list[list[int]], allowed: int, wanted: dict[int, int]
) -> None:
    s = replace(WIDE, dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=allowed)
    tokens, less = Repetition(s, tails(breakers)).penalties(history)
    assert dict(zip(tokens.tolist(), less.tolist(), strict=True)) == {
        token: 0.5 * 2.0 ** (length - allowed) for token, length in wanted.items()
    }


@pytest.mark.parametrize("stage", ["dry", "penalties"])
def test_what_repeats_loses_behind_a_stage_that_cut_off_others(stage: str) -> None:
    s = replace(WIDE, top_k=2, samplers=("top_k", stage, "temperature"), dry_multiplier=2.0, dry_base=1.0)
    s = replace(s, repeat_penalty=1.0, presence_penalty=2.0, penalty_last_n=1, dry_allowed_length=2)
    row, history = np.array([0, 1, 0, 4, 0, 5], np.float32), [1, 2, 5, 1, 2] if stage == "dry" else [1, 5]
    found = Sampler(s, row.size)(row, history)
    assert found.ids.tolist() == [3, 5]
    assert found.prob(3) / found.prob(5) == pytest.approx(np.exp(1.0))


@pytest.mark.sample(1)
@pytest.mark.parametrize("breakers", [(), ("\n", ":", '"', "*"), ("def", " e", "ther")])
def test_dry_is_llama_cpps_on_a_real_vocabulary(breakers: tuple[str, ...], tiny_target: Any) -> None:
    with Model(tiny_target, vocab_only=True) as model:
        n, vocab = model.n_vocab, C.llama_model_get_vocab(model.handle)
        pieces = [model.piece(token, special=True) for token in range(n)]
        usual = lambda text: model.tokenize(text, special=False, add_bos=False).tolist()  # noqa: E731
        known = Breakers(lambda: pieces, usual).tails(breakers)
        rng = np.random.default_rng(8)
        some = [*usual(b'def where(the): return "other" * the\n'), *rng.integers(0, n, 3).tolist()]
        row = rng.normal(0, 1, n).astype(np.float32)
        changed = 0
        for i in range(70):
            base, last_n = float(rng.choice([1.0, 1.75])), int(rng.choice([5, 64, 1000]))
            s = replace(WIDE, dry_multiplier=0.8, dry_base=base, dry_penalty_last_n=last_n)
            s = replace(s, dry_allowed_length=int(rng.integers(1, 4)), dry_sequence_breakers=breakers)
            history = rng.choice(some[: 3 + i % (len(some) - 3)], rng.integers(0, 40)).tolist()
            found = Sampler(s, n, repetition=Repetition(s, known))(row, history)
            assert apart(found, llamas(row, history, s, vocab, breakers)) < 1e-6, (s, history)
            changed += Repetition(s, known).penalties(history)[0].size > 0
        assert changed > 8


@pytest.mark.parametrize("texts", [("a",), ("aa",), ("ab", "\n"), ("aab", "ba", "abab"), ("ä", "x" * 50)])
def test_breakers_are_found_by_looking_at_every_token(texts: tuple[str, ...]) -> None:
    """It looked at all tokens for every breaker: 64 long ones took a minute on a vocabulary of 152,000."""
    pieces = [
        b"",
        b"a",
        b"b",
        b"ab",
        b"ba",
        b"aa",
        b"\n",
        b"a\n",
        "ä".encode(),
        "ä".encode()[:1],
        b"x",
        b"aabb",
    ]

    def tokenize(text: bytes) -> list[int]:
        return [256 + byte for byte in text]

    wanted: dict[int, set[tuple[int, ...]]] = {}
    for breaker in (text.encode()[:40] for text in texts):
        for token, piece in enumerate(pieces):
            if breaker in piece:
                wanted.setdefault(token, set()).add(())
                continue
            for n in range(1, min(len(breaker) - 1, len(piece)) + 1):
                if piece.endswith(breaker[:n]):
                    wanted.setdefault(token, set()).add(tuple(tokenize(breaker[n:])[:20]))
    found = Breakers(lambda: pieces, tokenize).tails(texts)
    assert {token: set(tails) for token, tails in found.items()} == wanted


def test_what_is_penalised_are_the_last_tokens_of_text_token_0_among_them() -> None:
    for n, last in ((2, [0, 3]), (3, [0, 0, 3]), (9, [7, 0, 0, 3])):
        assert last_of_text([7, 0, -9, -8, 0, 3], n).tolist() == last
        assert last_of_text([7, 0, 0, 3], n).tolist() == last


def test_lengths_of_repetitions_are_those_of_comparing_one_by_one() -> None:
    """A text of equal tokens was compared place by place: 30,000 of them took 4 s for every row."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 2, n) for n in (1, 2, 40, 200)] + [np.tile([1, 2, 3], 50), np.ones(90, int)]
    block = rng.permutation(50)
    texts += [np.concatenate([block, [7], block[:45], block, [8, 9], block[:45]]), np.tile(block, 3)[4:]]
    for last in texts:
        for limit in (3, 33, 1000):
            wanted = []
            for end in range(last.size - 1):
                n = 0
                while n <= end and n < limit and last[end - n] == last[last.size - 1 - n]:
                    n += 1
                wanted.append(n)
            assert _lengths(last, limit).tolist() == wanted

    def spent(n: int) -> float:
        times = []
        for _ in range(3):
            began = time.thread_time()
            assert _lengths(np.zeros(n, np.int64), n)[-1] == n - 1
            times.append(time.thread_time() - began)
        return min(times)

    assert spent(30_000) < 40 * spent(3_000)  # ten times as much; quadratic would be a hundred times


# --- with speculation

SHAPES = {
    "xtc": replace(WIDE, xtc_probability=0.4, xtc_threshold=0.15),
    "dynamic": replace(WIDE, dynatemp_range=0.8, dynatemp_exponent=0.7),
    "dry": replace(WIDE, dry_multiplier=0.9, dry_allowed_length=1),
    "cold xtc": replace(WIDE, temperature=0.0, xtc_probability=0.4, xtc_threshold=0.15),
    "order": replace(
        WIDE, top_k=2, xtc_probability=0.3, xtc_threshold=0.1, repeat_penalty=1.4, dry_multiplier=0.5,
        samplers=("temperature", "xtc", "top_k", "dry", "penalties"),
    ),
}  # fmt: skip


@pytest.mark.sample(5)
@RULES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name", ["model", *(pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS if name != "model")]
)
def test_whole_generations_have_the_samplers_distribution_exactly(
    judge: fakes.Judge, shape: str, name: str
) -> None:
    n, prompt, end, s = 3, [0, 1, 1, 0, 0, 1], 2, SHAPES[shape]
    target, draft = TableModel(n, seed=6, spread=0.5), TableModel(n, seed=7, spread=0.8)
    sampler = Sampler(s, n)

    def run(world: fakes.World) -> tuple[int, ...]:
        rule = Independent(world, judge)  # type: ignore[arg-type]
        rounds = speculate(
            target, prompt, sampler=sampler, rule=rule, drafter=drafter_named(name, s, n), draft=draft,
            pace=Restless((2, 1)), max_tokens=4, end=[end],
        )  # fmt: skip
        return emitted(rounds, end)

    def p(row: np.ndarray, history: list[int]) -> dict[int, float]:
        distribution = sampler(row, history)
        return dict(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))

    assert fakes.distance(fakes.law(run), exact_law(target, prompt, end, 4, p)) < 1e-12


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_seed_gives_the_same_text_with_and_without_a_draft(shape: str) -> None:
    n, prompt, s = 6, [1, 2, 0, 1, 2], SHAPES[shape]
    target = TableModel(n, seed=4)
    draft = TableModel(n, seed=5, near=target, spread=0.7)
    texts, accepted = set(), 0
    for seed in range(6):
        plain = tokens_of(speculate(target, prompt, sampler=Sampler(s, n), rule=Coupled(seed)))
        for name in DRAFTERS:
            rounds = speculate(
                target, prompt, sampler=Sampler(s, n), rule=Coupled(seed), drafter=drafter_named(name, s, n),
                draft=draft, pace=Restless(least=0.3),
            )  # fmt: skip
            assert tokens_of(rounds) == plain
            accepted += sum(r.accepted for r in rounds)
        texts.add(plain)
    assert len(texts) > 4 and accepted > 15


# --- what may be said


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ("".join(LETTERS), ORDER),
        (["top_k", "top_p", "infill"], ("top_k", "top_p")),
        ("top_k;temp;min-p", ("top_k", "temperature", "min_p")),
        ("kt", ("top_k", "temperature")),
        ("temperature", ("temperature",)),
        ([], ()),
        (["typical_p", "typ_p"], ("typ_p",)),
    ],
)
def test_an_order_is_reported_as_llama_cpps_users_do(given: str | list[str], order: tuple[str, ...]) -> None:
    assert sampler_order(given) == order


def test_stages_that_are_left_out_do_nothing_and_cost_nothing() -> None:
    s = Sampling(0.5, top_k=3, min_p=0.1, repeat_penalty=1.5, samplers=("top_k", "min_p"))
    row = np.array([2, 1.5, 1, 0.5], np.float32)
    found = Sampler(s, 4)
    assert not found._chained and found.sampling.temperature == 1 and not found.sampling.penalises
    weights = np.exp(row[:3])
    assert found(row, [0, 0]).probs == pytest.approx(weights / weights.sum(), abs=1e-7)
    assert Sampler(replace(s, samplers=("min_p", "top_k")), 4)._chained


@pytest.mark.parametrize("stage", ORDER)
def test_a_stage_that_the_quick_ways_do_not_know_is_done_all_the_same(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one, of a row and a stage in the chain, would have done nothing in the usual order."""
    rng = np.random.default_rng(7)
    edges = 0
    for _ in range(60):
        s = random_settings(rng)
        row = rng.normal(0, rng.choice([0.5, 2, 4]), MANY).astype(np.float32)
        history = rng.integers(0, MANY, 6).tolist()
        quick = Sampler(s, MANY)(row, history)
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "QUICK", QUICK - {stage})
            slow = Sampler(s, MANY)
        found = slow(row, history)
        assert slow._chained == (stage in s.stages_on())
        if apart(quick, dict(zip(found.ids.tolist(), found.probs.tolist(), strict=True))) > 1e-5:
            assert at_an_edge(s, row, history, quick), (s, row.tolist(), history)
            edges += 1
    assert edges < 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"xtc_probability": 1.5}, "xtc_probability is 1.5"),
        ({"dynatemp_range": -1}, "dynatemp_range is -1"),
        ({"dry_base": "x"}, "dry_base is 'x'"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers"),
        ({"samplers": ("top_k", "mirostat")}, "samplers names 'mirostat'"),
    ],
)
def test_nonsense_is_refused_by_name(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Sampling(**wrong)
