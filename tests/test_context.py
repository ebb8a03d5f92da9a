"""The cache is right: whatever was accepted, rejected, edited or cancelled before, the next logits
are those of a fresh evaluation of the same tokens; and no argument reaches llama.cpp that it would abort on.

Margins. The logits of these models have a standard deviation of 2. Evaluating tokens one at a time or many
at once rounds differently: without flash attention, F32 weights and an f16 cache, by at most 0.003 in 2,000
comparisons here, while a state with one wrong token anywhere is off by 0.08 and more (60 tried).
MARGIN lies between, and the mutation tests after the property tests show that it catches what it should.
In the byte-identical profile (Q8_0 weights, flash attention, one thread, evaluations of fewer than 64
tokens) nothing differs at all, if the machine has that profile.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from faulty_decode import decodes_by
from numpy.typing import NDArray

import edgespec.llama.model
from edgespec.core.loop import Want
from edgespec.errors import (
    DecodeAbortedError,
    EngineError,
    FatalDecodeError,
    InvalidBatchError,
    ModelUnsupportedError,
    NoRoomError,
    SettingError,
)
from edgespec.llama import context as module
from edgespec.llama import evaluation
from edgespec.llama.cells import Cells
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.evaluation import Evaluator
from edgespec.llama.log import listening
from edgespec.llama.model import Model
from edgespec.llama.settings import kv_bytes, new_context

MARGIN = 0.02
N_VOCAB = 512
LONGEST_TAIL = 12  # more than the SNAPSHOTS of a hybrid target
KINDS = ("plain", "hybrid", "recurrent")
WRITERS: dict[str, Callable[..., Path]] = {
    "plain": tiny_gguf.write_llama,
    "hybrid": tiny_gguf.write_hybrid,
    "recurrent": tiny_gguf.write_recurrent,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    """A model of each kind, and each again in the byte-identical profile's Q8_0."""
    folder, loaded = tmp_path_factory.mktemp("models"), {}
    for kind, write in WRITERS.items():
        loaded[kind] = Model(write(folder / f"{kind}.gguf"))
        loaded[kind + " Q8_0"] = Model(write(folder / f"{kind}-q8.gguf", dtype="Q8_0"))
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture
def plain(models: dict[str, Model]) -> Model:
    return models["plain"]


def settings(**changed: Any) -> ContextSettings:
    return ContextSettings(**{"n_ctx": 256, "threads": 1, "flash_attention": False} | changed)


def some_tokens(rng: np.random.Generator, n: int) -> NDArray[np.int32]:
    return rng.integers(0, N_VOCAB, n).astype(np.int32)


def fresh(model: Model, tokens: NDArray[np.int32], **changed: Any) -> NDArray[np.float32]:
    """Returns the logits behind `tokens` from a context that has seen nothing else."""
    with Context(model, settings(**changed)) as context:
        return context.score([Want(tokens)])[0][0].copy()


def furthest(rows: NDArray[np.float32], reference: NDArray[np.float32]) -> float:
    return float(np.abs(rows - reference).max())


# ---- the property -----------------------------------------------------------------------------------------


@dataclass
class Script:
    """Plays random rounds of speculation on one sequence, and edits, and remembers the worst logit error.

    As the loop uses a target (`at_once`: settled tokens and tail in one evaluation, a row for each guess),
    or as a drafter uses a draft (one guess more each time).
    """

    model: Model
    context: Context
    rng: np.random.Generator
    at_once: bool
    longest: int = 180  # tokens at most
    shortest_tail: int = 0
    seq: int = 0
    worst: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = some_tokens(self.rng, int(self.rng.integers(2, 30)))

    def change(self) -> None:
        """Does one of the things users do between generations: an edit, a new turn, going back, nothing."""
        rng, n = self.rng, self.tokens.size
        what = rng.integers(0, 6)
        if what == 0:
            self.tokens = self.tokens.copy()
            self.tokens[rng.integers(0, n)] = rng.integers(0, N_VOCAB)
        elif what == 1:
            self.tokens = np.concatenate([self.tokens, some_tokens(rng, int(rng.integers(1, 40)))])
        elif what == 2:
            self.tokens = self.tokens[: rng.integers(1, n + 1)]
        elif what == 3:
            self.tokens = self.tokens[: max(1, n - int(rng.integers(1, 8)))]
        if self.tokens.size > self.longest - LONGEST_TAIL - 2:
            self.tokens = self.tokens[: rng.integers(1, self.longest // 3)]

    def tail(self) -> tuple[int, ...]:
        return tuple(
            some_tokens(self.rng, int(self.rng.integers(self.shortest_tail, LONGEST_TAIL + 1))).tolist()
        )

    def settle(self, tail: tuple[int, ...]) -> None:
        """Accepts a part of the tail and a token after it, or is cancelled and keeps none of it."""
        if self.rng.random() < 0.15:
            return
        accepted = int(self.rng.integers(0, len(tail) + 1))
        self.tokens = np.concatenate(
            [self.tokens, np.array(tail[:accepted], np.int32), some_tokens(self.rng, 1)]
        )

    def compare(self, row: NDArray[np.float32], tail: tuple[int, ...]) -> None:
        tokens = np.concatenate([self.tokens, np.array(tail, np.int32)])
        had = self.context.settings
        reference = fresh(self.model, tokens, flash_attention=had.flash_attention, kv_type=had.kv_type)
        self.worst = max(self.worst, furthest(row, reference))

    def play(self, rounds: int) -> float:
        for _ in range(rounds):
            self.change()
            tail = self.tail()
            if self.at_once:
                rows = self.context.score([Want(self.tokens, tail, len(tail) + 1, self.seq)])[0].copy()
                for i in {0, len(tail) // 2, len(tail)}:
                    self.compare(rows[i], tail[:i])
            else:
                for i in range(len(tail) + 1):
                    row = self.context.score([Want(self.tokens, tail[:i], 1, self.seq)])[0][0]
                    if i in (0, len(tail)):
                        self.compare(row.copy(), tail[:i])
            self.settle(tail)
        return self.worst


def worst_of(
    model: Model, *, at_once: bool, seeds: range = range(2), rounds: int = 30, **changed: Any
) -> float:
    """Returns the worst logit error of some scripts, each on a context of its own."""
    limits = {name: changed.pop(name) for name in ("longest", "shortest_tail") if name in changed}
    worst = 0.0
    for seed in seeds:
        with Context(model, settings(n_rows=LONGEST_TAIL + 1 if at_once else 1, **changed)) as context:
            script = Script(model, context, np.random.default_rng(seed), at_once, **limits)
            worst = max(worst, script.play(rounds))
    return worst


@pytest.mark.sample(2)
@pytest.mark.parametrize("at_once", [True, False], ids=["as a target", "as a draft"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_fresh_evaluation_after_any_script(
    models: dict[str, Model], kind: str, at_once: bool
) -> None:
    assert worst_of(models[kind], at_once=at_once) < MARGIN


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [13, 16, 64])
@pytest.mark.parametrize("at_once", [True, False], ids=["as a target", "as a draft"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_fresh_evaluation_after_many_scripts(
    models: dict[str, Model], kind: str, at_once: bool, chunk: int
) -> None:
    assert worst_of(models[kind], at_once=at_once, seeds=range(100, 115), rounds=60, chunk=chunk) < MARGIN


def byte_identical(model: Model) -> bool:
    """True where this machine evaluates tokens one at a time and many at once to the same bytes."""
    tokens = some_tokens(np.random.default_rng(0), 48)
    with Context(model, settings(flash_attention=True)) as context:
        for n in range(1, tokens.size):
            context.score([Want(tokens[:n])])
        return np.array_equal(context.score([Want(tokens)])[0][0], fresh(model, tokens, flash_attention=True))


@pytest.mark.sample(3)
@pytest.mark.parametrize("at_once", [True, False], ids=["as a target", "as a draft"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_the_very_bytes_in_the_byte_identical_profile(
    models: dict[str, Model], kind: str, at_once: bool
) -> None:
    model = models[kind + " Q8_0"]
    if not byte_identical(model):
        pytest.skip("this machine has no byte-identical profile: single and batched evaluation differ")
    assert worst_of(model, at_once=at_once, longest=60, flash_attention=True) == 0.0


def test_a_hybrid_model_has_snapshots_fewer_than_the_tails_that_were_tried(models: dict[str, Model]) -> None:
    """The property test says something about snapshots only while both stay as they are."""
    with Context(models["hybrid"], settings(n_rows=LONGEST_TAIL + 1)) as context:
        assert 0 < context._evaluator.n_rs_seq < LONGEST_TAIL
    with Context(models["recurrent"], settings(n_rows=LONGEST_TAIL + 1)) as context:
        assert context._evaluator.n_rs_seq == 0  # llama.cpp has none for this architecture: checkpoints


def test_the_property_fails_where_every_tail_is_believed_to_roll_back(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp rolls hybrid memory back to snapshots that it never wrote, and says that all is well."""
    decode = Evaluator.decode

    def careless(self: Evaluator, parts: Any) -> Any:
        rows = decode(self, parts)
        for seq, _, _ in parts:
            self._cells.sequences[seq].snapshots = 10**6
        return rows

    monkeypatch.setattr(Evaluator, "decode", careless)
    assert worst_of(models["hybrid"], at_once=True) > 5 * MARGIN


def test_the_property_fails_where_a_rollback_is_done_twice(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hybrid context that drafts token by token has one snapshot at most, whatever its n_rs_seq."""
    decode = Evaluator.decode

    def careless(self: Evaluator, parts: Any) -> Any:
        rows = decode(self, parts)
        for seq, _, _ in parts:
            self._cells.sequences[seq].snapshots = self.n_rs_seq
        return rows

    monkeypatch.setattr(Evaluator, "decode", careless)
    with Context(models["hybrid"], settings(n_rows=LONGEST_TAIL + 1)) as context:
        script = Script(models["hybrid"], context, np.random.default_rng(0), at_once=False)
        assert script.play(30) > 5 * MARGIN


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_the_property_fails_where_checkpoints_lose_the_state(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    real = module.C.llama_state_seq_get_data_ext

    def forgetful(handle: Any, state: Any, size: int, seq: int, flags: int) -> int:
        written = real(handle, state, size, seq, flags)
        ctypes.memset(ctypes.addressof(state.contents) + size * 3 // 4, 0, size - size * 3 // 4)
        return int(written)

    monkeypatch.setattr(module.C, "llama_state_seq_get_data_ext", forgetful)
    assert worst_of(models[kind], at_once=False) > 5 * MARGIN


def test_the_property_fails_where_one_token_too_many_is_kept(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, rewind, room = Context._sync, Cells.rewind, [0]

    def noted(self: Context, want: Want) -> Any:
        room[0] = want.tokens.size + len(want.tail) - want.rows
        return sync(self, want)

    def careless(self: Cells, s: int, keep: int) -> None:
        rewind(self, s, min(keep + 1, self.sequences[s].held, room[0]))

    monkeypatch.setattr(Context, "_sync", noted)
    monkeypatch.setattr(Cells, "rewind", careless)
    assert worst_of(plain, at_once=True) > 5 * MARGIN


# ---- rows and sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_that_of_decoding_one_token_at_a_time(models: dict[str, Model], kind: str) -> None:
    model, rng = models[kind], np.random.default_rng(3)
    tokens, k = some_tokens(rng, 30), LONGEST_TAIL
    with Context(model, settings()) as single:
        alone = [single.score([Want(tokens[: n + 1])])[0][0].copy() for n in range(tokens.size)]
    for rows in range(1, k + 2):
        with Context(model, settings(n_rows=k + 1)) as context:
            got = context.score([Want(tokens[:17], tuple(tokens[17:].tolist()), rows)])[0]
            assert got.shape == (rows, N_VOCAB)
            assert got.dtype == np.float32
            assert furthest(got, np.stack(alone[-rows:])) < MARGIN


def test_tokens_and_tail_are_one_text(plain: Model) -> None:
    tokens = some_tokens(np.random.default_rng(4), 20)
    with Context(plain, settings(n_rows=4)) as context:
        whole = context.score([Want(tokens, rows=4)])[0].copy()
        before = context.evaluated
        split = context.score([Want(tokens[:15], tuple(tokens[15:].tolist()), 4)])[0]
        assert context.evaluated - before == 4  # only the rows themselves
        assert furthest(whole, split) < MARGIN


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_of_unequal_lengths_in_one_call_are_as_each_alone(
    models: dict[str, Model], kind: str
) -> None:
    model, rng = models[kind], np.random.default_rng(9)
    with Context(model, settings(n_seq=3, n_rows=3 * (LONGEST_TAIL + 1))) as context:
        scripts = [Script(model, context, rng, at_once=True, seq=seq, longest=100) for seq in range(3)]
        for _ in range(15):
            some = [script for script in scripts if rng.random() < 0.7] or scripts
            rng.shuffle(some)
            tails = []
            for script in some:
                script.change()
                tails.append(script.tail())
            wants = [Want(s.tokens, tail, len(tail) + 1, s.seq) for s, tail in zip(some, tails, strict=True)]
            answers = [rows.copy() for rows in context.score(wants)]
            for script, tail, rows in zip(some, tails, answers, strict=True):
                assert rows.shape == (len(tail) + 1, N_VOCAB)
                for i in {0, len(tail)}:
                    script.compare(rows[i], tail[:i])
                script.settle(tail)
        assert max(script.worst for script in scripts) < MARGIN


def test_what_is_evaluated_together_is_asked_for_where_only_first_rows_come(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's graph of CogVLM gave the logits after a prompt's first token, for those after its last."""
    monkeypatch.setattr(module, "FIRST_ROWS", (plain.architecture,))
    texts, real = [some_tokens(np.random.default_rng(i), 40 + i) for i in range(2)], module.C.llama_decode
    asked: list[tuple[int, int]] = []

    def counting(handle: Any, batch: Any) -> int:
        if handle == context.handle:
            asked.append((batch.n_tokens, sum(batch.logits[i] != 0 for i in range(batch.n_tokens))))
        return int(real(handle, batch))

    with Context(plain, settings(n_seq=2, n_rows=8, chunk=32)) as context:
        decodes_by(monkeypatch, counting)
        for tail in ((), (3, 4, 5), (3, 9)):
            wants = [Want(text, tail, len(tail) + 1, seq) for seq, text in enumerate(texts)]
            rows = [found.copy() for found in context.score(wants)]
            for text, found in zip(texts, rows, strict=True):
                whole = np.append(text, np.array(tail, np.int32))
                assert furthest(found[-1], fresh(plain, whole)) < MARGIN
        assert all(rows in (0, tokens) for tokens, rows in asked) and asked


def test_sequences_do_not_see_each_other(plain: Model) -> None:
    rng = np.random.default_rng(2)
    mine, other = some_tokens(rng, 20), some_tokens(rng, 33)
    with Context(plain, settings(n_seq=2, n_rows=2)) as context:
        alone = context.score([Want(mine, seq=0)])[0].copy()
        context.score([Want(other, seq=1)])
        again = context.score([Want(mine, seq=0)])[0]
        assert furthest(alone, again) < MARGIN
        assert np.array_equal(context.held(0), mine)
        assert np.array_equal(context.held(1), other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [2, 5, 31, 32, 100])
def test_a_prompt_longer_than_the_chunk_is_as_one_in_a_piece(
    models: dict[str, Model], kind: str, chunk: int
) -> None:
    model, tokens = models[kind], some_tokens(np.random.default_rng(6), 101)
    rows = min(chunk, 4)
    with Context(model, settings(chunk=chunk, n_rows=rows)) as context:
        got = context.score([Want(tokens, rows=rows)])[0]
        assert furthest(got[-1], fresh(model, tokens)) < MARGIN
        assert furthest(got[0], fresh(model, tokens[: tokens.size - rows + 1])) < MARGIN
        assert context.calls <= -(-tokens.size // chunk) + 1
        assert context.evaluated == tokens.size


def test_long_prompts_of_several_sequences_share_the_chunk(plain: Model) -> None:
    rng = np.random.default_rng(8)
    prompts = [some_tokens(rng, n) for n in (90, 3, 41)]
    with Context(plain, settings(chunk=16, n_seq=3, n_rows=6)) as context:
        answers = context.score([Want(tokens, rows=2, seq=i) for i, tokens in enumerate(prompts)])
        for tokens, rows in zip(prompts, [rows.copy() for rows in answers], strict=True):
            assert furthest(rows[-1], fresh(plain, tokens)) < MARGIN
        assert context.evaluated == sum(tokens.size for tokens in prompts)


def test_more_than_a_small_cache_holds_is_refused_and_not_evaluated_at_once(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache smaller than a chunk llama.cpp evaluates no more at once than that holds, and aborts."""
    real = module.C.llama_decode

    def watched(handle: Any, batch: Any) -> int:
        assert batch.n_tokens <= module.C.llama_n_batch(handle), "llama.cpp would end the process"
        return int(real(handle, batch))

    decodes_by(monkeypatch, watched)
    texts = [some_tokens(np.random.default_rng(s), 128) for s in range(4)]
    with Context(plain, settings(n_ctx=256, cells=256, n_seq=4, n_rows=4)) as context:
        with pytest.raises(NoRoomError):
            context.score([Want(tokens, seq=s) for s, tokens in enumerate(texts)])
        for s in range(4):
            context.clear(s)
        assert furthest(context.score([Want(texts[0], seq=2)])[0][0], fresh(plain, texts[0])) < MARGIN


def test_the_context_can_be_filled_to_the_last_token(plain: Model) -> None:
    tokens = some_tokens(np.random.default_rng(1), 65)
    with Context(plain, settings(n_ctx=64)) as context:
        assert furthest(context.score([Want(tokens[:64])])[0][0], fresh(plain, tokens[:64])) < MARGIN
        with pytest.raises(SettingError, match="number of tokens"):
            context.score([Want(tokens)])


# ---- what is evaluated ------------------------------------------------------------------------------------


def evaluated(context: Context, want: Want) -> tuple[int, int]:
    """Returns (calls, tokens) that one `score` costs."""
    before = context.calls, context.evaluated
    context.score([want])
    return context.calls - before[0], context.evaluated - before[1]


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_rejection_a_draft_evaluates_one_batch_and_after_full_acceptance_two_tokens(
    models: dict[str, Model], kind: str
) -> None:
    """A plain draft evaluates the one new token; a recurrent one what its checkpoint lacks, in one call."""
    tokens = some_tokens(np.random.default_rng(12), 40)
    with Context(models[kind], settings()) as context:
        context.score([Want(tokens[:20])])
        for k in range(1, 5):  # guesses 20..23
            assert evaluated(context, Want(tokens[:20], tuple(tokens[20 : 20 + k].tolist()))) == (1, 1)
        all_kept = np.concatenate([tokens[:24], tokens[30:31]])
        assert evaluated(context, Want(all_kept)) == (1, 1)  # the last guess was evaluated already
        for k in range(1, 5):
            context.score([Want(all_kept, tuple(tokens[20 : 20 + k].tolist()))])
        two_kept = np.concatenate([all_kept, tokens[20:22], tokens[35:36]])
        assert evaluated(context, Want(two_kept)) == ((1, 1) if kind == "plain" else (1, 3))


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_a_target_evaluates_no_token_twice_within_its_snapshots(models: dict[str, Model], kind: str) -> None:
    tokens = some_tokens(np.random.default_rng(13), 60)
    with Context(models[kind], settings(n_rows=9)) as context:
        context.score([Want(tokens[:20])])
        at = 21
        for accepted in (0, 4, 2, 8, 1):
            guesses = 8
            tail = tokens[at : at + accepted].tolist() + [7] * (guesses - accepted)
            assert evaluated(context, Want(tokens[:at], tuple(tail), 9)) == (1, 9)
            at += accepted + 1


def test_time_is_counted_while_llama_cpp_works(plain: Model) -> None:
    with Context(plain, settings()) as context:
        assert (context.seconds, context.calls, context.evaluated) == (0.0, 0, 0)  # the probe is not counted
        context.score([Want(some_tokens(np.random.default_rng(0), 50))])
        assert context.seconds > 0
        assert (context.calls, context.evaluated) == (1, 50)


# ---- failures of llama.cpp --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, error, reached",
    [
        (1, NoRoomError, "nothing"),  # llama.cpp promises that the cache is unchanged
        (-1, InvalidBatchError, "nothing"),
        *((2, DecodeAbortedError, reached) for reached in ("nothing", "half", "all")),
        *((-3, FatalDecodeError, reached) for reached in ("nothing", "half", "all")),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_record_stays_true_after_a_failure(
    models: dict[str, Model],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    code: int,
    error: type[EngineError],
    reached: str,
) -> None:
    """After codes 1 and -1 nothing was changed; after the others any part may be in the cache."""
    model, tokens, real = models[kind], some_tokens(np.random.default_rng(21), 80), module.C.llama_decode

    def failing(handle: Any, batch: Any) -> int:
        n = batch.n_tokens
        batch.n_tokens = {"nothing": 0, "half": n // 2, "all": n}[reached]
        if batch.n_tokens:
            assert real(handle, batch) == 0
        batch.n_tokens = n
        return code

    with Context(model, settings(n_rows=9, chunk=32)) as context:
        for want in (
            Want(tokens[:30], (1, 2, 3), 4),  # the first of all
            Want(tokens[:31], (4, 5, 6, 7, 8, 9), 7),  # after a rejection
            Want(tokens[:75], (), 1),  # a long one, in chunks
            Want(tokens[:20], (1,), 2),  # back
        ):
            with monkeypatch.context() as patch:
                decodes_by(patch, failing)
                with pytest.raises(error) as caught:
                    context.score([want])
            assert "\n" not in str(caught.value)
            asked = np.concatenate([want.tokens, np.array(want.tail, np.int32)])
            held = context.held()
            assert np.array_equal(held, asked[: held.size])
            rows = context.score([want])[0]
            assert furthest(rows[-1], fresh(model, asked)) < MARGIN


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_in_the_middle_leaves_no_cells_that_nobody_knows_of(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Ctrl+C in a notebook: llama.cpp had evaluated, the record did not know; going on failed ever after."""
    model, tokens, real = models[kind], some_tokens(np.random.default_rng(24), 30), module.C.llama_decode

    def interrupted(handle: Any, batch: Any) -> int:
        real(handle, batch)
        raise KeyboardInterrupt

    with Context(model, settings(n_rows=4)) as context:
        context.score([Want(tokens[:20])])
        with monkeypatch.context() as patch:
            decodes_by(patch, interrupted)
            with pytest.raises(KeyboardInterrupt):
                context.score([Want(tokens[:20], (1, 2), 3)])
        assert furthest(context.score([Want(tokens)])[0][0], fresh(model, tokens)) < MARGIN


def test_cells_that_nobody_knows_of_end_one_evaluation_at_most(plain: Model) -> None:
    """Left by Ctrl+C while a sequence was restored: all later evaluations of it failed, with code -1."""
    tokens = some_tokens(np.random.default_rng(25), 30)
    with Context(plain, settings()) as context:
        context.score([Want(tokens[:20])])
        context._cells.sequences[0].keep(0)
        with pytest.raises(InvalidBatchError):
            context.score([Want(tokens)])
        assert furthest(context.score([Want(tokens)])[0][0], fresh(plain, tokens)) < MARGIN


def test_a_failure_in_the_second_chunk_keeps_the_first(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, real, calls = some_tokens(np.random.default_rng(22), 80), module.C.llama_decode, []

    def failing(handle: Any, batch: Any) -> int:
        calls.append(batch.n_tokens)
        return real(handle, batch) if len(calls) == 1 else 1

    with Context(plain, settings(chunk=32)) as context:
        with monkeypatch.context() as patch:
            decodes_by(patch, failing)
            with pytest.raises(NoRoomError, match="--ctx"):
                context.score([Want(tokens)])
        assert np.array_equal(context.held(), tokens[:32])
        assert furthest(context.score([Want(tokens)])[0][0], fresh(plain, tokens)) < MARGIN


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ([(4, b"decode: failed to "), (5, b"compute\n"), (2, b"it took 2 ms")], "decode: failed to compute"),
        ([(2, b"sched_reserve: reserve took 2.49 ms\n"), (5, b"!\n")], "it gave no reason"),
    ],
)
def test_a_failure_quotes_what_was_stated_of_it_and_no_news(
    plain: Model, monkeypatch: pytest.MonkeyPatch, said: list[tuple[int, bytes]], quoted: str
) -> None:
    """It read "code -3 on 2 tokens: sched_reserve: reserve took 2.49 ms"; or quoted an older failure."""

    def failing(*_: Any) -> int:
        for level, text in said:
            edgespec.llama.log.keep_log(level, text, None)
        return -3

    with Context(plain, settings()) as context:
        edgespec.llama.log.keep_log(4, b"an older failure\n", None)
        decodes_by(monkeypatch, failing)
        with pytest.raises(FatalDecodeError, match=f"code -3 on 3 tokens: {quoted}$"):
            context.score([Want(np.arange(3, dtype=np.int32))])


def test_one_sequences_failure_leaves_the_others_true(plain: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(23)
    texts = [some_tokens(rng, n) for n in (20, 30)]
    with Context(plain, settings(n_seq=2, n_rows=2)) as context:
        context.score([Want(tokens, seq=i) for i, tokens in enumerate(texts)])
        longer = [np.concatenate([tokens, some_tokens(rng, 5)]) for tokens in texts]
        with monkeypatch.context() as patch:
            decodes_by(patch, lambda *_: -3)
            with pytest.raises(FatalDecodeError):
                context.score([Want(tokens, seq=i) for i, tokens in enumerate(longer)])
        answers = context.score([Want(tokens, seq=i) for i, tokens in enumerate(longer)])
        for tokens, rows in zip(longer, [rows.copy() for rows in answers], strict=True):
            assert furthest(rows[0], fresh(plain, tokens)) < MARGIN


def test_the_property_fails_where_a_fatal_failure_is_taken_for_success(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation for the tests above: a record that believes the plan is off by far."""
    tokens = some_tokens(np.random.default_rng(21), 40)
    with Context(plain, settings(n_rows=4)) as context:
        context.score([Want(tokens[:20])])
        with monkeypatch.context() as patch:
            decodes_by(patch, lambda *_: -3)
            patch.setattr(Cells, "resync", lambda *_: None)
            with pytest.raises(FatalDecodeError):
                context.score([Want(tokens[:30])])
        try:
            assert furthest(context.score([Want(tokens)])[0][0], fresh(plain, tokens)) > 5 * MARGIN
        except EngineError:
            pass  # a gap in the positions, which llama.cpp notices


# ---- refused before llama.cpp sees it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, named",
    [
        ({"n_ctx": 2_000_000_000}, "GiB of memory are free"),
        ({"n_ctx": 2**31}, "context length"),
        ({"n_ctx": 1}, "context length"),
        ({"n_ctx": 0}, "context length"),
        ({"n_ctx": -1}, "context length"),
        ({"n_ctx": 64.0}, "context length"),
        ({"n_seq": 0}, "number of sequences"),
        ({"n_seq": 257, "n_rows": 257}, "number of sequences"),
        ({"n_seq": True}, "number of sequences"),
        ({"n_seq": 4, "n_rows": 3}, "number of logits rows"),
        ({"n_rows": 0}, "number of logits rows"),
        ({"n_rows": 10**9}, "number of logits rows"),
        ({"n_rows": 9, "chunk": 8}, "chunk"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": 10**9}, "chunk"),
        ({"threads": 0}, "number of threads"),
        ({"threads": -1}, "number of threads"),
        ({"threads": 100_000}, "number of threads"),
        ({"kv_type": "q2_k"}, "KV cache type"),
        ({"kv_type": None}, "KV cache type"),
        ({"kv_type": "q8_0", "flash_attention": False}, "needs flash attention"),
        ({"kv_type": "q4_0", "flash_attention": False}, "needs flash attention"),
    ],
)
def test_a_context_that_makes_no_sense_is_refused(plain: Model, wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named) as caught:
        Context(plain, settings(**wrong))
    assert "\n" not in str(caught.value)


def test_more_positions_than_a_model_learned_are_refused(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.llama.settings.learned_positions", lambda headers: True)
    with pytest.raises(SettingError, match="knows 512"):
        Context(plain, settings(n_ctx=513))


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_chunk_works_or_is_refused(models: dict[str, Model], kind: str) -> None:
    """A chunk of 1 asked a hybrid model for -1 snapshots, which is 4 billion."""
    tokens = some_tokens(np.random.default_rng(0), 5)
    try:
        with Context(models[kind], settings(chunk=1)) as context:
            assert furthest(context.score([Want(tokens)])[0][0], fresh(models[kind], tokens)) < MARGIN
    except SettingError as error:
        assert "chunk" in str(error)


def test_a_cache_beyond_the_free_memory_is_refused(tmp_path: Path) -> None:
    """llama.cpp clears the cache when it makes it: the system would kill the process, not fail the call."""
    path = tiny_gguf.write_llama(tmp_path / "long.gguf", context_length=2**31 - 1)
    with Model(path) as model, pytest.raises(SettingError, match=r"takes about .* GiB .* --ctx"):
        Context(model, settings(n_ctx=2_000_000_000))


def test_not_even_the_plan_of_such_a_cache_is_made(tmp_path: Path) -> None:
    """llama.cpp keeps 48 bytes about each cell even of a cache that it does not allocate: 96 GB here."""
    path = tiny_gguf.write_llama(tmp_path / "short.gguf")
    with Model(path, no_alloc=True) as model, pytest.raises(SettingError, match="GiB of memory are free"):
        new_context(model, settings(n_ctx=2_000_000_000))


def test_the_size_of_the_cache_is_known_beforehand(plain: Model) -> None:
    two_layers_of_keys_and_values = 2 * 2 * 64
    assert kv_bytes(plain, 100, "f16") == 100 * 2 * two_layers_of_keys_and_values
    assert kv_bytes(plain, 100, "q8_0") < kv_bytes(plain, 100, "f16")


def test_layers_that_do_not_attend_have_no_keys_and_values(models: dict[str, Model], tmp_path: Path) -> None:
    """All layers of a hybrid were counted: contexts were refused, or made short, that fit well."""
    one_layer_of_two_heads = 2 * 2 * 16
    assert kv_bytes(models["hybrid"], 100, "f16") == 100 * 2 * one_layer_of_two_heads  # an array in the file
    assert kv_bytes(models["recurrent"], 100, "f16") == 0
    metadata = {"llama.full_attention_interval": 2}  # how Qwen3-Next and later say it
    with Model(tiny_gguf.write_llama(tmp_path / "model.gguf", layers=5, metadata=metadata)) as model:
        assert kv_bytes(model, 100, "f16") == 100 * 2 * 2 * (2 * 64)


def test_the_size_of_the_cache_is_what_llama_cpp_makes(models: dict[str, Model]) -> None:
    for kind in ("plain", "hybrid"):
        with listening() as said, Context(models[kind], settings()):
            made = re.search(r"K \(f16\): +([0-9.]+) MiB, V \(f16\): +([0-9.]+) MiB", "\n".join(said))
        assert made
        wanted = kv_bytes(models[kind], 256, "f16") / 2**20
        assert float(made[1]) + float(made[2]) == pytest.approx(wanted, abs=0.011)


REFUSED = {
    "more rows than the context has": Want(np.arange(20, dtype=np.int32), rows=5),
    "no rows": Want(np.arange(20, dtype=np.int32), rows=0),
    "negative rows": Want(np.arange(20, dtype=np.int32), rows=-1),
    "more rows than tokens": Want(np.arange(2, dtype=np.int32), rows=3),
    "no tokens": Want(np.zeros(0, np.int32)),
    "more tokens than the context holds": Want(np.zeros(257, np.int32)),
    "tokens and tail together too many": Want(np.zeros(250, np.int32), (0,) * 7),
    "a negative token": Want(np.array([1, -1, 2], np.int32)),
    "a token past the vocabulary": Want(np.array([1, N_VOCAB, 2], np.int32)),
    "a token far past the vocabulary": Want(np.array([1, 2**31 - 1], np.int32)),
    "a tail token that does not exist": Want(np.array([1, 2], np.int32), (3, N_VOCAB)),
    "a negative sequence": Want(np.arange(5, dtype=np.int32), seq=-1),
    "a sequence the context does not have": Want(np.arange(5, dtype=np.int32), seq=2),
    "a sequence llama.cpp aborts on": Want(np.arange(5, dtype=np.int32), seq=256),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_request_that_makes_no_sense_is_refused_and_changes_nothing(plain: Model, what: str) -> None:
    tokens = some_tokens(np.random.default_rng(31), 30)
    with Context(plain, settings(n_seq=2, n_rows=4)) as context:
        context.score([Want(tokens)])
        with pytest.raises(SettingError) as caught:
            context.score([REFUSED[what]])
        assert "\n" not in str(caught.value)
        held = context.held()
        assert np.array_equal(held, tokens[: held.size])
        assert furthest(context.score([Want(tokens, (5, 6), 3)])[0][0], fresh(plain, tokens)) < MARGIN


def test_requests_that_make_no_sense_together_are_refused(plain: Model) -> None:
    tokens = some_tokens(np.random.default_rng(31), 30)
    with Context(plain, settings(n_seq=2, n_rows=4)) as context:
        with pytest.raises(SettingError, match="number of rows"):
            context.score([])
        with pytest.raises(SettingError, match="twice"):
            context.score([Want(tokens), Want(tokens[:5])])
        with pytest.raises(SettingError, match="number of rows"):
            context.score([Want(tokens, rows=3), Want(tokens, rows=2, seq=1)])
        with pytest.raises(SettingError, match="does not exist"):
            context.score([Want(tokens), Want(np.array([N_VOCAB], np.int32), seq=1)])
        answers = [rows.copy() for rows in context.score([Want(tokens), Want(tokens[:9], seq=1)])]
        assert furthest(answers[0][0], fresh(plain, tokens)) < MARGIN
        assert furthest(answers[1][0], fresh(plain, tokens[:9])) < MARGIN


def test_a_closed_context_says_so(plain: Model) -> None:
    context = Context(plain, settings())
    context.close()
    context.close()
    with pytest.raises(SettingError, match="has been closed"):
        context.score([Want(np.arange(3, dtype=np.int32))])


def test_a_model_that_cannot_withdraw_tokens_is_refused(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.C, "llama_memory_seq_rm", lambda *_: False)
    with pytest.raises(ModelUnsupportedError, match="cannot take back evaluated tokens"):
        Context(plain, settings())


def test_logits_that_llama_cpp_does_not_have_are_an_error(
    plain: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(plain, settings()) as context:
        monkeypatch.setattr(evaluation, "_address_of", lambda *_: None)
        with pytest.raises(EngineError, match="no logits"):
            context.score([Want(np.arange(3, dtype=np.int32))])


# ---- KV types and threads ---------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kv_type, off, alike",
    [("q8_0", 0.5, 0.99), ("q4_0", 4.0, 0.9), ("bf16", 0.5, 0.99), ("iq4_nl", 4.0, 0.9), ("q5_1", 2.0, 0.95)],
)
def test_a_quantised_cache_answers_nearly_the_same(
    tmp_path: Path, kv_type: str, off: float, alike: float
) -> None:
    """Measured over 20 texts: 0.27 and 2.3 at most, correlation 0.999 and 0.95 at least."""
    tokens = some_tokens(np.random.default_rng(41), 100)
    with Model(tiny_gguf.write_llama(tmp_path / "wide-heads.gguf", n_head=2)) as model:
        exact = fresh(model, tokens, flash_attention=True)
        quantised = fresh(model, tokens, flash_attention=None, kv_type=kv_type)
        assert 0 < furthest(quantised, exact) < off
        assert np.corrcoef(quantised, exact)[0, 1] > alike
        assert worst_of(model, at_once=True, rounds=10, flash_attention=True, kv_type=kv_type) < 0.1


def test_a_quantised_cache_that_the_heads_do_not_fit_is_refused(plain: Model) -> None:
    with pytest.raises(ModelUnsupportedError, match="q8_0") as caught:
        Context(plain, settings(kv_type="q8_0", flash_attention=None))
    assert "\n" not in str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("threads", [1, 2, None])
def test_the_number_of_threads_does_not_change_the_answer(plain: Model, threads: int | None) -> None:
    tokens = some_tokens(np.random.default_rng(42), 20)
    assert furthest(fresh(plain, tokens, threads=threads), fresh(plain, tokens)) < MARGIN


def test_256_sequences_are_the_most_and_work(plain: Model) -> None:
    tokens = some_tokens(np.random.default_rng(43), 20)
    with Context(plain, settings(n_ctx=32, n_seq=256, n_rows=256)) as context:
        answers = context.score([Want(tokens[:5], seq=0), Want(tokens, seq=255)])
        assert furthest(answers[1][0], fresh(plain, tokens)) < MARGIN


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_a_rejected_tail_is_not_evaluated_again_every_round(kind: str, tmp_path: Path) -> None:
    """The checkpoint used to stay until a draft was accepted whole: rounds grew without bound."""
    write = tiny_gguf.write_recurrent if kind == "recurrent" else tiny_gguf.write_hybrid
    with Model(write(tmp_path / "model.gguf")) as model:
        k = 10  # past the snapshots of the hybrid
        with Context(model, ContextSettings(n_ctx=256, n_rows=k + 1, threads=1)) as context:
            tokens = np.arange(300, 310, dtype=np.int32)
            context.score([Want(tokens)])
            costs = []
            for i in range(12):
                before = context.evaluated
                context.score([Want(tokens, tuple(range(320, 320 + k)), k + 1)])
                costs.append(context.evaluated - before)
                tokens = np.append(tokens, np.int32(400 + i))  # every guess rejected
            assert max(costs[1:]) == k + 2  # the token before, the last one and the guesses


@pytest.mark.parametrize("n_ctx", [2, 5, 9, 12])
def test_a_hybrid_model_runs_in_the_smallest_contexts(n_ctx: int, tmp_path: Path) -> None:
    """More snapshots than a micro-batch has tokens ended the process."""
    with Model(tiny_gguf.write_hybrid(tmp_path / "model.gguf")) as model:
        with Context(model, ContextSettings(n_ctx=n_ctx, n_rows=33, threads=1)) as context:
            assert context.score([Want(np.array([300], np.int32))])[0].shape == (1, model.n_vocab)


def test_an_impossible_number_of_threads_in_the_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_THREADS", "100000")
    with Model(tiny_gguf.write_llama(tmp_path / "model.gguf")) as model:
        with pytest.raises(SettingError, match="EDGESPEC_THREADS.*100000"):
            Context(model, ContextSettings(n_ctx=64))


def test_snapshots_are_used_up_by_a_restored_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They used to count on, and a failed evaluation later the state was silently wrong (logits off by 7)."""
    with Model(tiny_gguf.write_hybrid(tmp_path / "model.gguf")) as model:
        with Context(model, ContextSettings(n_ctx=128, n_rows=13, threads=1)) as context:
            tokens = np.arange(300, 320, dtype=np.int32)
            context.score([Want(tokens[:10])])
            context.score(
                [Want(tokens[:11], tuple(range(330, 342)), 13)]
            )  # checkpoint at 10, past the snapshots
            with monkeypatch.context() as patch:
                decodes_by(patch, lambda *_: 1)
                with pytest.raises(NoRoomError):
                    context.score([Want(tokens[:12])])  # restored, and nothing evaluated
            held = tokens[:8]
            got = context.score([Want(held)])[0].copy()
        with Context(model, ContextSettings(n_ctx=128, n_rows=13, threads=1)) as fresh:
            assert np.abs(got - fresh.score([Want(held)])[0]).max() < 0.02


def test_what_is_missing_is_what_a_call_evaluates(plain: Model) -> None:
    rng = np.random.default_rng(51)
    tokens, other = some_tokens(rng, 40), some_tokens(rng, 40)
    wants = [Want(tokens[:30]), Want(tokens[:30], (5, 6), 3), Want(tokens[:31]), Want(tokens[:31], (9,))]
    wants += [Want(tokens[:31], (9, 8)), Want(np.append(tokens[:10], other)), Want(tokens[:4], (1, 2), 1)]
    with Context(plain, settings(n_rows=3)) as context:
        for want in wants:
            missing = context.missing(want)
            assert evaluated(context, want)[1] == missing > 0


def test_tokens_of_another_width_are_the_same_tokens(plain: Model) -> None:
    """Tokens are compared as bytes: eight to a token would be another text."""
    tokens = some_tokens(np.random.default_rng(52), 20)
    with Context(plain, settings()) as context:
        context.score([Want(tokens)])
        wide: Any = tokens.astype(np.int64)
        assert evaluated(context, Want(wide, (7,))) == (1, 1)
        assert furthest(context.score([Want(tokens)])[0][0], fresh(plain, tokens)) < MARGIN
