"""States of real models: saved, restored, shared, and what is evaluated after them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import write_hybrid, write_llama, write_recurrent

from edgespec.core.loop import Want
from edgespec.errors import NoRoomError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model

MARGIN = 0.02  # of logits with a standard deviation of 2: evaluated in other batches
KINDS = ("plain", "hybrid", "recurrent")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    files = {
        "plain": write_llama(folder / "plain.gguf"),
        "hybrid": write_hybrid(folder / "hybrid.gguf"),
        "recurrent": write_recurrent(folder / "recurrent.gguf"),
    }
    loaded = {kind: Model(path) for kind, path in files.items()}
    yield loaded
    for model in loaded.values():
        model.close()


def settings(n_seq: int = 1, **changed: int) -> ContextSettings:
    return ContextSettings(**{"n_ctx": 256, "n_seq": n_seq, "n_rows": 4, "threads": 1, **changed})  # type: ignore[arg-type]


def text(seed: int, n: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 256, n).astype(np.int32)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_restored_goes_on_as_if_it_had_never_been_away(models: dict[str, Model], kind: str) -> None:
    """Byte for byte: a state is what evaluation left, not something like it."""
    tokens, new = text(1, 60), text(2, 5)
    with Context(models[kind], settings()) as context:
        context.score([Want(tokens)])
        saved = context.save(0)
        expected = context.score([Want(np.concatenate([tokens, new]))])[0].copy()
        context.score([Want(text(3, 40))])
        assert context.restore(0, saved)
        assert np.array_equal(context.held(), tokens)
        want = Want(np.concatenate([tokens, new]))
        assert context.missing(want) == 5
        before = context.evaluated
        assert np.array_equal(context.score([want])[0], expected)
        assert context.evaluated - before == 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_text_that_is_cut_answers_as_a_fresh_one(models: dict[str, Model], kind: str) -> None:
    """Recurrent state cannot be cut: then all is evaluated again, and `missing` has said so."""
    tokens = text(1, 60)
    with Context(models[kind], settings()) as context:
        other = Want(np.concatenate([tokens[:30], text(4, 10)]))
        expected = context.score([other])[0].copy()
        context.score([Want(tokens)])
        saved = context.save(0)
        context.clear(0)
        assert context.restore(0, saved)
        missing, before = context.missing(other), context.evaluated
        assert missing == (10 if kind == "plain" else 40)
        assert np.abs(context.score([other])[0] - expected).max() < MARGIN
        assert context.evaluated - before == missing


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tail_can_be_taken_back(models: dict[str, Model], kind: str) -> None:
    """Guesses were evaluated when it was saved, and are judged wrong behind it."""
    tokens, right = text(1, 60), text(2, 3)
    with Context(models[kind], settings()) as context:
        expected = context.score([Want(np.concatenate([tokens, right]))])[0].copy()
        context.clear(0)
        context.score([Want(tokens, (7, 8, 9), 4)])
        saved = context.save(0)
        context.score([Want(text(3, 40))])
        assert context.restore(0, saved)
        found = context.score([Want(np.concatenate([tokens, right]))])[0]
        assert np.abs(found - expected).max() < MARGIN


def test_a_state_goes_to_any_sequence(models: dict[str, Model]) -> None:
    tokens, new = text(1, 60), text(2, 5)
    with Context(models["plain"], settings(n_seq=3)) as context:
        context.score([Want(tokens, seq=0)])
        saved = context.save(0)
        context.score([Want(text(5, 50), seq=1)])
        assert context.restore(2, saved)
        want = np.concatenate([tokens, new])
        expected = context.score([Want(want, seq=0)])[0].copy()
        assert np.abs(context.score([Want(want, seq=2)])[0] - expected).max() < MARGIN
        assert context.held(1).size == 50, "others keep theirs"


def test_a_shared_beginning_takes_no_cells_and_each_goes_on_alone(models: dict[str, Model]) -> None:
    tokens = text(1, 150)
    with Context(models["plain"], settings(n_seq=3, cells=256)) as context:
        context.score([Want(tokens, seq=0)])
        for seq in (1, 2):  # 450 tokens in 256 cells
            assert context.share(0, seq, 140)
        for seq in (0, 1, 2):
            want = np.concatenate([tokens[:140], text(10 + seq, 20)])
            before = context.evaluated
            found = context.score([Want(want, seq=seq)])[0].copy()
            assert context.evaluated - before == 20
            with Context(models["plain"], settings()) as alone:
                assert np.abs(found - alone.score([Want(want)])[0]).max() < MARGIN
        context.clear(0)
        assert context.held(1).size == 160, "what one forgets the others keep"


def test_where_cells_have_run_out_nothing_is_restored_and_nothing_is_broken(models: dict[str, Model]) -> None:
    with Context(models["plain"], settings(n_seq=2, cells=256)) as context:
        context.score([Want(text(1, 150), seq=0)])
        saved = context.save(0)
        assert not context.restore(1, saved)
        assert context.held(1).size == 0 and context.held(0).size == 150
        context.clear(0)
        assert context.restore(1, saved) and np.array_equal(context.held(1), text(1, 150))


@pytest.mark.parametrize("kept", [True, False])
def test_tokens_next_to_others_lie_in_order_where_cells_are_kept(
    models: dict[str, Model], kept: bool
) -> None:
    """Where they are not, a token takes a cell that another's rejected guess left, before its own."""
    with Context(models["plain"], settings(n_seq=2, n_rows=8)) as context:
        context.keep_cells(kept)
        said = [text(seq, 20) for seq in (0, 1)]
        for i in range(6):
            guesses = tuple(text(10 * i, 3)), ()
            context.score(
                [Want(said[s], guesses[s], len(guesses[s]) + 1, s) for s in ((0, 1), (1, 0))[i % 2]]
            )
            said = [np.append(tokens, np.int32(i)) for tokens in said]
        assert [context.held(s).size for s in (0, 1)] == [28, 25]
        assert all(in_order(context, s) for s in (0, 1)) == kept


def in_order(context: Context, s: int) -> bool:
    """Do the cells of a sequence lie in the order of its tokens? Its saved state lists them as they lie."""
    n = context.held(s).size
    positions = context.save(s).state[: 16 + 12 * n].view(np.int32)[4::3]
    return bool((positions == np.arange(n)).all())


def test_cells_of_what_is_removed_stay_taken_until_they_are_needed(models: dict[str, Model]) -> None:
    with Context(models["plain"], settings(n_seq=2, cells=256)) as context:
        for seq in (0, 1):
            context.score([Want(text(seq, 100), seq=seq)])
        context.keep_cells(True)
        for i in range(10):  # rejected: 30 tokens of 56 that there are cells for
            context.score([Want(text(0, 100), tuple(text(50 + i, 3)), 4)])
        assert context.held().size == 103
        saved = context.save(1)
        context.clear(1)
        assert context.restore(1, saved), "its own cells were kept too, and had to be given back"
        assert not context.give_back_cells()
        context.score([Want(np.concatenate([text(0, 100), text(9, 50)]), seq=0)])
        with pytest.raises(NoRoomError):
            context.score([Want(np.concatenate([text(1, 100), text(8, 50)]), seq=1)])
        context.score([Want(text(0, 100), tuple(text(7, 3)), 4)])
        assert context.give_back_cells(), "what the refused one had left"
        context.keep_cells(False)
        context.score([Want(text(0, 90), (5,), 2)])
        assert not context.give_back_cells()
        with Context(models["plain"], settings()) as alone:
            found = context.score([Want(text(0, 60), seq=0)])[0].copy()
            assert np.abs(found - alone.score([Want(text(0, 60))])[0]).max() < MARGIN


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_what_cannot_go_back_keeps_no_cells(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], settings(n_seq=2)) as context:
        context.keep_cells(True)
        context.score([Want(text(1, 50), seq=0)])
        context.clear(0)
        assert not context.give_back_cells()


def test_recurrent_state_is_not_shared(models: dict[str, Model]) -> None:
    with Context(models["hybrid"], settings(n_seq=2)) as context:
        context.score([Want(text(1, 50), seq=0)])
        assert not context.share(0, 1, 50)
