"""A draft with another vocabulary guesses for a target, and no text depends on it.

Twins of the embedded draft have its weights and other vocabularies: with ids in another order nothing may
change, with the rarer tokens gone only how often it is right. The real vocabularies are the test data's.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fakes
import llama_cpp as C
import numpy as np
import pytest
import twins

import edgespec
from edgespec.core.loop import Want
from edgespec.core.values import Emitted, Failed
from edgespec.core.verify import verify_block, verify_tokens
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings
from edgespec.llama.translated_context import TranslatedContext
from edgespec.pairs.check import check_pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Distribution, Sampler, Sampling
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.translation import Spelling, Translation, spelling_of, translation

SETTINGS = PairSettings(remember=False, threads=1, n_ctx=1024)
TRIMMED = {"three quarters": 3072, "half": 2048}
GREEDY, WARM = Sampling(temperature=0), Sampling(temperature=1)
PROMPTS = ("def main():", "class Stack:\n    def push", "The file is opened for reading, and")
NAMES = ("qwen2", "llama-bpe", "llama-spm", "deepseek-coder", "gpt-2", "phi-3")


@pytest.fixture(scope="module")
def drafts(tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("twins")
    found = {"own": tiny_draft, "permuted": twins.permuted(tiny_draft, folder / "permuted.gguf")}
    for name, size in TRIMMED.items():
        found[name] = twins.trimmed(tiny_draft, folder / f"{size}.gguf", size)
    return found


def answers(pair: Pair, **wanted: object) -> list[tuple[str, int, int]]:
    """Returns (text, drafted, accepted) behind each prompt."""
    request = edgespec.Request(max_tokens=40, **wanted)  # type: ignore[arg-type]
    found = [edgespec.generate(pair, prompt, request) for prompt in PROMPTS]
    return [(answer.text, answer.figures.drafted, answer.figures.accepted) for answer in found]


REQUESTS = [
    {"sampling": GREEDY},
    {"sampling": WARM, "seed": 5},
    {"sampling": WARM, "rng_seed": 7, "rule": "token"},
    {"sampling": Sampling(temperature=0.8, repeat_penalty=1.3, top_k=30), "rng_seed": 7},
]


@pytest.mark.slow
def test_ids_in_another_order_change_nothing(tiny_target: Path, drafts: dict[str, Path]) -> None:
    """Text, guesses and acceptance, greedy, seeded, drawn and with penalties are those of the original."""
    found = []
    for name in ("own", "permuted"):
        with Pair(tiny_target, drafts[name], SETTINGS) as pair:
            found.append([answers(pair, drafter="model", draft_length=4, **wanted) for wanted in REQUESTS])
    assert found[0] == found[1]
    assert sum(accepted for of in found[1] for _, _, accepted in of) > 100


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TRIMMED)
def test_a_draft_of_fewer_tokens_changes_no_text(
    tiny_target: Path, drafts: dict[str, Path], name: str
) -> None:
    with Pair(tiny_target, drafts[name], replace(SETTINGS, byte_identical=True)) as pair:
        assert pair.translation and 0 < pair.translation.shared < 1
        for wanted in ({"sampling": GREEDY}, {"sampling": WARM, "seed": 5}):
            plain = [text for text, _, _ in answers(pair, drafter="none", **wanted)]
            drafted = answers(pair, drafter="model", draft_length=4, **wanted)
            assert [text for text, _, _ in drafted] == plain
            assert sum(accepted for _, _, accepted in drafted) > 25


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "least"),
    [("permuted", 0.57), pytest.param("three quarters", 0.55, marks=pytest.mark.slow), ("half", 0.51)],
)
def test_what_is_lost_to_a_smaller_vocabulary_is_little(
    tiny_target: Path, drafts: dict[str, Path], name: str, least: float
) -> None:
    """1 - TV at T=1 behind 200 places of the target's texts: 0.59 with the draft's own vocabulary."""
    sampler = Sampler(WARM, 4096)
    common = []
    with Pair(tiny_target, drafts[name], SETTINGS) as pair:
        guessing = pair.streams.draft_sampler(WARM)
        for n, prompt in enumerate(PROMPTS * 2):
            generated = edgespec.generate(
                pair, prompt, edgespec.Request(max_tokens=50, sampling=WARM, seed=n)
            )
            tokens = np.append(pair.prompt_tokens(prompt), np.array(generated.tokens, np.int32))
            for end in range(tokens.size - len(generated.tokens), tokens.size):
                want = [Want(tokens[:end])]
                p = sampler(pair.contexts["target"].score(want)[0][0])
                q = guessing(pair.contexts["draft"].score(want)[0][0])
                common.append(np.minimum(p.probs, q.on(p.ids)).sum())
    assert len(common) > 150
    assert np.mean(common) > least - 0.06  # standard error 0.022


def test_streams_with_a_translated_draft_say_what_each_says_alone(
    tiny_target: Path, drafts: dict[str, Path]
) -> None:
    asked = {
        prompt: edgespec.Request(max_tokens=30, seed=seed, drafter="model", draft_length=3)
        for seed, prompt in enumerate(PROMPTS)
    }
    same = {"flash_attention": True}  # which would be chosen by the number of slots, and rounds differently
    with Pair(tiny_target, drafts["half"], replace(SETTINGS, **same)) as pair:
        alone = {prompt: edgespec.generate(pair, prompt, request).tokens for prompt, request in asked.items()}
    settings = replace(SETTINGS, slots=3, **same)
    with Pair(tiny_target, drafts["half"], settings) as pair:
        engine = Engine(pair, slots=3)
        for prompt, request in asked.items():
            engine.submit(prompt, pair.prompt_tokens(prompt), request)
        found: dict[str, list[int]] = {prompt: [] for prompt in asked}
        while not engine.idle:
            for happening in engine.step():
                if hasattr(happening, "round"):
                    found[happening.id] += happening.round.tokens
    assert {prompt: tuple(tokens) for prompt, tokens in found.items()} == alone


# ---- exact, by enumeration


@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
def test_guesses_from_a_part_of_the_vocabulary_leave_the_distribution(judge: fakes.Judge) -> None:
    """p over five tokens, q over the three that both have: what is emitted is p's, to 1e-12."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        weights = {path: rng.random((2, 5)) for path in paths(5, 3)}

        def p(path: tuple[int, ...], of: object = weights) -> Distribution:
            return fakes.distribution_of(of[path][0])  # type: ignore[index]

        def q(path: tuple[int, ...], of: object = weights) -> Distribution:
            row = of[path][1].copy()  # type: ignore[index]
            row[[1, 4]] = 0.0
            return fakes.distribution_of(row)

        law = fakes.completed(fakes.emitted(judge, p, q, 2), p, 3)
        assert fakes.distance(law, fakes.joint(p, 3)) < 1e-12


def test_a_guess_that_is_not_renormalised_is_seen_to_be_inexact() -> None:
    """The mutation: what was drawn from the part is told as if it had been drawn from the whole."""
    rng = np.random.default_rng(0)
    weights = {path: rng.random((2, 5)) for path in paths(5, 3)}

    def p(path: tuple[int, ...]) -> Distribution:
        return fakes.distribution_of(weights[path][0])

    def whole(path: tuple[int, ...]) -> Distribution:
        return fakes.distribution_of(weights[path][1])

    def part(path: tuple[int, ...]) -> Distribution:
        row = weights[path][1].copy()
        row[[1, 4]] = 0.0
        return fakes.distribution_of(row)

    def judge(draft: edgespec.core.values.Draft, of: object, chance: np.random.Generator) -> object:
        told = Distribution(draft.probs[0].ids, draft.probs[0].probs * 0.6)
        return verify_tokens(edgespec.core.values.Draft(draft.tokens, (told,), draft.sources), of, chance)  # type: ignore[arg-type]

    law = fakes.completed(fakes.emitted(judge, p, part, 1), p, 2)  # type: ignore[arg-type]
    assert fakes.distance(law, fakes.joint(p, 2)) > 0.01


def paths(n_vocab: int, length: int) -> Iterator[tuple[int, ...]]:
    yield ()
    if length:
        for path in paths(n_vocab, length - 1):
            if len(path) == length - 1:
                for token in range(n_vocab):
                    yield (*path, token)
    if length > 1:
        yield from (path for path in paths(n_vocab, length - 1) if path)


# ---- caches


def translated(draft: Path, target: Path, **settings: int) -> TranslatedContext:
    table = translation(read_file(target), read_file(draft))
    context = Context(Model(draft), ContextSettings(n_ctx=512, n_seq=2, n_rows=4, threads=1, **settings))
    return TranslatedContext(context, table, 4096)


def test_whatever_was_cut_saved_or_shared_the_next_rows_are_those_of_a_fresh_reading(
    tiny_target: Path, drafts: dict[str, Path]
) -> None:
    rng = np.random.default_rng(3)
    with Model(tiny_target) as model:
        text = model.tokenize(
            b"import os\n\ndef read(path):\n    with open(path) as file:\n" * 4, special=False
        )
        text = np.where(rng.random(text.size) < 0.3, rng.integers(5, 4096, text.size), text).astype(np.int32)
    with translated(drafts["half"], tiny_target) as used, translated(drafts["half"], tiny_target) as fresh:
        saved = None
        for turn in range(40):
            seq, end = int(rng.integers(2)), int(rng.integers(2, text.size - 3))
            act = turn % 5
            if act == 1:
                used.cut(seq, min(end, used.held(seq).size))
            elif act == 2 and used.held(seq).size:
                saved = used.save(seq)
            elif act == 3 and saved is not None:
                assert used.restore(seq, saved)
                assert (used.held(seq) == np.frombuffer(saved.tokens, np.int32)).all()
            elif act == 4 and 3 < used.held(1 - seq).size:
                used.share(1 - seq, seq, used.held(1 - seq).size - 1)
            rows = int(rng.integers(1, 3))
            tail = [piece for token in text[end : end + 2].tolist() for piece in used.spelt(token)]
            want = Want(text[:end], tuple(tail), rows, seq)
            found = used.score([want])[0].copy()
            fresh.clear(seq)
            again = fresh.score([want])[0]
            assert np.abs(found - again).max() < 0.6, turn  # batches round; stale cells: 3
            assert (used.held(seq) == text[:end]).all()


def test_a_text_that_is_longer_for_the_draft_than_its_context_is_read_from_later_on(
    tiny_target: Path, drafts: dict[str, Path]
) -> None:
    """Rare tokens are several for the draft: 500 of them do not fit 512 cells."""
    with translated(drafts["half"], tiny_target) as context:
        rare = np.array([token for token in range(2048, 4096) if token not in (0, 1)][:500], np.int32)
        rows = context.score([Want(rare)])[0]
        assert np.isfinite(rows).any() and context.held().size in (0, rare.size)
        assert context.own.held().size <= 512


def test_what_is_not_known_by_the_targets_tokens_is_neither_saved_nor_shared(
    tiny_target: Path, drafts: dict[str, Path]
) -> None:
    """A state without its tokens, restored, would leave cells that nobody knows of."""
    with translated(drafts["half"], tiny_target) as context:
        rare = np.arange(2048, 2548, dtype=np.int32)
        context.score([Want(rare)])
        assert not context.held().size and not context.share(0, 1, 100)
        saved = context.save(0)
        assert context.restore(0, saved) and not context.own.held().size
        few = np.arange(5, 25, dtype=np.int32)
        again = context.score([Want(few)])[0].copy()
        context.clear()
        fresh = context.score([Want(few)])[0]
        assert np.abs(again - fresh).max() < 0.6


def test_a_draft_guesses_after_a_prompt_that_has_no_text_for_it(
    tiny_target: Path, drafts: dict[str, Path]
) -> None:
    """Tokens without text, as padding has: the draft was asked for what follows nothing, and all ended."""
    with Pair(tiny_target, drafts["half"], replace(SETTINGS, slots=2)) as pair:
        draft = pair.draft_context
        assert isinstance(draft, TranslatedContext)
        rare = [token for token in range(2048, 4096) if len(draft.spelt(token)) > 1][:3]
        for token in rare:
            draft._pieces._several[token] = np.empty(0, np.int32)
        prompts = {"silent": np.array(rare, np.int32), "said": pair.prompt_tokens(PROMPTS[0])}
        always = Sampling(temperature=0, logit_bias={rare[0]: 1e9})  # so its answer is as silent
        requests = {
            id: edgespec.Request(sampling, max_tokens=12, drafter="model", draft_length=4)
            for id, sampling in {"silent": always, "said": GREEDY}.items()
        }
        engine = Engine(pair, slots=2)
        said: dict[str, list[int]] = {id: [] for id in prompts}
        drafted = dict.fromkeys(prompts, 0)
        for id, prompt in prompts.items():
            engine.submit(id, prompt, requests[id])
        while not engine.idle:
            for happened in engine.step():
                assert not isinstance(happened, Failed), happened
                if isinstance(happened, Emitted):
                    said[happened.id] += happened.round.tokens
                    drafted[happened.id] += happened.round.drafted
                    assert not happened.round.notice
        for id, prompt in prompts.items():
            plain = pair.generate(prompt, replace(requests[id], drafter="none", draft_length=None))
            assert said[id] == [token for round_ in plain for token in round_.tokens] and drafted[id] > 4


# ---- real vocabularies


@pytest.fixture(scope="module")
def vocabularies(test_data: Path) -> dict[str, Path]:
    return {name: test_data / "vocab" / f"ggml-vocab-{name}.gguf" for name in NAMES}


@functools.cache
def spelled(path: Path) -> Spelling:
    return spelling_of(read_file(path))


@functools.cache
def table_of(target: Path, draft: Path) -> Translation:
    return translation(read_file(target), read_file(draft))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_is_spelt_as_llama_cpp_spells_it(name: str, vocabularies: dict[str, Path]) -> None:
    spelling = spelled(vocabularies[name])
    params = C.llama_model_default_params()
    params.vocab_only = True
    model = C.llama_model_load_from_file(str(vocabularies[name]).encode(), params)
    try:
        vocabulary = C.llama_model_get_vocab(model)
        buffer = C.ctypes.create_string_buffer(512)
        for token in range(0, C.llama_vocab_n_tokens(vocabulary), 1 if name == "llama-spm" else 7):
            n = C.llama_token_to_piece(vocabulary, token, buffer, 512, 0, False)
            if not C.llama_vocab_is_control(vocabulary, token):
                assert buffer.raw[:n] == spelling.texts[token], token
    finally:
        C.llama_model_free(model)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("target", "draft", "least"),
    [("llama-bpe", "qwen2", 0.96), ("qwen2", "llama-bpe", 0.99), ("phi-3", "qwen2", 0.99)],
)
def test_what_people_pair_is_covered(
    target: str, draft: str, least: float, vocabularies: dict[str, Path]
) -> None:
    table = table_of(vocabularies[target], vocabularies[draft])
    from edgespec_models.gguf.sample_text import SAMPLE_TEXT

    assert table.coverage(SAMPLE_TEXT) > least
    both = np.flatnonzero(table.to_draft >= 0)
    assert (table.to_target[table.to_draft[both]] == both).all(), "each is the other's inverse"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("target", "draft"), [("llama-bpe", "qwen2"), ("qwen2", "llama-spm"), ("phi-3", "gpt-2")]
)
def test_a_text_is_read_with_all_its_bytes_wherever_it_is_cut(
    target: str, draft: str, vocabularies: dict[str, Path]
) -> None:
    """Random tokens, parts of characters among them: what the draft reads is what the target has said."""
    table = table_of(vocabularies[target], vocabularies[draft])
    ours, theirs = spelled(vocabularies[target]), spelled(vocabularies[draft])
    rng = np.random.default_rng(1)
    for token in rng.integers(0, len(ours.texts), 3000).tolist():
        if ours.names[token]:
            continue
        known = int(table.to_draft[token])
        pieces = [known] if known >= 0 else table.pieces(token)
        assert b"".join(theirs.texts[piece] for piece in pieces) == ours.texts[token]


def test_a_table_of_150_thousand_tokens_is_made_in_seconds(vocabularies: dict[str, Path]) -> None:
    heads = read_file(vocabularies["llama-bpe"]), read_file(vocabularies["qwen2"])
    began = time.process_time()
    translation(*heads)
    assert time.process_time() - began < 10


def test_a_pair_of_one_vocabulary_is_not_translated(tiny_target: Path, tiny_draft: Path) -> None:
    assert check_pair(tiny_target, tiny_draft) is None
