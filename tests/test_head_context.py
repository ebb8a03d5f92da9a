"""A head's logits, whatever happened before, are those of a head that reads the same tokens the first time.

Nothing else would show if they were not: guesses are verified, so a head that reads wrong rows only guesses
worse. So the cache of an MTP head is driven by random scripts of what slots go through, and after each step
compared with a fresh start; and each rule of its bookkeeping is broken once, to see that this shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gemma
import tiny_heads
from gguf import GGUFReader
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.errors import FatalDecodeError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads import head_cache, turns_context
from edgespec.llama.heads.assistant_context import AssistantContext
from edgespec.llama.heads.guessing import head_context
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.model import Model
from edgespec_models.gguf.heads import Head

MTP, EAGLE = Head("mtp", 1, alone=False), Head("eagle3", 1, alone=True, layers=(0, 1, 1))
TWO = Head("mtp", 2, alone=False, longest=2)
ASSISTANT = Head("assistant", 2, alone=True)
DFLASH = Head("dflash", 2, alone=True, layers=(0, 1), block=8, longest=7, mask=37)
BLOCKS = ("blk.2", "blk.3")  # of a tiny model with two
DFLASH2 = replace(DFLASH, candidates=6)
N_CTX, N_SEQ, N_ROWS, LONGEST = 256, 3, 24, 6
CLOSE = 0.02  # logits have a standard deviation of about 2; evaluations of other shapes round otherwise
WRITERS = {
    "attention": tiny_heads.write_mtp,
    "experts": tiny_heads.write_experts_mtp,
    "hybrid": tiny_heads.write_hybrid_mtp,
    "two blocks": partial(tiny_heads.write_mtp, blocks=2),
    "eagle": tiny_heads.write_mtp,  # the target; the head has a file of its own
    "dflash": tiny_heads.write_mtp,
    "dflash2": tiny_heads.write_mtp,
    "assistant": tiny_gemma.write_gemma,
}
Tokens = NDArray[np.int32]


class Heads:
    """Targets with MTP heads, and the same once more for fresh starts."""

    def __init__(self, model: Model, head: Model | None = None, kind: Head = MTP) -> None:
        n_seq = N_SEQ
        rows = ContextSettings(n_ctx=N_CTX, n_seq=n_seq, n_rows=N_ROWS, chunk=64)
        small = ContextSettings(n_ctx=N_CTX, n_seq=n_seq, n_rows=n_seq, chunk=64)
        self.target, self.fresh_target = Context(model, rows), Context(model, rows)
        self.head = head_context(head or model, self.target, small, kind)
        self.fresh_head = head_context(head or model, self.fresh_target, small, kind)

    def close(self) -> None:
        for context in (self.head, self.fresh_head, self.target, self.fresh_target):
            context.close()

    def behind(self, tokens: Tokens, tail: tuple[int, ...] = (), seq: int = 0) -> NDArray[np.float32]:
        """Returns the head's logits, and sees that `missing` foretold what was evaluated."""
        want = Want(tokens, tail, 1, seq)
        foretold, before = self.head.missing(want), self.head.evaluated
        row = self.head.score([want])[0][0].copy()
        assert self.head.evaluated - before == foretold
        return row

    def fresh(self, tokens: Tokens, tail: tuple[int, ...] = ()) -> NDArray[np.float32]:
        """Returns the same from a target and a head that read these tokens alone."""
        self.fresh_target.clear()
        self.fresh_head.clear()
        self.fresh_target.score([Want(tokens[:-1])])
        for n in range(len(tail) + 1):
            row = self.fresh_head.score([Want(tokens, tail[:n])])[0][0]
        return row.copy()

    def off(self, tokens: Tokens, tail: tuple[int, ...] = (), seq: int = 0) -> float:
        """Returns the largest difference between both."""
        return apart(self.behind(tokens, tail, seq), self.fresh(tokens, tail))


def apart(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Returns the largest difference between two rows of logits; one candidate of some may be another."""
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < np.isfinite(one).sum() - 1:
        return float("inf")
    return float(np.abs(one[both] - other[both]).max())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("heads")
    found = {name: Model(write(folder / f"{name}.gguf"), mtp=True) for name, write in WRITERS.items()}
    found["eagle head"] = Model(tiny_heads.write_eagle(folder / "e.gguf", layers=EAGLE.layers), head=True)
    found["dflash head"] = Model(tiny_heads.write_dflash(folder / "d.gguf"), head=True)
    found["dflash2 head"] = Model(tiny_heads.write_dflash(folder / "d2.gguf", candidates=6), head=True)
    found["assistant head"] = Model(tiny_gemma.write_assistant(folder / "a.gguf"), mtp=True, head=True)
    yield found
    for model in found.values():
        model.close()


def made(models: dict[str, Model], name: str) -> Heads:
    kinds = {"eagle": EAGLE, "dflash": DFLASH, "two blocks": TWO, "assistant": ASSISTANT, "dflash2": DFLASH2}
    return Heads(models[name], models.get(f"{name} head"), kinds.get(name, MTP))


@pytest.fixture(params=list(WRITERS))
def heads(request: pytest.FixtureRequest, models: dict[str, Model]) -> Iterator[Heads]:
    found = made(models, request.param)
    yield found
    found.close()


@pytest.fixture(params=["attention", "two blocks", "eagle", "dflash", "dflash2", "assistant"])
def scripted(request: pytest.FixtureRequest, models: dict[str, Model]) -> Iterator[Heads]:
    found = made(models, request.param)
    yield found
    found.close()


@pytest.fixture
def attending(models: dict[str, Model]) -> Iterator[Heads]:
    found = made(models, "attention")
    yield found
    found.close()


def some(rng: np.random.Generator, n: int) -> Tokens:
    return rng.integers(0, 300, n).astype(np.int32)


def round_of(heads: Heads, tokens: Tokens, rng: np.random.Generator, seq: int = 0) -> Tokens:
    """Drafts some tokens and has them verified; returns what stays, at random."""
    tail: tuple[int, ...] = ()
    for _ in range(rng.integers(0, LONGEST)):
        heads.behind(tokens, tail, seq)
        tail += (int(rng.integers(0, 300)),)
    heads.target.score([Want(tokens, tail, len(tail) + 1, seq)])
    accepted = rng.integers(0, len(tail) + 1)
    return np.concatenate([tokens, np.array(tail[:accepted], np.int32), some(rng, 1)])


@pytest.mark.sample(2)
def test_rounds_of_all_lengths_leave_a_head_as_a_fresh_start_does(heads: Heads) -> None:
    rng = np.random.default_rng(0)
    tokens = some(rng, 40)
    heads.target.score([Want(tokens)])
    tokens = np.append(tokens, some(rng, 1))
    for _ in range(20):
        tokens = round_of(heads, tokens, rng)
        tail = tuple(some(rng, rng.integers(0, 4)).tolist())
        for n in range(len(tail) + 1):
            assert heads.off(tokens, tail[:n]) < CLOSE


def test_what_was_accepted_is_read_once_more_and_nothing_else(attending: Heads) -> None:
    """After a rejection of all guesses a head reads one token; after one that stayed, two."""
    rng, heads = np.random.default_rng(1), attending
    tokens = some(rng, 30)
    heads.target.score([Want(tokens[:-1])])
    assert heads.head.missing(Want(tokens)) == 30
    for tail in ((), (7,), (7, 8), (7, 8, 9)):
        heads.behind(tokens, tail)
    heads.target.score([Want(tokens, (7, 8, 9), 4)])
    assert heads.head.missing(Want(np.append(tokens, np.int32(5)))) == 1
    assert heads.head.missing(Want(np.append(tokens, np.array([7, 5], np.int32)))) == 2
    assert heads.head.missing(Want(np.append(tokens, np.array([7, 8, 9, 5], np.int32)))) == 4


def test_several_sequences_are_read_together_and_each_in_its_own_rows(heads: Heads) -> None:
    rng = np.random.default_rng(2)
    texts = [some(rng, n) for n in (20, 33, 70)]
    for seq, tokens in enumerate(texts):
        heads.target.score([Want(tokens[:-1], seq=seq)])
    tails: list[tuple[int, ...]] = [(), (), ()]
    for _ in range(3):
        wants = [
            Want(tokens, tail, 1, seq) for seq, (tokens, tail) in enumerate(zip(texts, tails, strict=True))
        ]
        found = [row.copy() for row in heads.head.score(wants)]
        for row, tokens, tail in zip(found, texts, tails, strict=True):
            assert apart(row[0], heads.fresh(tokens, tail)) < CLOSE
        tails = [(*tail, int(rng.integers(0, 300))) for tail in tails]


def script(heads: Heads, rng: np.random.Generator, steps: int) -> float:
    """Drives the slots at random; returns how far off the head was at worst."""
    texts = [some(rng, 3) for _ in range(N_SEQ)]
    saved: list[tuple[Any, Any]] = []
    worst, target, head = 0.0, heads.target, heads.head
    for _ in range(steps):
        seq = int(rng.integers(0, N_SEQ))
        match rng.integers(0, 7):
            case 0:  # a new prompt, which may begin as the text before
                kept = texts[seq][: rng.integers(0, texts[seq].size + 1)]
                texts[seq] = np.append(kept[:150], some(rng, rng.integers(1, 40)))
            case 1 | 2 | 3 if texts[seq].size < 200:
                texts[seq] = round_of(heads, texts[seq], rng, seq)
            case 4 if target.held(seq).size:
                saved.append((target.save(seq), head.save(seq)))
            case 5 if saved:
                of_target, of_head = saved[rng.integers(0, len(saved))]
                assert target.restore(seq, of_target)
                assert head.restore(seq, of_head)
                held = target.held(seq)
                least = held.size if of_target.least else rng.integers(1, held.size + 1)
                texts[seq] = np.append(held[:least], some(rng, rng.integers(1, 5)))
            case 6 if not target.model.has_recurrent_state:
                source = int(rng.integers(0, N_SEQ))
                n = min(int(rng.integers(0, texts[source].size + 1)), target.held(source).size)
                if source == seq or n < 1:
                    continue
                if not target.share(source, seq, n):  # a window is not whole any more
                    continue
                if not head.share(source, seq, n):
                    head.clear(seq)
                texts[seq] = np.append(target.held(seq), some(rng, rng.integers(1, 5)))
        target.score([Want(texts[seq][:-1], seq=seq)] if texts[seq].size > 1 else [Want(texts[seq], seq=seq)])
        if rng.random() < 0.7 and texts[seq].size > 1:
            worst = max(worst, heads.off(texts[seq], (), seq))
    return worst


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_random_scripts_end_where_a_fresh_start_does(scripted: Heads, seed: int) -> None:
    assert script(scripted, np.random.default_rng(seed), 60) < CLOSE


def test_a_prefix_that_is_restored_brings_the_row_that_the_head_goes_on_from(heads: Heads) -> None:
    """Recurrent state is restored whole, and the row of its last token cannot be made again."""
    rng = np.random.default_rng(3)
    tokens = some(rng, 50)
    heads.target.score([Want(tokens)])
    heads.behind(np.append(tokens, np.int32(1)))
    saved = heads.target.save(0), heads.head.save(0)
    heads.target.score([Want(some(rng, 20))])
    assert heads.target.restore(1, saved[0])
    assert heads.head.restore(1, saved[1])
    longer = np.append(tokens, some(rng, 9))
    heads.target.score([Want(longer[:-1], seq=1)])
    assert heads.head.missing(Want(longer, seq=1)) < 12
    assert heads.off(longer, (), 1) < CLOSE


def test_a_head_goes_on_behind_a_gap_with_what_is_left(attending: Heads, monkeypatch: Any) -> None:
    """A prompt longer than the rows that are kept is read from where they begin."""
    rng, heads = np.random.default_rng(4), attending
    monkeypatch.setattr(heads.target._cells, "hidden", HiddenRows(heads.head._rows.width, N_SEQ, kept=16))
    heads.head._rows = heads.target._cells.hidden  # type: ignore[assignment]
    tokens = some(rng, 100)
    heads.target.score([Want(tokens[:-1])])
    assert heads.head.missing(Want(tokens)) == 16
    row = heads.behind(tokens)
    assert np.isfinite(row).all()
    assert np.corrcoef(row, heads.fresh(tokens))[0, 1] > 0.8
    assert heads.head.missing(Want(tokens, (5,))) == 1


def test_a_window_of_the_text_is_read_where_more_would_not_pay(attending: Heads) -> None:
    rng, heads = np.random.default_rng(5), attending
    tokens = some(rng, 100)
    heads.target.score([Want(tokens[:-1])])
    window = Want(tokens[70:], before=70)
    assert heads.head.missing(window) == 30
    row = heads.head.score([window])[0][0].copy()
    assert np.corrcoef(row, heads.fresh(tokens))[0, 1] > 0.8
    assert heads.head.missing(Want(tokens[70:], (9,), before=70)) == 1


def test_a_head_of_a_target_that_holds_other_text_still_answers(attending: Heads) -> None:
    rng, heads = np.random.default_rng(6), attending
    heads.target.score([Want(some(rng, 60))])
    assert heads.head.missing(Want(some(rng, 60))) == 1
    assert np.isfinite(heads.behind(some(rng, 60))).all()


def test_the_second_guess_is_the_second_blocks(tmp_path: Path) -> None:
    """Of a file with its blocks exchanged, the first block says what the second says here."""
    path = tiny_heads.write_mtp(tmp_path / "a.gguf", blocks=2)
    blocks = {tensor.name: tensor.data for tensor in GGUFReader(path).tensors if tensor.name[:5] in BLOCKS}
    turned = {f"blk.{5 - int(name[4])}{name[5:]}": data for name, data in blocks.items()}
    other = tiny_heads.write_mtp(tmp_path / "b.gguf", blocks=2, tensors=turned)
    rng = np.random.default_rng(9)
    tokens, tail = some(rng, 40), (7,)
    with Model(path, mtp=True) as one, Model(other, mtp=True) as swapped:
        right, exchanged = Heads(one, kind=TWO), Heads(swapped, kind=MTP)
        for heads in (right, exchanged):
            heads.target.score([Want(tokens[:-1])])
        first, after = right.behind(tokens), right.behind(tokens, tail)
        assert np.abs(first - exchanged.behind(tokens)).max() > 10 * CLOSE
        exchanged.head._held[0].made = [right.head._held[0].made[0]]  # the row that the first block made
        assert np.abs(after - exchanged.behind(tokens, tail)).max() < CLOSE
        right.close()
        exchanged.close()


def test_candidates_are_the_likeliest_tokens_and_weighed_by_the_guess_before(
    models: dict[str, Model],
) -> None:
    heads = made(models, "dflash2")
    rng = np.random.default_rng(2)
    tokens = some(rng, 40)
    heads.target.score([Want(tokens[:-1])])
    first = heads.behind(tokens)
    possible = np.flatnonzero(np.isfinite(first))
    assert possible.size == DFLASH2.candidates
    rows = [heads.behind(tokens, (int(token),)) for token in possible]
    behind = [set(np.flatnonzero(np.isfinite(row)).tolist()) for row in rows]
    assert all(those == behind[0] for those in behind), "candidates of a place are the same"
    assert np.ptp([row[list(behind[0])] for row in rows], 0).max() > 0.1, "their weights are not"
    likeliest = np.argsort(heads.head._logits(1)[0])[-DFLASH2.candidates :]
    assert set(likeliest.tolist()) == set(possible.tolist())
    heads.close()


# ---- each rule broken once --------------------------------------------------------------------------------


def shifted(between: Any) -> Any:
    def wrong(self: HiddenRows, seq: int, first: int, end: int) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = between(self, seq, first, end)
        return np.roll(rows, 1, 0)

    return wrong


def of_another_slot(between: Any) -> Any:
    def wrong(self: HiddenRows, seq: int, first: int, end: int) -> NDArray[np.float32]:
        other = (seq + 1) % N_SEQ
        rows: NDArray[np.float32] = between(
            self, other if self.reaches(other, first, end) else seq, first, end
        )
        return rows

    return wrong


def test_a_block_whose_turn_it_is_not_is_seen(models: dict[str, Model], monkeypatch: Any) -> None:
    """The first block reads for all of them: what the others hold was never written."""
    heads = made(models, "two blocks")
    monkeypatch.setattr(heads.head, "_choose", lambda block: None)
    rng = np.random.default_rng(3)
    tokens = some(rng, 40)
    heads.target.score([Want(tokens[:-1])])
    assert heads.off(tokens) < CLOSE
    assert heads.off(tokens, (7,)) > CLOSE
    heads.close()


def test_rows_of_guesses_that_went_are_seen(models: dict[str, Model], monkeypatch: Any) -> None:
    """Each guess is read in the row that was made before it; another guess wants another row."""
    heads = made(models, "two blocks")
    monkeypatch.setattr(
        turns_context, "same_beginning", lambda held, tokens: min(len(held), len(tokens)) // 4
    )
    assert caught(heads)
    heads.close()


def caught(heads: Heads) -> bool:
    """Do the tests above see that something is wrong?"""
    return any(script(heads, np.random.default_rng(seed), 60) > CLOSE for seed in range(2))


def test_an_assistant_takes_rejected_guesses_out_of_the_cache_that_it_reads(
    models: dict[str, Model], monkeypatch: Any
) -> None:
    """They lie there until the target evaluates again, the first of them where the head stands."""
    heads = made(models, "assistant")
    tokens = some(np.random.default_rng(3), 40)
    heads.target.score([Want(tokens[:-1], (9, 9, 9), 4)])
    assert heads.off(tokens) < CLOSE
    heads.target.score([Want(tokens[:-1], (9, 9, 9), 4)])
    monkeypatch.setattr(AssistantContext, "_begun", AssistantContext._plan)
    with pytest.raises(FatalDecodeError):  # llama.cpp sees that too
        heads.behind(tokens)
    heads.close()


def test_an_assistant_that_reads_another_row_is_seen(models: dict[str, Model], monkeypatch: Any) -> None:
    heads = made(models, "assistant")
    tokens = some(np.random.default_rng(3), 40)
    heads.target.score([Want(tokens[:-1])])
    right = heads.fresh(tokens)
    monkeypatch.setattr(
        heads.head, "_row_before", lambda plan: heads.target._cells.hidden.row(plan.seq, plan.position - 2)
    )
    assert np.abs(heads.behind(tokens) - right).max() > CLOSE
    heads.close()


@pytest.mark.parametrize("wrong", [shifted, of_another_slot])
def test_rows_of_other_places_are_seen(attending: Heads, monkeypatch: Any, wrong: Any) -> None:
    monkeypatch.setattr(HiddenRows, "between", wrong(HiddenRows.between))
    fresh = attending.fresh_head._rows
    right = HiddenRows(fresh.width, N_SEQ)
    monkeypatch.setattr(attending.fresh_target._cells, "hidden", right)
    monkeypatch.setattr(attending.fresh_head, "_rows", right)
    monkeypatch.setattr(type(right), "between", wrong(HiddenRows.between))
    assert caught(attending)


def test_a_cache_that_is_not_taken_back_is_seen(attending: Heads, monkeypatch: Any) -> None:
    """What a head made of its own guesses must go when the target has evaluated them."""

    class Forgetful(head_cache.Held):
        @property
        def read(self) -> int:
            return self.end

        @read.setter
        def read(self, n: int) -> None:
            pass

    monkeypatch.setattr(head_cache, "Held", Forgetful)
    for head in (attending.head,):
        head._held = [Forgetful() for _ in range(N_SEQ)]
    assert caught(attending)


def test_rows_of_rejected_guesses_are_seen(attending: Heads, monkeypatch: Any) -> None:
    monkeypatch.setattr(HiddenRows, "cut", lambda self, seq, n: None)
    monkeypatch.setattr(HiddenRows, "put", _stubborn(HiddenRows.put))
    assert caught(attending)


def _stubborn(put: Any) -> Any:
    def wrong(self: HiddenRows, seq: int, at: int, rows: NDArray[np.float32]) -> None:
        old = {position: row for position, row in self._last[seq].items() if position >= at}
        put(self, seq, at, rows)
        self._last[seq].update(old)

    return wrong
