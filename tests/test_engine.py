"""Pairs: whatever drafts, the text is the target's own; and pairs that cannot work are refused in words.

The models are random and tiny; a draft is its target with a twentieth of noise, so that about a third
of its greedy guesses is accepted. They run in the byte-identical profile (Q8_0, flash attention, one
thread) and are compared token for token if the machine has it; `verify_pair.equality` says what else
counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray
from real.embedded import LOGITS_DIFFER_AT_MOST, complaint
from same_bytes import byte_identical
from wrong_rules import accept_always, flipped, judged_by, without_residual

from edgespec.commands.verify import goodness
from edgespec.commands.verify.equality import Output, difference, output
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Draft, DrafterName
from edgespec.core.verify import Coupled, Independent, Verdict
from edgespec.engine import stream_maker
from edgespec.engine.pair import Pair
from edgespec.errors import (
    EdgeSpecError,
    ModelFileError,
    PairMismatchError,
    PromptTooLongError,
    SettingError,
)
from edgespec.llama.context import Context
from edgespec.pairs.check import check_pair
from edgespec.pairs.rope import Rope
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, Sampling, draw
from edgespec.system.config import cache_folder
from edgespec_models.gguf.header import read_file
from edgespec_models.shelf.pair_check import check_headers

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.8, top_p=0.95, min_p=0.0)
FEW = dict.fromkeys((40, 77, 301, 302, 333), 20.0)  # of five tokens alone comes text that repeats itself
GREEDY_FEW, SAMPLED_FEW = replace(GREEDY, logit_bias=FEW), replace(SAMPLED, logit_bias=FEW)
PROFILE = PairSettings(threads=1, flash_attention=True)
BOTH = (GREEDY, SAMPLED)
DRAFTERS = ("model", "lookup", "auto")
LENGTHS = (1, 4, 9)
ALL_LENGTHS = (*LENGTHS, None)  # None: what the controller thinks
N_TOKENS = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


def write_pair(folder: Path, kind: str) -> tuple[Path, Path]:
    """Writes a target and a draft of the kind; drafts of unlike architectures agree by chance only."""
    plain, hybrid = tiny_gguf.write_llama, tiny_gguf.write_hybrid
    if kind == "recurrent":
        target = tiny_gguf.write_recurrent(folder / "recurrent.gguf", dtype="Q8_0", logit_scale=6.0)
        return target, target
    writers = {
        "plain": (plain, plain),
        "far": (plain, plain),  # its draft agrees seldom
        "hybrid": (hybrid, hybrid),
        "mixed": (hybrid, plain),
    }[kind]
    target, draft = folder / f"{kind}-target.gguf", folder / f"{kind}-draft.gguf"
    noise = 0.3 if kind == "far" else 0.05
    return writers[0](target, dtype="Q8_0"), writers[1](draft, dtype="Q8_0", noise=noise)


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, tuple[Path, Path]]:
    return {kind: write_pair(folder, kind) for kind in ("plain", "far", "hybrid", "recurrent", "mixed")}


@pytest.fixture(scope="module")
def pairs(files: dict[str, tuple[Path, Path]]) -> Iterator[dict[str, Pair]]:
    opened = {kind: Pair(*paths, PROFILE) for kind, paths in files.items()}
    yield opened
    for pair in opened.values():
        pair.close()


@pytest.fixture
def plain(pairs: dict[str, Pair]) -> Pair:
    return pairs["plain"]


def some_prompt(seed: int, n: int = 24) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 500, n).astype(np.int32)


def is_identical(pair: Pair) -> bool:
    settings = pair.target_context.settings
    return byte_identical(pair.target, settings, some_prompt(99, 64), max(LENGTHS))


def differences(pair: Pair, requests: Sequence[tuple[NDArray[np.int32], Request]]) -> list[Any]:
    """Runs each request with its drafter and again without; returns how they differ."""
    plain_runs: dict[tuple[Any, ...], Output] = {}
    found = []
    for prompt, request in requests:
        key = (prompt.tobytes(), request.seed, repr(request.sampling))
        if key not in plain_runs:
            plain = Request(request.sampling, request.max_tokens, seed=request.seed, drafter="none")
            plain_runs[key] = output(pair, prompt, plain)
        run = output(pair, prompt, request)
        found.append(difference(pair.target, pair.target_context.settings, plain_runs[key], run))
    return found


# ---- the same text, whoever drafts ------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["plain", "hybrid", "recurrent", "mixed"])
def test_greedy_text_is_the_same_with_a_draft_and_without(pairs: dict[str, Pair], kind: str) -> None:
    pair = pairs[kind]
    requests = [
        (some_prompt(seed), Request(sampling, N_TOKENS, drafter=drafter, draft_length=k))
        for seed, sampling in enumerate((GREEDY, GREEDY_FEW, GREEDY_FEW))
        for drafter, k in itertools.product(DRAFTERS, ALL_LENGTHS)
    ]
    assert complaint(differences(pair, requests), identical=is_identical(pair)) is None


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind, seeds", [("plain", 3), ("hybrid", 2), ("recurrent", 2), ("mixed", 1)])
def test_the_same_seed_gives_the_same_text_whoever_drafts(
    pairs: dict[str, Pair], kind: str, seeds: int
) -> None:
    pair = pairs[kind]
    requests = [
        (
            some_prompt(seed),
            Request(SAMPLED_FEW if seed % 2 else SAMPLED, 32, seed=seed, drafter=drafter, draft_length=k),
        )
        for seed, drafter, k in itertools.product(range(seeds), DRAFTERS, ALL_LENGTHS)
    ]
    assert complaint(differences(pair, requests), identical=is_identical(pair)) is None


@pytest.mark.slow
def test_outside_the_profile_every_difference_is_explained_by_arithmetic(
    files: dict[str, tuple[Path, Path]],
) -> None:
    """Without flash attention a batch differs from single tokens by up to 0.1 here: 2 of 60 greedy texts."""
    with Pair(*files["plain"], PairSettings(threads=1, flash_attention=False)) as pair:
        requests = [
            (some_prompt(seed), Request(GREEDY, N_TOKENS, drafter="model", draft_length=4))
            for seed in range(60)
        ]
        found = [d for d in differences(pair, requests) if d]
    assert all(d.explained and d.logits_differ <= LOGITS_DIFFER_AT_MOST for d in found), found


def test_a_text_of_an_earlier_run_makes_guesses_and_one_of_another_vocabulary_none(
    files: dict[str, tuple[Path, Path]],
) -> None:
    request = Request(GREEDY_FEW, 60, drafter="history", draft_length=8)
    prompt = some_prompt(77)
    with Pair(files["plain"][0]) as earlier:
        first = output(earlier, prompt, request)
    with Pair(files["plain"][0]) as later:
        later.streams.remember(prompt.tolist(), [*first.tokens[:-1], later.target.n_vocab])
        assert sum(round_.drafted for round_ in later.generate(prompt, request)) == 0
        later.forget()
        later.streams.remember(prompt.tolist(), list(first.tokens))
        rounds = list(later.generate(prompt, request))
    assert tuple(token for round_ in rounds for token in round_.tokens) == tuple(first.tokens)
    assert sum(round_.accepted for round_ in rounds) > 30


@pytest.mark.parametrize(
    "kind, drafter, sampling",
    [
        ("plain", "model", GREEDY),
        ("hybrid", "model", GREEDY),
        ("plain", "lookup", GREEDY_FEW),
        ("hybrid", "lookup", SAMPLED_FEW),
        ("recurrent", "lookup", GREEDY_FEW),
    ],
)
def test_guesses_are_partly_accepted_and_partly_not(
    pairs: dict[str, Pair], kind: str, drafter: Any, sampling: Sampling
) -> None:
    """Were all or none accepted, the tests above would say little."""
    request = Request(sampling, N_TOKENS, drafter=drafter, seed=1, draft_length=4)
    runs = [output(pairs[kind], some_prompt(seed), request) for seed in range(4)]
    accepted, drafted = sum(run.accepted for run in runs), sum(run.drafted for run in runs)
    assert drafted > 40
    assert 0.1 < accepted / drafted < 0.9
    assert {source for run in runs for r in run.rounds for source in r.sources} == {drafter, "target"}


def test_auto_lets_all_guess(plain: Pair) -> None:
    request = Request(GREEDY_FEW, 120, drafter="auto", draft_length=4)
    runs = [output(plain, some_prompt(seed), request) for seed in range(6)]
    sources = {s for run in runs for r in run.rounds for s in r.sources}
    assert sources >= {"recycling", "model", "target"}
    assert sources & {"lookup", "history"}, "the one or the other: the texts are much alike"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(accept_always, id="accepts whatever was drafted"),
        pytest.param(
            lambda draft, p, rng: Verdict(0, draft.tokens[0] if draft.tokens else draw(p(0), 0.5)),
            id="lets the draft decide",
        ),
    ],
)
def test_equality_fails_under_a_wrong_rule(
    plain: Pair, monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Verdict]
) -> None:
    judged_by(monkeypatch, wrong)
    requests = [(some_prompt(0), Request(GREEDY, N_TOKENS, drafter="model", draft_length=4))]
    [found] = differences(plain, requests)
    assert found and not found.explained
    assert complaint([found], identical=False) is not None


def test_coupled_equality_fails_where_the_draft_has_a_say(
    plain: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Coupled.verify

    def wrong(self: Coupled, draft: Draft, p: Any, position: int) -> Verdict:
        verdict = honest(self, draft, p, position)
        if verdict.accepted < len(draft.tokens) and p(verdict.accepted).prob(draft.tokens[verdict.accepted]):
            return Verdict(verdict.accepted, draft.tokens[verdict.accepted])
        return verdict

    monkeypatch.setattr(Coupled, "verify", wrong)
    requests = [
        (some_prompt(seed), Request(SAMPLED, 32, seed=seed, drafter="model", draft_length=4))
        for seed in range(5)
    ]
    found = [d for d in differences(plain, requests) if d]
    assert found
    assert complaint(found, identical=False) is not None


def test_another_seed_or_choice_gives_another_text(plain: Pair) -> None:
    texts = {
        output(plain, some_prompt(0), Request(SAMPLED, 24, seed=seed, choice=choice)).tokens
        for seed, choice in itertools.product(range(4), range(3))
    }
    assert len(texts) == 12


def test_without_a_seed_every_answer_is_another_and_rng_seed_repeats_one(plain: Pair) -> None:
    request = Request(SAMPLED, 24)
    assert output(plain, some_prompt(0), request).tokens != output(plain, some_prompt(0), request).tokens
    fixed = Request(SAMPLED, 24, rng_seed=3, drafter="none")  # what is drawn hangs on what is drafted, too
    first, second = (output(plain, some_prompt(0), fixed) for _ in range(2))
    assert first.tokens == second.tokens


# ---- the distribution, through the whole loop -------------------------------------------------------------

SAMPLES = 1000
SPREAD = replace(SAMPLED_FEW, temperature=1.5)  # so that many sequences are frequent enough to be counted
FALSE_ALARM = 1e-4  # of each chi-square test; the seeds are fixed, so on one machine it passes or it does not


def p_value(pair: Pair, request: Callable[[int], Request], samples: int = SAMPLES) -> float:
    """Tests the first three tokens behind a prompt: the first is plain, two are drafted."""
    prompt = some_prompt(1, 16)
    sampler = Sampler(SPREAD, pair.target.n_vocab)
    with Context(pair.target, pair.target_context.settings) as context:

        def p(prefix: goodness.Prefix) -> Any:
            return sampler(context.score([Want(prompt, prefix)])[0][0])

        cells = goodness.expected_cells(p, 3, samples, pair.target.end_tokens)
    runs = (pair.generate(prompt, request(i)) for i in range(samples))
    tokens = (tuple(token for round_ in run for token in round_.tokens) for run in runs)
    value, degrees = goodness.chi_square(cells, tokens)
    assert degrees > 5
    return value


def sampled(i: int, **changed: Any) -> Request:
    wanted = {"max_tokens": 4, "drafter": "model", "draft_length": 2, "rng_seed": i}
    return Request(SPREAD, **(wanted | changed))


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.slow), "far"])
@pytest.mark.parametrize("rule", ["block", pytest.param("token", marks=pytest.mark.slow)])
def test_the_first_tokens_have_the_targets_distribution(pairs: dict[str, Pair], kind: str, rule: str) -> None:
    assert p_value(pairs[kind], lambda i: sampled(i, rule=rule)) > FALSE_ALARM


@pytest.mark.slow
def test_the_first_tokens_have_the_targets_distribution_in_coupled_mode(pairs: dict[str, Pair]) -> None:
    assert p_value(pairs["far"], lambda i: sampled(i, seed=i)) > FALSE_ALARM


@pytest.mark.slow
def test_the_first_tokens_have_the_targets_distribution_on_a_hybrid_model(pairs: dict[str, Pair]) -> None:
    assert p_value(pairs["hybrid"], sampled, 800) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [without_residual, *(pytest.param(of, marks=pytest.mark.slow) for of in (accept_always, flipped))],
)
def test_the_distribution_test_fails_under_a_wrong_rule(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Verdict]
) -> None:
    judged_by(monkeypatch, wrong)
    assert p_value(pairs["far"], sampled) < FALSE_ALARM / 1000


# ---- pairs that cannot work -------------------------------------------------------------------------------


def write_vocabulary(path: Path, vocabulary: tiny_gguf.Vocabulary, **metadata: Any) -> Path:
    """Writes a model without its weights: it can be compared with, and not be loaded."""
    dropped = [tensor.name for tensor in GGUFReader(tiny_gguf.write_llama(path)).tensors]
    return tiny_gguf.write_llama(
        path, vocab=vocabulary, metadata=metadata, tensors=dict.fromkeys(dropped[1:], None)
    )


def write_spm(path: Path) -> Path:
    writer = GGUFWriter(path, "llama")
    texts = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *(f"w{i}" for i in range(253)),
    ]
    for add, value in (
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_block_count, 1),
        (writer.add_feed_forward_length, 128),
        (writer.add_head_count, 4),
        (writer.add_layer_norm_rms_eps, 1e-5),
    ):
        add(value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * 253])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


VOCABULARY = tiny_gguf.make_vocabulary()
END_ADDED = "tokenizer.ggml.add_eos_token"
START_ADDED = "tokenizer.ggml.add_bos_token"


@pytest.mark.parametrize(
    "target, draft, expected",
    [
        pytest.param(
            (VOCABULARY, {}),
            (tiny_gguf.altered(VOCABULARY, texts={300: "else300", 400: "else400"}), {}),
            f"token 300 is {VOCABULARY.texts[300]!r} for the target and 'else300' for the draft",
            id="a token's text",
        ),
        pytest.param(
            (tiny_gguf.make_vocabulary(512), {}),
            (tiny_gguf.make_vocabulary(641), {}),
            "the target's vocabulary has 512 tokens and the draft's 641",
            id="the size",
        ),
        pytest.param(
            (VOCABULARY, {END_ADDED: True}),
            (tiny_gguf.altered(VOCABULARY, eos=500), {END_ADDED: True}),
            f"the end token is token {VOCABULARY.eos} for the target and token 500 for the draft",
            id="the end token",
        ),
        pytest.param(
            (VOCABULARY, {END_ADDED: True}),
            (VOCABULARY, {}),
            f"the end token is token {VOCABULARY.eos} for the target and none for the draft",
            id="whether an end token is added",
        ),
        pytest.param(
            (VOCABULARY, {}),
            (VOCABULARY, {START_ADDED: True}),
            f"the start token is none for the target and token {VOCABULARY.bos} for the draft",
            id="whether a start token is added",
        ),
    ],
)
def test_what_differs_is_named_before_any_weights_are_loaded(
    tmp_path: Path, target: tuple[Any, Any], draft: tuple[Any, Any], expected: str
) -> None:
    files = [
        write_vocabulary(tmp_path / f"{name}.gguf", vocabulary, **metadata)
        for name, (vocabulary, metadata) in (("big", target), ("small", draft))
    ]
    with pytest.raises(ModelFileError):  # the files have no weights to load
        Pair(files[0])
    verdict = check_headers(*map(read_file, files))
    assert (verdict.fit, verdict.reason) == ("translated", expected)


def test_a_draft_with_too_little_in_common_is_refused_before_any_weights_are_loaded(tmp_path: Path) -> None:
    big = write_vocabulary(tmp_path / "big.gguf", VOCABULARY)
    foreign = tiny_gguf.altered(VOCABULARY, texts=tiny_gguf.FOREIGN)
    with pytest.raises(PairMismatchError) as caught:
        Pair(big, write_vocabulary(tmp_path / "small.gguf", foreign))
    message = str(caught.value)
    assert message.startswith("small.gguf cannot draft for big.gguf: token 5 is ")
    assert "--no-draft" in message and "\n" not in message


def test_another_kind_of_tokeniser_is_named(tmp_path: Path) -> None:
    big, small = write_vocabulary(tmp_path / "big.gguf", VOCABULARY), write_spm(tmp_path / "small.gguf")
    verdict = check_headers(read_file(big), read_file(small))
    assert verdict.reason == "the target's tokeniser is BPE and the draft's is SPM"


def test_the_first_few_tokens_may_differ(tmp_path: Path) -> None:
    """llama.cpp's rule: ids 0 to 4 are often special and spelt differently within one family."""
    altered = tiny_gguf.altered(VOCABULARY, texts={4: "elsewhere"})
    check_pair(*(write_vocabulary(tmp_path / f"{i}.gguf", v) for i, v in enumerate((VOCABULARY, altered))))


def test_a_draft_that_is_missing_or_broken_is_named(
    files: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(files["plain"][1].read_bytes()[:5000])
    with pytest.raises(ModelFileError, match="broken.gguf"):
        Pair(files["plain"][0], broken)
    with pytest.raises(ModelFileError, match="nowhere.gguf"):
        Pair(files["plain"][0], tmp_path / "nowhere.gguf")


# ---- pairs that differ and work ---------------------------------------------------------------------------


def test_a_draft_with_a_shorter_context_drafts_to_the_end(
    files: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    draft = tiny_gguf.write_llama(tmp_path / "short.gguf", dtype="Q8_0", noise=0.05, context_length=64)
    with Pair(files["plain"][0], draft, PROFILE) as pair:
        assert pair.n_ctx == 512
        requests = [
            (some_prompt(seed), Request(GREEDY, 100, drafter="model", draft_length=4)) for seed in range(4)
        ]
        assert complaint(differences(pair, requests), identical=is_identical(pair)) is None
        run = output(pair, *requests[0])
        lengths = np.cumsum([len(round_.tokens) for round_ in run.rounds]) + run.prompt.size
        guessed = [n for n, round_ in zip(lengths, run.rounds, strict=True) if round_.drafted]
        assert max(guessed) > 100 and sum(n > 64 for n in guessed) > 4
        assert len(run.tokens) == 100


def write_padded(path: Path, base: Path, n: int) -> Path:
    """Writes the model at `base` again with `n` ids more, which mean nothing (padding) but may be chosen."""
    more = np.random.default_rng(77)
    texts = (*VOCABULARY.texts, *(f"[PAD{i}]" for i in range(n)))
    padded = tiny_gguf.Vocabulary(
        texts, (*VOCABULARY.types, *(1,) * n), VOCABULARY.merges, VOCABULARY.bos, VOCABULARY.eos
    )
    tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in GGUFReader(base).tensors}
    for name in ("token_embd.weight", "output.weight"):
        rows = more.standard_normal((n, tensors[name].shape[1]), np.float32) * tensors[name].std()
        tensors[name] = np.concatenate([tensors[name], rows])
    return tiny_gguf.write_llama(path, vocab=padded, tensors=tensors, dtype="Q8_0")


@pytest.mark.sample(1)
@pytest.mark.parametrize("padded", ["target", "draft"])
def test_vocabularies_that_differ_by_padding_work_together(folder: Path, tmp_path: Path, padded: str) -> None:
    paths = []
    for name, noise in (("target", 0.0), ("draft", 0.05)):
        path = tiny_gguf.write_llama(tmp_path / f"{name}.gguf", noise=noise)
        paths.append(write_padded(tmp_path / f"{name}-q8.gguf", path, 64 if name == padded else 0))
    with Pair(*paths, PROFILE) as pair:
        assert pair.draft
        assert pair.target.n_vocab - pair.draft.n_vocab == (64 if padded == "target" else -64)
        requests = [
            (some_prompt(seed), Request(sampling, 40, drafter="model", seed=seed, draft_length=4))
            for seed, sampling in itertools.product(range(6), (GREEDY, SAMPLED))
        ]
        assert complaint(differences(pair, requests), identical=is_identical(pair)) is None
        runs = [output(pair, *request) for request in requests]
        assert sum(run.accepted for run in runs) > 20
        assert all(token < pair.target.n_vocab for run in runs for token in run.tokens)
        if padded == "target":  # tokens that the draft does not know came, and did no harm
            assert any(token >= 512 for run in runs for token in run.tokens)


def test_a_bias_on_a_token_that_the_draft_does_not_have_is_the_targets_alone(tmp_path: Path) -> None:
    base = tiny_gguf.write_llama(tmp_path / "base.gguf")
    target = write_padded(tmp_path / "target.gguf", base, 64)
    draft = write_padded(tmp_path / "draft.gguf", base, 0)
    with Pair(target, draft, PROFILE) as pair:
        wanted = Sampling(temperature=0, logit_bias={575: 100.0})
        assert set(
            output(pair, some_prompt(0), Request(wanted, 8, drafter="model", draft_length=4)).tokens
        ) == {575}


# ---- caches between generations ---------------------------------------------------------------------------


def evaluated(pair: Pair) -> tuple[int, int]:
    """Returns the tokens evaluated so far by (target, draft)."""
    contexts = pair.contexts
    return contexts["target"].evaluated, contexts["draft"].evaluated


def test_the_next_turn_evaluates_only_what_is_new(plain: Pair) -> None:
    prompt, rng = some_prompt(5, 100), np.random.default_rng(5)
    first = output(plain, prompt, Request(GREEDY, 20, drafter="model", draft_length=4))
    fresh = rng.integers(0, 500, 10).astype(np.int32)
    longer = np.concatenate([prompt, np.array(first.tokens, np.int32), fresh])
    before = evaluated(plain)
    rounds = list(plain.generate(longer, Request(GREEDY, 1, drafter="model", draft_length=4)))
    target, draft = (now - then for now, then in zip(evaluated(plain), before, strict=True))
    assert len(rounds) == 1
    assert fresh.size <= target <= fresh.size + 2
    assert draft == 0  # one token is no reason to draft


def test_the_same_prompt_again_evaluates_one_token(plain: Pair) -> None:
    prompt = some_prompt(6, 100)
    request = Request(GREEDY, 1)
    output(plain, prompt, request)
    before = evaluated(plain)
    list(plain.generate(prompt, request))
    assert evaluated(plain)[0] - before[0] == 1


def test_no_token_is_evaluated_twice_by_the_draft(plain: Pair) -> None:
    """Per round the draft evaluates its guesses but the last, and one or two tokens to catch up."""
    prompt, k = some_prompt(7), 4
    before = evaluated(plain)
    run = output(plain, prompt, Request(GREEDY, 40, drafter="model", draft_length=k))
    spent = evaluated(plain)[1] - before[1]
    drafting = [round_ for round_ in run.rounds if round_.drafted]
    full = sum(round_.accepted == round_.drafted for round_ in drafting)
    assert spent <= prompt.size + sum(round_.drafted for round_ in drafting) + full + 1


@pytest.mark.parametrize("kind", ["plain", "hybrid", "recurrent"])
def test_a_generation_given_up_or_cancelled_leaves_the_pair_in_order(
    pairs: dict[str, Pair], kind: str
) -> None:
    pair, prompt = pairs[kind], some_prompt(8)
    request = Request(GREEDY, 30, drafter="auto", draft_length=3)  # too few to end in four rounds
    whole = output(pair, prompt, request).tokens
    for stop_after in (0, 1, 3):
        given_up = pair.generate(prompt, request)
        for _ in range(stop_after):
            next(given_up)
        given_up.close()  # type: ignore[attr-defined]
        left = iter([False] * stop_after + [True] * 99)
        cancelled = list(pair.generate(prompt, request, cancelled=lambda left=left: next(left)))
        assert len(cancelled) <= stop_after + 1
        assert cancelled[-1].finish == "cancelled"
        again = tuple(token for round_ in pair.generate(prompt, request) for token in round_.tokens)
        assert again[:4] == whole[:4]  # later ones may differ by rounding: the shapes are not the same
        if is_identical(pair):
            assert again == whole


# ---- requests ---------------------------------------------------------------------------------------------


def test_generation_ends_at_the_length_the_context_or_a_stop_text(plain: Pair) -> None:
    prompt = some_prompt(9)
    run = output(plain, prompt, Request(GREEDY, 17))
    assert (len(run.tokens), run.rounds[-1].finish) == (17, "length")
    long = some_prompt(9, 500)
    run = output(plain, long, Request(GREEDY, 100))
    assert (len(run.tokens), run.rounds[-1].finish) == (12, "length")
    whole = output(plain, prompt, Request(GREEDY, 30)).text
    stop = whole[10:14]
    run = output(plain, prompt, Request(GREEDY, 30, stop=[stop]))
    assert run.rounds[-1].finish == "stop"
    assert run.text == whole[: whole.index(stop)]


def test_generation_ends_at_the_end_token_which_is_not_shown(plain: Pair) -> None:
    eos = plain.target.vocabulary.eos
    forced = Sampling(temperature=0, logit_bias={eos: 1000.0})
    run = output(plain, some_prompt(10), Request(forced, 30))
    assert (run.tokens, run.text, run.rounds[-1].finish) == ((), "", "stop")


@pytest.mark.parametrize(
    "wrong, error, expected",
    [
        ({"drafter": "oracle"}, SettingError, "oracle"),
        ({"rule": "luck"}, SettingError, "must be block or token"),
        ({"max_tokens": 0}, SettingError, "1 or more"),
        ({"max_tokens": 2.5}, SettingError, "1 or more"),
        ({"draft_length": -1}, SettingError, "draft length"),
        ({"draft_length": 65}, SettingError, "draft length"),
        ({"stop": [""]}, SettingError, "stop strings"),
        ({"stop": "text"}, SettingError, "stop strings"),
        ({"sampling": Sampling(logit_bias={512: 1.0})}, SettingError, "token 512"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    plain: Pair, wrong: dict[str, Any], error: type[EdgeSpecError], expected: str
) -> None:
    with pytest.raises(error, match=expected) as caught:
        list(plain.generate(some_prompt(0), Request(**wrong)))
    assert "\n" not in str(caught.value)


def test_a_prompt_that_does_not_fit_or_is_empty_is_refused(plain: Pair) -> None:
    with pytest.raises(
        PromptTooLongError, match=r"the prompt has 512 tokens and exceeds the available context size of 512"
    ):
        list(plain.generate(some_prompt(0, 512), Request()))
    with pytest.raises(PromptTooLongError, match="2,000"):
        list(plain.generate(some_prompt(0, 2000), Request()))
    with pytest.raises(SettingError, match="no tokens"):
        list(plain.generate([], Request()))
    with pytest.raises(SettingError, match="does not exist"):
        list(plain.generate([1, 2, 99_999], Request(GREEDY, 1)))


def test_drafting_by_a_model_without_one_is_refused(files: dict[str, tuple[Path, Path]]) -> None:
    with Pair(files["plain"][0], settings=PROFILE) as pair:
        with pytest.raises(SettingError, match=r"no draft is loaded: name one with --draft"):
            pair.generate(some_prompt(0), Request(drafter="model"))
        run = output(pair, some_prompt(0), Request(GREEDY, 20, drafter="auto"))  # lookup is what is left
        assert len(run.tokens) == 20


def test_the_context_is_what_was_asked_for(files: dict[str, tuple[Path, Path]]) -> None:
    with Pair(*files["plain"], PairSettings(n_ctx=100, threads=1)) as pair:
        assert pair.n_ctx == 100 and pair.beyond_trained is None
    with pytest.raises(SettingError, match="number of threads"):
        Pair(*files["plain"], PairSettings(threads=-3))


def test_a_context_beyond_the_trained_one_answers_with_a_warning(files: dict[str, tuple[Path, Path]]) -> None:
    prompt = np.tile(some_prompt(0), 40)[:540]
    with Pair(*files["plain"], replace(PROFILE, n_ctx=600)) as pair:
        assert pair.n_ctx == 600 and "was trained for 512" in str(pair.beyond_trained)
        asked = [
            (prompt, Request(how, 40, seed=1, drafter="model", draft_length=4)) for how in (GREEDY, SAMPLED)
        ]
        assert complaint(differences(pair, asked), identical=is_identical(pair)) is None
        run = output(pair, prompt, asked[0][1])
        assert len(run.tokens) == 40 and run.drafted > 0  # from the end of the text: its draft knows 512


@pytest.mark.sample(1)
@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_scaled_positions_change_the_text_and_a_draft_does_not(
    files: dict[str, tuple[Path, Path]], tmp_path: Path, scaling: Any
) -> None:
    rope, prompt = Rope(rope_scaling=scaling, rope_freq_scale=0.5), np.tile(some_prompt(0), 40)[:540]
    how = replace(PROFILE, n_ctx=700, rope=rope)
    asked = [(prompt, Request(sampling, 40, seed=1, drafter="model", draft_length=4)) for sampling in BOTH]
    with Pair(*files["plain"], how) as pair:
        assert pair.beyond_trained is None and pair.contexts["draft"].n_ctx == 700
        assert complaint(differences(pair, asked), identical=is_identical(pair)) is None
        scaled = output(pair, *asked[0])
        assert scaled.accepted > 0
        costs = pair.known_in
    with Pair(*files["plain"], replace(how, rope=Rope())) as pair:
        assert output(pair, *asked[0]).tokens != scaled.tokens and pair.known_in != costs
    said = {"llama.rope.scaling.type": scaling, "llama.rope.scaling.factor": 2.0}
    target = tiny_gguf.write_llama(tmp_path / "scaled.gguf", dtype="Q8_0", metadata=said)
    with Pair(target, None, replace(how, rope=Rope())) as pair:  # what a file says of itself is used
        assert output(pair, prompt, replace(asked[0][1], drafter="none")).tokens == scaled.tokens


def test_a_draft_with_other_positions_keeps_them(files: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    draft = tiny_gguf.write_llama(tmp_path / "short.gguf", dtype="Q8_0", noise=0.05, context_length=64)
    with Pair(files["plain"][0], draft, replace(PROFILE, n_ctx=700, rope=Rope(rope_freq_scale=0.5))) as pair:
        target, small = (context.settings for context in pair.contexts.values())
        assert (target.n_ctx, small.n_ctx) == (700, 64) and target.rope.given() and not small.rope.given()


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"rope_scaling": "longrope"}, "--rope-scaling is 'longrope'"),
        ({"rope_scaling": "none", "rope_freq_scale": 0.5}, "leaves positions as they are"),
        ({"rope_freq_scale": 0.0}, "--rope-freq-scale"),
        ({"rope_freq_scale": -0.5}, "--rope-freq-scale"),
        ({"rope_freq_base": 1.0}, "--rope-freq-base"),
        ({"rope_freq_base": float("nan")}, "--rope-freq-base is nan"),
        ({"rope_freq_base": float("inf")}, "--rope-freq-base is inf"),
        ({"yarn_orig_ctx": 0}, "--yarn-orig-ctx is 0: it must be a whole number"),
        ({"yarn_orig_ctx": 2.5}, "--yarn-orig-ctx"),
        ({"yarn_ext_factor": -1.0}, "--yarn-ext-factor"),
        ({"yarn_attn_factor": 0.0}, "--yarn-attn-factor"),
        ({"yarn_beta_slow": 0.0}, "--yarn-beta-slow"),
        ({"yarn_beta_slow": 32.0, "yarn_beta_fast": 1.0}, "less than --yarn-beta-fast"),
    ],
)
def test_wrong_positions_are_refused_in_a_sentence(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named) as caught:
        Rope(**wrong)
    assert "\n" not in str(caught.value)


def test_a_draft_may_keep_a_smaller_cache_without_changing_the_text(tmp_path: Path) -> None:
    paths = [
        tiny_gguf.write_llama(tmp_path / f"{name}.gguf", n_head=2, dtype="Q8_0", noise=noise)
        for name, noise in (("target", 0.0), ("draft", 0.05))
    ]
    texts = []
    for kv_type in ("f16", "q8_0", "q4_0"):
        with Pair(*paths, PairSettings(threads=1, flash_attention=True, draft_kv_type=kv_type)) as pair:
            run = output(pair, some_prompt(0), Request(SAMPLED, 20, seed=1, drafter="model", draft_length=4))
            assert run.drafted > 0
            if is_identical(pair):
                texts.append(run.tokens)
    assert len(set(texts)) <= 1


# ---- text to tokens ---------------------------------------------------------------------------------------


def test_control_tokens_in_a_users_text_stay_text(plain: Pair) -> None:
    eos = plain.target.vocabulary.eos
    assert eos not in plain.prompt_tokens(tiny_gguf.EOS)
    assert eos in plain.prompt_tokens(tiny_gguf.EOS, special=True)


def test_a_conversation_becomes_the_templates_tokens(plain: Pair) -> None:
    tokens = plain.chat_tokens([{"role": "user", "content": "hello"}])
    shown = plain.target.detokenize(tokens, special=True).decode()
    assert shown == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert plain.target.vocabulary.eos in tokens
    other = plain.chat_tokens([{"role": "user", "content": "hello"}], template="{{ messages[0].content }}!")
    assert plain.target.detokenize(other) == b"hello!"


def test_the_start_token_comes_once(tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}"
    for name, text in (("writes", template), ("does not write", "{{ messages[0].content }}")):
        path = tiny_gguf.write_llama(
            tmp_path / f"{name}.gguf", chat_template=text, metadata={START_ADDED: True}
        )
        with Pair(path, settings=PROFILE) as pair:
            tokens = pair.chat_tokens([{"role": "user", "content": "hello"}]).tolist()
            assert tokens.count(pair.target.vocabulary.bos) == 1
            assert tokens[0] == pair.target.vocabulary.bos


def test_text_that_is_no_unicode_becomes_tokens_all_the_same(plain: Pair) -> None:
    """A shell may hand over bytes that are not UTF-8; Python makes lone surrogates of them."""
    broken = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert plain.prompt_tokens(broken).size > 0
    assert plain.chat_tokens([{"role": "user", "content": broken}]).size > 0


def test_the_rule_without_a_seed_is_block_verification() -> None:
    rule = stream_maker.rule_of(Request())
    assert isinstance(rule, Independent)
    assert rule.judge is stream_maker.verify_block
    assert isinstance(stream_maker.rule_of(Request(seed=0)), Coupled)


def test_text_held_back_for_a_stop_text_is_given_when_the_answer_is_cancelled(plain: Pair) -> None:
    prompt, request = some_prompt(9), Request(GREEDY, 30, drafter="none")
    spoken = [round_.text for round_ in plain.generate(prompt, request)]
    n = next(i for i in range(2, 20) if spoken[i].strip())
    stop = spoken[n] + "never said"
    left = iter([False] * (n + 1) + [True] * 99)  # asked before each step
    held = replace(request, stop=[stop])
    rounds = list(plain.generate(prompt, held, cancelled=lambda: next(left)))
    assert rounds[-1].finish == "cancelled"
    assert rounds[-1].text
    assert "".join(round_.text for round_ in rounds) == "".join(spoken[: sum(len(r.tokens) for r in rounds)])


@pytest.mark.parametrize("drafter", ["recycling", "history"])
def test_forgetting_leaves_no_text_behind(plain: Pair, drafter: DrafterName) -> None:
    """What is kept between requests knows a text that it has seen: all guesses on it would be right."""
    request = Request(Sampling(temperature=0), 24, drafter=drafter, draft_length=4)

    def drafted() -> list[int]:
        return [round_.drafted for round_ in plain.generate([5, 6, 7, 5, 6, 7], request)]

    for _ in range(3):  # the odds of guesses are learned, and stay
        drafted()
    plain.forget()
    first, knowing = drafted(), drafted()
    assert sum(knowing) > sum(first) if drafter == "history" else sum(knowing[:4]) > sum(first[:4])
    plain.forget()
    assert drafted() == first
    plain.forget()
    assert all(context.held().size == 0 for context in plain.contexts.values())


# ---- what is learned of a pair ----------------------------------------------------------------------------


def known_files() -> list[Path]:
    """Those of pairs but the embedded one, with which each home begins (conftest.py)."""
    return sorted((cache_folder() / "pairs").glob("plain*"))


def test_what_was_learned_survives_closing_the_pair(files: dict[str, tuple[Path, Path]]) -> None:
    request = Request(GREEDY_FEW, 60, rng_seed=1)
    with Pair(*files["plain"], PROFILE) as pair:
        output(pair, some_prompt(0), request)
        costs, kinds = pair.costs(), pair.known.kinds
        assert [held.record.emitted for held in kinds.values()] == [60]
    [file] = known_files()
    with Pair(*files["plain"], PROFILE) as pair:
        assert repr(pair.known.kinds) == repr(kinds) and pair.known.costs == costs
        output(pair, some_prompt(1), request)
        assert [held.record.emitted for held in pair.known.kinds.values()] == [120]
    assert known_files() == [file], "one file, written over"


def test_requests_of_another_kind_begin_with_nothing(files: dict[str, tuple[Path, Path]]) -> None:
    """Guesses fare otherwise at another temperature, and where they are coupled."""
    with Pair(*files["plain"], PROFILE) as pair:
        for sampling, seed in ((GREEDY, None), (SAMPLED, None), (SAMPLED, 3), (replace(SAMPLED, top_k=9), 4)):
            output(pair, some_prompt(0), Request(sampling, 20, seed=seed))
        emitted = [held.record.emitted for held in pair.known.kinds.values()]
    assert len(emitted) == 3 and sum(emitted) > 60 and max(emitted) == max(emitted[2], 20)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\x00", b'{"format": 1, "costs": {}}'])
def test_a_cache_that_cannot_be_read_is_no_error(files: dict[str, tuple[Path, Path]], content: bytes) -> None:
    for _ in range(2):
        with Pair(*files["plain"], PROFILE) as pair:
            assert pair.known.kinds == {}
            run = output(pair, some_prompt(0), Request(GREEDY, 10))
            assert len(run.tokens) == 10
        [file] = known_files()
        file.write_bytes(content)


def test_a_cache_folder_that_cannot_be_made_is_no_error(
    files: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "file"))
    with Pair(*files["plain"], PROFILE) as pair:
        assert len(output(pair, some_prompt(0), Request(GREEDY, 10)).tokens) == 10


@pytest.mark.parametrize("wanted", [{"drafter": "none"}, {"draft_length": 4}, {"draft_length": 0}])
def test_costs_are_measured_only_where_they_are_weighed(
    files: dict[str, tuple[Path, Path]], wanted: dict[str, Any]
) -> None:
    with Pair(*files["plain"], PROFILE) as pair:
        before = evaluated(pair)
        output(pair, some_prompt(0), Request(GREEDY, 10, **wanted))
        assert evaluated(pair)[0] - before[0] < 24 + 10 * 5 + 1, "nothing but the request"
        assert pair.known.costs is None
        first = pair.costs()
        assert pair.costs() is first, "measured once"


def test_by_default_the_controller_decides_and_all_may_guess() -> None:
    assert Request().draft_length is None and Request().drafter == "auto"


def test_the_gain_that_was_expected_of_a_round_is_reported(plain: Pair) -> None:
    run = output(plain, some_prompt(0), Request(GREEDY_FEW, 80))
    assert all(round_.gain >= 1 for round_ in run.rounds)
    assert all(round_.gain == 1 for round_ in run.rounds if not round_.drafted)
    fixed = output(plain, some_prompt(0), Request(GREEDY_FEW, 20, draft_length=3))
    assert {round_.gain for round_ in fixed.rounds} == {1.0}
