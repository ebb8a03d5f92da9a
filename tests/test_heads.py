"""Pairs whose target has a head, or one beside it: text with the head is text without, everywhere."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
import pytest
import tiny_gemma
import tiny_gguf
import tiny_heads
from fakes import fits
from faulty_decode import decodes_by
from filling import fill_always
from numpy.typing import NDArray

from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.core.verify import Independent
from edgespec.engine.engine import Engine
from edgespec.engine.measuring import believable, measure_costs
from edgespec.engine.pair import Pair
from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError, SettingError
from edgespec.grammar.grammar import Grammar
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads import taps
from edgespec.llama.heads.guessing import head_context
from edgespec.llama.heads.head_context import HeadContext
from edgespec.llama.model import Model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec_models.gguf.heads import Head

NEVER = dict.fromkeys((509, 511), -float("inf"))  # tokens that end a text: some would be of six tokens
GREEDY = Request(Sampling(temperature=0, logit_bias=NEVER), max_tokens=50)
SEEDED = Request(Sampling(logit_bias=NEVER), seed=7, max_tokens=50)
FFN = ("ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
Tokens = NDArray[np.int32]
Files = tuple[Path, Path | None]  # of target and, where it has a file of its own, head


def mtp(folder: Path) -> Files:
    return tiny_heads.write_mtp(folder / "mtp.gguf"), None


def experts(folder: Path) -> Files:
    return tiny_heads.write_experts_mtp(folder / "experts.gguf"), None


def hybrid(folder: Path) -> Files:
    return tiny_heads.write_hybrid_mtp(folder / "hybrid.gguf"), None


def two_blocks(folder: Path) -> Files:
    return tiny_heads.write_mtp(folder / "two.gguf", blocks=2), None


def sidecar(folder: Path) -> Files:
    """The MTP block in a file of its own, without the layers of the target."""
    names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", *FFN)
    gone = {f"blk.{il}.{name}.weight": None for il in (0, 1) for name in names}
    target = tiny_heads.write_mtp(folder / "target.gguf")
    return target, tiny_heads.write_mtp(folder / "mtp-target.gguf", tensors=gone)


def eagle(folder: Path) -> Files:
    target = tiny_heads.write_mtp(folder / "target.gguf", depth=0.3)
    return target, tiny_heads.write_eagle(folder / "eagle.gguf", layers=(0, 1, 1))


def small_eagle(folder: Path) -> Files:
    """A head that knows 300 of the target's 512 tokens, for an ordinary target."""
    target = tiny_gguf.write_llama(folder / "llama.gguf", layers=3)
    return target, tiny_heads.write_eagle(folder / "small.gguf", d2t=range(300))


def dflash(folder: Path) -> Files:
    target = tiny_heads.write_mtp(folder / "target.gguf", depth=0.3)
    return target, tiny_heads.write_dflash(folder / "dflash.gguf")


def dspark(folder: Path) -> Files:
    target = tiny_gguf.write_llama(folder / "llama.gguf", layers=3)
    return target, tiny_heads.write_dflash(folder / "dspark.gguf", follows=16)


def dflash2(folder: Path) -> Files:
    """Its guesses are drawn from six candidates each, weighed by the guess before."""
    target = tiny_heads.write_mtp(folder / "target.gguf", depth=0.3)
    return target, tiny_heads.write_dflash(folder / "dflash2.gguf", candidates=6)


def assistant(folder: Path) -> Files:
    """A head that reads its target's cache and has none of its own."""
    return tiny_gemma.write_gemma(folder / "gemma.gguf"), tiny_gemma.write_assistant(folder / "a.gguf")


FILES = (mtp, experts, hybrid, two_blocks, sidecar, eagle, small_eagle, dflash, dflash2, dspark, assistant)


@pytest.fixture(scope="module", params=FILES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    found: Files = request.param(tmp_path_factory.mktemp("heads"))
    return found


@pytest.fixture
def attending(tmp_path: Path) -> Path:
    return mtp(tmp_path)[0]


@pytest.fixture
def pair(files: Files) -> Iterator[Pair]:
    with Pair(*files, PairSettings(remember=False)) as pair:
        yield pair


def prompt(seed: int = 0, n: int = 30) -> Tokens:
    return np.random.default_rng(seed).integers(0, 255, n).astype(np.int32)


def generated(pair: Pair, request: Request, tokens: Tokens | None = None) -> list[int]:
    rounds = pair.generate(prompt() if tokens is None else tokens, request)
    return [token for round_ in rounds for token in round_.tokens]


def longest(pair: Pair, length: int) -> int:
    """How many guesses at once a head makes that is asked for so many."""
    assert pair.head is not None
    return min(pair.head.longest or length, length)


def plain(request: Request) -> Request:
    return changed(request, drafter="none")


def changed(request: Request, **changes: Any) -> Request:
    return replace(request, **changes)


@pytest.mark.sample(3)
@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "request_, length",
    [
        pytest.param(GREEDY, 4, id="greedy-4"),
        pytest.param(SEEDED, 8, id="seeded-8"),
        *(pytest.param(GREEDY, n, id=f"greedy-{n}", marks=pytest.mark.slow) for n in (1, 8)),
        *(pytest.param(SEEDED, n, id=f"seeded-{n}", marks=pytest.mark.slow) for n in (1, 4)),
    ],
)
def test_text_with_a_head_is_text_without(pair: Pair, request_: Request, length: int) -> None:
    wanted = generated(pair, plain(request_))
    with_head = changed(request_, drafter="model", draft_length=length)
    assert generated(pair, with_head) == wanted
    rounds = list(pair.generate(prompt(), with_head))
    accepted, drafted = sum(r.accepted for r in rounds), sum(r.drafted for r in rounds)
    assert max(r.drafted for r in rounds) <= longest(pair, length)
    assert accepted < drafted or length == 1
    lucky = pair.head is not None and pair.head.kind != "dflash" and pair.target.architecture != "llama"
    assert accepted > 0 or length == 1 or not lucky, "or this shows little"


@pytest.mark.sample(4)
def test_a_head_whose_every_guess_is_wrong_changes_nothing(pair: Pair, monkeypatch: Any) -> None:
    """The worst way back: each round withdraws all that it drafted."""
    wanted = generated(pair, plain(SEEDED))
    draft = DraftModel.draft

    def wrong(self: DraftModel, tokens: Tokens, limit: int, rule: Any, otherwise: Any = ()) -> Any:
        made = yield from draft(self, tokens, limit, _Wrong(rule, wanted, prompt().size), otherwise)
        return made

    monkeypatch.setattr(DraftModel, "draft", wrong)
    rounds = list(pair.generate(prompt(), changed(SEEDED, drafter="model", draft_length=8)))
    assert sum(r.drafted for r in rounds) > longest(pair, 8) / 2 * len(wanted) > 0
    assert sum(r.accepted for r in rounds) == 0
    assert [token for round_ in rounds for token in round_.tokens] == wanted


@pytest.mark.sample(2)
def test_a_head_never_reads_rows_that_are_thrown_away(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    request = changed(SEEDED, drafter="model", draft_length=3)
    usual = [round_.accepted for round_ in pair.generate(prompt(), request)]
    pair.forget()
    added = fill_always(monkeypatch)
    rounds = list(pair.generate(prompt(), request))
    assert [round_.accepted for round_ in rounds] == usual, "what it guesses is the same"
    assert [token for round_ in rounds for token in round_.tokens] == generated(pair, plain(request))
    assert bool(sum(added)) == pair.contexts["target"].fills


class _Wrong:
    """Draws a guess that is not what will be said there."""

    def __init__(self, rule: Any, wanted: list[int], start: int) -> None:
        self._rule, self._wanted, self._start = rule, wanted, start

    def draw(self, q: Any, position: int) -> int:
        i = position - self._start
        truth = self._wanted[i] if i < len(self._wanted) else 0
        return 5 if truth != 5 else 6


@pytest.mark.sample(8)
@pytest.mark.parametrize("evaluates", [False, True])
def test_a_head_that_fails_or_is_interrupted_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, evaluates: bool
) -> None:
    """Its cells were in nobody's record after Ctrl+C: every later request ended with "code -1 on a head"."""
    request = changed(SEEDED, drafter="model", draft_length=3, max_tokens=20)
    wanted, head, real = generated(pair, plain(request)), pair.contexts["draft"], C.llama_decode
    calls: list[int] = []

    def failing(handle: Any, batch: Any) -> int:
        if handle != head._handle:  # type: ignore[union-attr]
            return int(real(handle, batch))
        calls.append(batch.n_tokens)
        if len(calls) % 3:
            return int(real(handle, batch))
        if not evaluates:
            return -3
        real(handle, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        decodes_by(patch, failing)
        if evaluates:
            with pytest.raises(KeyboardInterrupt):
                generated(pair, request)
        else:
            rounds = list(pair.generate(prompt(), request))
            assert [token for round_ in rounds for token in round_.tokens] == wanted
            assert "code -3" in rounds[-1].notice and len(calls) == 3, "it is not asked again"
    rounds = list(pair.generate(prompt(), request))
    assert [token for round_ in rounds for token in round_.tokens] == wanted
    assert sum(round_.drafted for round_ in rounds) and not rounds[-1].notice


@pytest.mark.sample(3)
def test_no_token_of_the_target_is_evaluated_twice(pair: Pair) -> None:
    """Up to eight guesses, hybrids included: after a rejection, the target goes on from what it holds."""
    for length in (1, 3, 8):
        pair.forget()
        context = pair.contexts["target"]
        before = context.evaluated
        rounds = list(pair.generate(prompt(), changed(GREEDY, drafter="model", draft_length=length)))
        verified = sum(r.drafted + 1 for r in rounds[1:])
        assert context.evaluated - before == prompt().size + verified


@pytest.mark.sample(4)
def test_the_pace_lets_a_head_compete_and_leaves_text_alone(pair: Pair) -> None:
    for request in (GREEDY, SEEDED):
        assert generated(pair, request) == generated(pair, plain(request))


FORMED = Grammar("regex", "(item [a-z]{1,6}: (yes|no), ){3}end")  # some of it is settled without the target


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "sampling",
    [pytest.param(GREEDY.sampling, marks=pytest.mark.slow), Sampling(repeat_penalty=1.3, top_k=40)],
)
def test_heads_guess_under_a_grammar_and_under_penalties(pair: Pair, sampling: Sampling) -> None:
    for grammar in (FORMED, None):
        request = Request(sampling, max_tokens=40, seed=3, grammar=grammar)
        wanted = generated(pair, plain(request))
        assert len(wanted) > 10
        assert generated(pair, changed(request, drafter="model", draft_length=4)) == wanted


def answers(
    files: Files, slots: int, requests: list[Request], texts: list[Tokens], **how: Any
) -> list[list[int]]:
    """Returns what an engine with so many slots says to all of them."""
    found: dict[str, list[int]] = {str(i): [] for i in range(len(texts))}
    settings = PairSettings(remember=False, slots=slots, n_ctx=200, **how)
    with Pair(*files, settings) as pair:
        engine = Engine(pair, slots=pair.slots, cache_ram=2**24)
        for i, (tokens, request) in enumerate(zip(texts, requests, strict=True)):
            engine.submit(str(i), tokens, request)
        while not engine.idle:
            for happened in engine.step():
                assert not isinstance(happened, Failed), happened
                if isinstance(happened, Emitted):
                    found[happened.id] += happened.round.tokens
    return list(found.values())


@pytest.mark.sample(2)
@pytest.mark.parametrize("slots", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_slots_share_a_head_and_say_what_each_would_say_alone(files: Files, slots: int) -> None:
    texts = [prompt(seed, 10 + 9 * seed) for seed in range(6)]
    texts.append(np.append(texts[5], prompt(9, 5)))
    how = {"drafter": "model", "draft_length": 3, "max_tokens": 24}  # longer ones meet near-ties of rounding
    requests = [changed(SEEDED if i % 2 else GREEDY, **how) for i in range(7)]
    wanted = answers(files, 1, [plain(request) for request in requests], texts)
    assert answers(files, slots, requests, texts) == wanted


@pytest.mark.sample(4)
def test_a_second_turn_is_not_read_by_the_head_from_the_start(files: Files) -> None:
    """Neither in its slot, nor out of host memory."""
    how = changed(GREEDY, drafter="model", draft_length=3, max_tokens=6)
    first, other = prompt(1, 120), prompt(2, 120)
    with Pair(*files, PairSettings(remember=False, slots=1, n_ctx=200)) as pair:
        engine, head = Engine(pair, slots=1, cache_ram=2**24), pair.contexts["draft"]
        answer = run(engine, first, how)
        before = head.evaluated
        second = np.concatenate([first, np.array(answer, np.int32), prompt(3, 10)])
        second = np.concatenate([second, np.array(run(engine, second, how), np.int32)])
        assert head.evaluated - before < 70
        run(engine, other, how)
        before = head.evaluated
        run(engine, np.append(second, prompt(4, 10)), how)
        assert head.evaluated - before < 70


def run(engine: Engine, tokens: Tokens, request: Request) -> list[int]:
    said_: list[int] = []
    engine.submit("it", tokens, request)
    while not engine.idle:
        for happened in engine.step():
            assert not isinstance(happened, Failed), happened
            said_ += happened.round.tokens if isinstance(happened, Emitted) else ()
    return said_


def test_requests_that_wait_for_cells_go_on_with_their_head(attending: Path) -> None:
    """Two that do not fit together: one is suspended, moved to host memory, and comes back."""
    texts = [prompt(1, 100), prompt(2, 90), prompt(3, 60)]
    requests = [changed(GREEDY, drafter="model", draft_length=3, max_tokens=80)] * 3
    files = attending, None
    wanted = answers(files, 1, [plain(request) for request in requests], texts)
    assert answers(files, 3, requests, texts, cache_tokens=260) == wanted


def test_drawn_text_has_the_distribution_of_the_target(attending: Path) -> None:
    """The second token at temperature 1, guesses drawn by the head; one false alarm in a million."""
    assert drawn_as_expected(attending)


@pytest.mark.slow
def test_text_drawn_from_weighed_candidates_has_the_distribution_of_the_target(tmp_path: Path) -> None:
    assert drawn_as_expected(*dflash2(tmp_path))


@pytest.mark.slow
def test_guesses_not_drawn_from_what_was_reported_are_seen(attending: Path, monkeypatch: Any) -> None:
    """The head guesses its likeliest token, and tells that it drew."""
    monkeypatch.setattr(Independent, "draw", lambda self, q, position: q.likeliest()[0])
    assert not drawn_as_expected(attending)


def drawn_as_expected(target: Path, head: Path | None = None, n: int = 600) -> bool:
    sampling = Sampling(temperature=1.0, top_k=6, top_p=1.0, min_p=0.0)
    with Pair(target, head, PairSettings(remember=False)) as pair:
        tokens = prompt()
        counts: Counter[int] = Counter()
        for seed in range(n):
            how = Request(sampling, max_tokens=3, rng_seed=seed, drafter="model", draft_length=2)
            counts[(*generated(pair, how, tokens), -1, -1)[1]] += 1
        expected = _second_tokens(pair, tokens, sampling)
    return fits(counts, expected)


def _second_tokens(pair: Pair, tokens: Tokens, sampling: Sampling) -> dict[int, float]:
    """Returns how likely each token is as the second behind `tokens`; -1 stands for none."""
    sampler, context = Sampler(sampling, pair.target.n_vocab), pair.contexts["target"]
    found: dict[int, float] = {}
    first = sampler(context.score([Want(tokens)])[0][0], tokens)
    for token, p in zip(first.ids.tolist(), first.probs.tolist(), strict=True):
        longer = np.append(tokens, np.int32(token))
        if token in pair.target.end_tokens:
            found[-1] = found.get(-1, 0.0) + p
            continue
        second = sampler(context.score([Want(longer)])[0][0], longer)
        for after, q in zip(second.ids.tolist(), second.probs.tolist(), strict=True):
            after = -1 if after in pair.target.end_tokens else after
            found[after] = found.get(after, 0.0) + p * q
    return found


@pytest.mark.sample(4)
def test_what_a_head_costs_is_not_believed_when_the_machine_stood_still(pair: Pair) -> None:
    """A guess said to take five tokens' time was never tried again, and so never timed again."""
    contexts = pair.contexts
    target, head = contexts["target"], contexts["draft"]
    assert isinstance(target, Context)
    assert head.first_s > 0
    found = measure_costs(target, head)
    found.draft.points = {n: seconds + 20 * head.first_s for n, seconds in found.draft.points.items()}
    found.draft._curve = None
    assert not believable(found, target, head)


# ---- what is no head, or not for this target --------------------------------------------------------------


def test_blocks_that_are_not_there_or_not_loaded_are_refused_where_llama_cpp_would_end_the_process(
    attending: Path, tmp_path: Path
) -> None:
    settings, head = ContextSettings(n_ctx=64, chunk=32), Head("mtp", 1, alone=False)
    for path, mtp in ((tiny_gguf.write_llama(tmp_path / "llama.gguf"), True), (attending, False)):
        with Model(path, mtp=mtp) as model, Context(model, settings) as target:
            with pytest.raises(ModelUnsupportedError, match="has no MTP blocks, or was loaded without them"):
                head_context(model, target, settings, head)


def test_a_head_can_be_left_out(attending: Path) -> None:
    with Pair(attending, settings=PairSettings(remember=False, head=False)) as pair:
        assert pair.head is None
        assert list(pair.contexts) == ["target"]


def test_a_target_without_blocks_has_no_head(tmp_path: Path) -> None:
    """Its header may say otherwise: some who quantise models leave the blocks out."""
    gone = {f"blk.2.nextn.{name}.weight": None for name in ("eh_proj", "enorm", "hnorm")}
    for path in (
        tiny_gguf.write_llama(tmp_path / "llama.gguf"),
        tiny_heads.write_mtp(tmp_path / "cut.gguf", tensors=gone),
    ):
        with Pair(path, settings=PairSettings(remember=False)) as pair:
            assert pair.head is None
            assert len(generated(pair, changed(GREEDY, max_tokens=4))) == 4


def test_a_head_that_cannot_run_leaves_nothing_in_its_target(
    attending: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target went on keeping hidden rows of every token, or failed where there were none."""

    def refused(_: object) -> None:
        raise ModelUnsupportedError("no hidden rows")

    monkeypatch.setattr(HeadContext, "_find_way", refused)
    with Pair(attending, settings=PairSettings(remember=False)) as pair:
        assert list(pair.contexts) == ["target"]
        assert pair.contexts["target"]._cells.hidden is None
        assert len(generated(pair, changed(GREEDY, max_tokens=4))) == 4


def test_blocks_that_llama_cpp_would_end_the_process_on_are_passed_over(tmp_path: Path) -> None:
    path = tiny_heads.write_mtp(tmp_path / "odd.gguf", tensors={"blk.2.nextn.hnorm.weight": None})
    with pytest.raises(Exception, match="llama.cpp cannot load"), Pair(path, settings=PairSettings()):
        pass


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target_d": 32}, "it reads hidden states of 32 numbers, and the target's have 64"),
        ({"layers": (0, 1, 9)}, "it reads layer 9 of its target, and this one has 3"),
        ({"layers": (0, 1)}, "it reads 2 layers of its target, and an EAGLE-3 head reads three"),
        ({"d2t": (0, 1, 900)}, "its table of token ids .d2t. names token 900 of 512"),
        ({"n_vocab": 700}, "the target's vocabulary has 512 tokens and the draft's 700"),
    ],
)
def test_a_head_for_another_target_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    target = tiny_gguf.write_llama(tmp_path / "llama.gguf", layers=3)
    head = tiny_heads.write_eagle(tmp_path / "eagle.gguf", **changes)
    with pytest.raises(PairMismatchError, match=why), Pair(target, head):
        pass


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"block": 1}, "its block has 1 tokens, and 2 to 64 can be run"),
        ({"metadata": {"tokenizer.ggml.mask_token_id": 600}}, "its file names no mask token"),
        (
            {"tensors": {"selector_hidden.weight": np.ones((4, 64), np.float32)}},
            "does not say how its candid",
        ),
        ({"candidates": 8}, "its hidden states of 64 numbers have no room for 8 candidates"),
        ({"layers": (0, 7)}, "it reads layer 7 of its target, and this one has 3"),
    ],
)
def test_a_dflash_head_that_cannot_be_run_is_refused_in_a_sentence(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    target = tiny_gguf.write_llama(tmp_path / "llama.gguf", layers=3)
    head = tiny_heads.write_dflash(tmp_path / "dflash.gguf", **changes)
    with pytest.raises(PairMismatchError, match=why):
        Pair(target, head)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("embedding_length_out", 32, "it reads hidden states of 32 numbers, and the target's have 64"),
        ("nextn_predict_layers", 1, "its file does not say that all its layers guess"),
        ("attention.head_count_kv", 4, "it reads 4 heads of the cache where the target has 2"),
        ("attention.key_length", 32, "its key_length is 32, and the target's 16"),
    ],
)
def test_an_assistant_of_another_target_is_refused_in_a_sentence(
    tmp_path: Path, key: str, value: int, why: str
) -> None:
    target = tiny_gemma.write_gemma(tmp_path / "gemma.gguf")
    head = tiny_gemma.write_assistant(tmp_path / "a.gguf", metadata={f"gemma4-assistant.{key}": value})
    with pytest.raises(PairMismatchError, match=why):
        Pair(target, head)
    llama = tiny_gguf.write_llama(tmp_path / "llama.gguf")
    with pytest.raises(PairMismatchError, match="reads the cache of a gemma4, and the target's architect"):
        Pair(llama, head)
    with pytest.raises(ModelUnsupportedError, match="an assistant head alone"):
        Pair(head)


def test_an_assistant_may_have_several_layers_of_a_kind(tmp_path: Path) -> None:
    target = tiny_gemma.write_gemma(tmp_path / "gemma.gguf")
    head = tiny_gemma.write_assistant(tmp_path / "a.gguf", layers=3, pattern=[True, True, False])
    with Pair(target, head, PairSettings(remember=False)) as pair:
        assert generated(pair, changed(GREEDY, drafter="model", draft_length=3)) == generated(
            pair, plain(GREEDY)
        )


def test_a_head_of_a_target_that_shows_no_layers_is_refused(tmp_path: Path) -> None:
    target, head = (
        tiny_gguf.write_sliding(tmp_path / "gemma.gguf"),
        tiny_heads.write_eagle(tmp_path / "e.gguf"),
    )
    with pytest.raises(PairMismatchError, match="does not show what goes into the layers of gemma3"):
        Pair(target, head)


def test_a_head_without_its_target_is_refused(tmp_path: Path) -> None:
    head = tiny_heads.write_eagle(tmp_path / "eagle.gguf")
    with pytest.raises(ModelUnsupportedError, match="EAGLE-3 head alone, which generates no text"):
        Pair(head)


def test_a_head_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    target = tiny_gguf.write_llama(tmp_path / "llama.gguf", layers=3)
    whole = tiny_heads.write_eagle(tmp_path / "eagle.gguf").read_bytes()
    for n in (100, len(whole) // 2, len(whole) - 400):
        (tmp_path / "short.gguf").write_bytes(whole[:n])
        with pytest.raises(ModelFileError, match="short.gguf"):
            Pair(target, tmp_path / "short.gguf")


def test_a_drafter_that_is_not_loaded_is_named(attending: Path) -> None:
    with (
        Pair(attending, settings=PairSettings(remember=False)) as pair,
        pytest.raises(SettingError, match="the drafter is eagle, but mtp.gguf was loaded without an EAGLE-3"),
    ):
        generated(pair, changed(GREEDY, drafter="eagle"))


# ---- builds of llama.cpp that show less --------------------------------------------------------------------


def test_a_target_runs_without_its_head_where_llama_cpp_shows_no_hidden_states(
    attending: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp_ext", None)
    monkeypatch.delattr("llama_cpp.llama_cpp_ext", raising=False)
    with Pair(attending, settings=PairSettings(remember=False)) as pair:
        assert pair.head is None
        assert len(generated(pair, changed(GREEDY, max_tokens=4))) == 4


def test_a_head_that_reads_layers_is_refused_where_llama_cpp_does_not_show_them(
    tmp_path: Path, monkeypatch: Any
) -> None:
    target = tiny_gguf.write_llama(tmp_path / "llama.gguf", layers=3)
    head = tiny_heads.write_eagle(tmp_path / "eagle.gguf")
    monkeypatch.setattr(taps, "_GET_LAYER", "no_such_symbol")
    with pytest.raises(ModelUnsupportedError, match="does not show what goes into its layers"):
        Pair(target, head, PairSettings(remember=False))
