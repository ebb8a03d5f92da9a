"""Measuring a loaded pair: what is timed is what it says, and the caches are in order afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf

from edgespec import pair_costs
from edgespec.config import cache_folder
from edgespec.context import Context, ContextSettings
from edgespec.costs import SIZES, CostTable
from edgespec.decode import Want
from edgespec.llama import Model
from edgespec.pace import LONGEST
from edgespec.pair_costs import (
    LOOKED_AT,
    LOOKS,
    READING,
    SecondLook,
    costs_path,
    measure_costs,
    still_true,
)

SETTINGS = ContextSettings(n_ctx=256, n_rows=LONGEST + 1, threads=1, flash_attention=True)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "plain": lambda path: tiny_gguf.write_llama(path, dtype="Q8_0"),
    "hybrid": lambda path: tiny_gguf.write_hybrid(path, dtype="Q8_0"),
    "recurrent": lambda path: tiny_gguf.write_recurrent(path, dtype="Q8_0"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    opened = {kind: Model(write(folder / f"{kind}.gguf")) for kind, write in WRITERS.items()}
    yield opened
    for model in opened.values():
        model.close()


@pytest.mark.parametrize("kind", WRITERS)
def test_caches_are_right_after_measuring(models: dict[str, Model], kind: str) -> None:
    """The next text is evaluated as in a context that was never measured: same tokens, same logits."""
    rng = np.random.default_rng(1)
    text = rng.integers(0, 500, 40).astype(np.int32)
    with Context(models[kind], SETTINGS) as measured, Context(models[kind], SETTINGS) as fresh:
        draft_settings = replace(SETTINGS, n_rows=1)
        with Context(models[kind], draft_settings) as draft:
            found = measure_costs(measured, draft)
            assert still_true(found, measured, draft) in (True, False)
            wanted = fresh.score([Want(text)])[0].copy()
            for context in (measured, draft):
                assert np.array_equal(context.score([Want(text)])[0], wanted)
                assert context.held().tolist() == text.tolist()
        longer = measured.score([Want(text, (1, 2, 3), 4)])[0].copy()
        assert np.allclose(longer, fresh.score([Want(text, (1, 2, 3), 4)])[0], atol=0.25)
        assert np.array_equal(measured.score([Want(text[:20])])[0], fresh.score([Want(text[:20])])[0])


@pytest.mark.parametrize("kind", WRITERS)
def test_a_tiny_pair_is_measured_at_all_sizes(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], SETTINGS) as target, Context(models[kind], replace(SETTINGS, n_rows=1)) as d:
        found = measure_costs(target, d)
        assert found.target.measured == {1, *(n for n in SIZES if n <= LONGEST + 1)}
        assert found.draft.measured == {1, 2, READING}
        assert all(seconds < 1 for seconds in found.target.points.values())
        alone = measure_costs(target, None)
        assert alone.draft.seconds(1) == alone.target.seconds(1)


def test_contexts_that_are_shorter_than_what_is_timed_are_measured_as_far_as_they_reach(
    models: dict[str, Model],
) -> None:
    short = replace(SETTINGS, n_ctx=24, n_rows=20)
    with Context(models["plain"], short) as target, Context(models["plain"], short) as draft:
        found = measure_costs(target, draft)
        assert max(found.target.measured) < 24 and found.draft.measured == {1, 2}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_timed_as_n_tokens_evaluates_n_tokens(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], SETTINGS) as context:
        for make in (pair_costs._verification, pair_costs._reading):
            evaluate = make(context)
            evaluate(1)
            for n in (1, 4, 1, 2, 8, 1):
                before = context.evaluated
                evaluate(n)
                assert context.evaluated - before == n


def test_old_figures_follow_a_machine_that_became_slower(models: dict[str, Model]) -> None:
    with Context(models["plain"], SETTINGS) as target, Context(models["plain"], SETTINGS) as draft:
        found = measure_costs(target, draft)
        for table in (found.target, found.draft):
            table.level = 1e-3
        still_true(found, target, draft)
        assert 0.05 < found.target.level < 20 and 0.05 < found.draft.level < 20
        found.draft.points = {n: 100 * seconds for n, seconds in found.draft.points.items()}
        found.draft.level = 0.01
        assert not still_true(found, target, draft), "one of the two was disturbed when it was measured"


def test_each_pair_machine_and_setting_has_a_file_of_its_own(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, hybrid = models["plain"], models["hybrid"]
    with (
        Context(plain, SETTINGS) as target,
        Context(plain, replace(SETTINGS, threads=2)) as two_threads,
        Context(hybrid, SETTINGS) as other,
        Context(plain, replace(SETTINGS, n_ctx=128)) as shorter,
    ):
        paths = [
            costs_path(target, None), costs_path(target, target), costs_path(target, other),
            costs_path(two_threads, None), costs_path(other, None),
        ]  # fmt: skip
        assert len(set(paths)) == len(paths)
        assert all(path.parent == cache_folder() / "pairs" for path in paths)
        assert costs_path(shorter, None) == costs_path(target, None), "its length changes no cost"
        monkeypatch.setattr("platform.node", lambda: "another")
        assert costs_path(target, None) not in paths


def test_a_size_wrongly_thought_dear_is_looked_at_again_when_idle(models: dict[str, Model]) -> None:
    """It would never be tried, and so never be seen to be cheap."""
    text = np.arange(30, dtype=np.int32)
    with Context(models["plain"], SETTINGS) as target, Context(models["plain"], SETTINGS) as fresh:
        found = measure_costs(target, None)
        right = dict(found.target.points)
        for n in (4, 5):
            found.target.points[n] *= 6
        target.clear(0)
        look = SecondLook(target, found.target)
        assert not look.take(), "there is no text to stand behind"
        target.score([Want(text)])
        looks = 0
        while look.take():
            looks += 1
        assert looks == LOOKS * sum(n <= LOOKED_AT for n in SIZES)
        for n in (4, 5):
            assert found.target.points[n] / found.target.points[1] < 3 * right[n] / right[1]
        after = np.append(text, np.int32(7))
        before = target.evaluated
        fresh.score([Want(text)])
        assert np.array_equal(target.score([Want(after)])[0], fresh.score([Want(after)])[0])
        assert target.evaluated - before == 1, "what was there before is still there"


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_what_cannot_go_back_is_left_alone_when_idle(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], SETTINGS) as target:
        target.score([Want(np.arange(9, dtype=np.int32))])
        before = target.evaluated
        assert not SecondLook(target, CostTable({1: 1.0, 4: 1.5}, frozenset({1, 4}))).take()
        assert target.evaluated == before
