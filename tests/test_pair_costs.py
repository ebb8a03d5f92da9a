"""Measuring a loaded pair: what is timed is what it says, and the caches are in order afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import tiny_gguf
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import SIZES, Costs
from edgespec.core.values import LONGEST_DRAFT
from edgespec.engine import measuring as pair_costs
from edgespec.engine.measuring import (
    ALLOWED,
    KNOWN,
    LOOKED_AT,
    LOOKS,
    PATIENCE,
    READING,
    SecondLook,
    believable,
    costs_path,
    measure_costs,
    time_again,
)
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import PROCESSOR, Model
from edgespec.llama.settings import CHUNK
from edgespec.system.config import cache_folder

SETTINGS = ContextSettings(n_ctx=256, n_rows=LONGEST_DRAFT + 1, threads=1, flash_attention=True)
WRITERS: dict[str, Callable[[Path], Path]] = {
    "plain": lambda path: tiny_gguf.write_llama(path, dtype="Q8_0"),
    "hybrid": lambda path: tiny_gguf.write_hybrid(path, dtype="Q8_0"),
    "recurrent": lambda path: tiny_gguf.write_recurrent(path, dtype="Q8_0"),
}

ROUNDING = 0.25  # of a logit; those of another text differ by several


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
            time_again(found, measured, draft)
            assert not measured.held().size and not draft.held().size, "nobody else knows of what was timed"
            wanted = fresh.score([Want(text)])[0].copy()
            for context in (measured, draft):
                assert np.abs(context.score([Want(text)])[0] - wanted).max() < ROUNDING
                assert context.held().tolist() == text.tolist()
        longer = measured.score([Want(text, (1, 2, 3), 4)])[0].copy()
        assert np.abs(longer - fresh.score([Want(text, (1, 2, 3), 4)])[0]).max() < ROUNDING
        shorter = measured.score([Want(text[:20])])[0]
        assert np.abs(shorter - fresh.score([Want(text[:20])])[0]).max() < ROUNDING


@pytest.mark.parametrize("kind", WRITERS)
def test_a_tiny_pair_is_measured_at_all_sizes(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], SETTINGS) as target, Context(models[kind], replace(SETTINGS, n_rows=1)) as d:
        found = measure_costs(target, d)
        known = {n for table in (found.target, found.draft) for n in table.measured}  # what was not disturbed
        assert known <= {1, 2, READING, *(n for n in SIZES if n <= LONGEST_DRAFT + 1)}
        assert all(found.target.prices(49)[1:] > 0)
        alone = measure_costs(target, None)
        assert alone.draft.seconds(1) == alone.target.seconds(1)


def test_contexts_that_are_shorter_than_what_is_timed_are_measured_as_far_as_they_reach(
    models: dict[str, Model],
) -> None:
    short = replace(SETTINGS, n_ctx=24, n_rows=20)
    with Context(models["plain"], short) as target, Context(models["plain"], short) as draft:
        found = measure_costs(target, draft)
        assert max(found.target.measured) < 24 and max(found.draft.measured) <= 2


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


def test_figures_of_a_moment_in_which_the_machine_stood_still_are_not_believed(
    models: dict[str, Model],
) -> None:
    """A token said to take a second was not timed again, since timing it would have taken too long."""
    with Context(models["plain"], SETTINGS) as target, Context(models["plain"], SETTINGS) as draft:
        for wrong in ("target", "draft"):
            found = measure_costs(target, draft)
            assert believable(found, target, draft)
            table = getattr(found, wrong)
            table.points = {n: seconds + 3.0 for n, seconds in table.points.items()}
            table._curve = None
            assert not believable(found, target, draft), wrong


class OnAClock:
    """A context whose evaluations take what a table says, `slow` times as long beside other programs."""

    tried = 0.0

    n_ctx = 256
    model = SimpleNamespace(n_vocab=500, has_recurrent_state=False)
    settings = SimpleNamespace(n_seq=1)
    slow = 1.0

    def __init__(self, table: CostTable, held: int = 30) -> None:
        self.table, self.seconds, self.sizes, self.tokens = table, 0.0, list[int](), held

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        return np.arange(self.tokens, dtype=np.int32)

    def score(self, wants: Sequence[Want]) -> None:
        self.sizes.append(wants[0].rows)
        self.seconds += self.slow * self.table.seconds(wants[0].rows)

    def clear(self, seq: int) -> None:
        pass

    def cut(self, seq: int, n: int) -> None:
        assert n == self.tokens, "what is held stays"


TRUE = {1: 0.03, 2: 0.04, 4: 0.05, 8: 0.08, 16: 0.1}


def wrong() -> Costs:
    """What is believed of TRUE: too much of 4 and 16."""
    table = CostTable(dict(TRUE), slope=0.0)
    table.offsets, table.weights = {4: 1.8, 16: 1.8}, {4: 1.0, 16: 1.0}
    return Costs(table, CostTable({1: 1.0}))


def nobody() -> float:
    return 0.0


def test_a_size_wrongly_thought_dear_is_timed_again_at_each_start() -> None:
    """A program that answers once and ends is never idle."""
    found, target = wrong(), OnAClock(CostTable(dict(TRUE), slope=0.0))
    for _ in range(30):
        before = target.seconds
        time_again(found, cast(Context, target), budget=0.4)
        assert target.seconds - before < 0.5
    for n in (2, 4, 8, 16):
        assert found.target.seconds(n) / found.target.seconds(1) < 1.3 * TRUE[n] / TRUE[1], n


def test_sizes_known_from_a_longer_context_are_left_alone(models: dict[str, Model]) -> None:
    found = Costs(CostTable({1: 1e-3, 16: 4e-3}), CostTable({1: 1.0}))
    with Context(models["plain"], replace(SETTINGS, n_ctx=16)) as short:
        time_again(found, short)
    assert max(found.target.measured) <= 12


def test_what_there_is_no_time_for_is_not_timed_again() -> None:
    found, target = wrong(), OnAClock(CostTable(dict(TRUE), slope=0.0))
    time_again(found, cast(Context, target), budget=0.105)
    assert set(target.sizes) == {1, 2}, "4 is thought to take 0.3 s"
    target.sizes.clear()
    time_again(found, cast(Context, target), budget=0.085)
    assert not target.sizes, "a single token of 0.03 s leaves no time for another size"


@pytest.mark.parametrize(("seconds", "singles"), [(0.01, 3), (1.0, 2)])
def test_a_first_start_does_not_wait_for_single_tokens_of_a_slow_model(seconds: float, singles: int) -> None:
    asked: list[int] = []

    def evaluate(n: int) -> float:
        asked.append(n)
        return seconds

    assert pair_costs._single(evaluate) == seconds and asked == [1] * singles


def test_a_size_wrongly_thought_dear_is_timed_again_when_idle_until_enough_is_known() -> None:
    """It would never be tried, and so never be seen to be cheap."""
    found, target = wrong(), OnAClock(CostTable(dict(TRUE), slope=0.0))
    look = SecondLook(cast(Context, target), found, nobody)
    looks = 0
    while look.take():
        looks += 1
    assert looks <= LOOKS * sum(n <= LOOKED_AT for n in SIZES)
    for n in (4, 16):
        assert found.target.seconds(n) / found.target.seconds(1) < 1.5 * TRUE[n] / TRUE[1], n
    assert all(found.target.weights[n] > 1 for n in (2, 4, 8))
    found.target.weights = dict.fromkeys(SIZES, KNOWN)
    target.sizes.clear()
    assert not SecondLook(cast(Context, target), found, nobody).take() and not target.sizes


def test_sizes_are_not_timed_next_to_the_work_of_others_and_not_for_ever() -> None:
    """It was done as soon as an answer ended: while the person compiles, or reads a page. What was found then
    was believed, and kept."""
    found, target = wrong(), OnAClock(CostTable(dict(TRUE), slope=0.0))
    look, waited = SecondLook(cast(Context, target), found, lambda: ALLOWED + 0.1), 0
    while look.take():
        waited += 1
    assert waited <= PATIENCE and not target.sizes


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


def test_each_place_and_each_build_for_a_card_has_a_file_of_its_own(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a pair on a card was looked for where nothing was kept, before it was loaded."""
    model = models["plain"]
    kept = []
    with Context(model, replace(SETTINGS, chunk=CHUNK)) as context:
        for build, on_card, beside in (
            ("CPU", 0, 0),
            ("CUDA", 3, 3), ("CUDA", 3, 0), ("CUDA", 1, 1), ("CUDA", 2, 2),
            ("Vulkan", 3, 3), ("Vulkan", 0, 0),
        ):  # fmt: skip
            (tmp_path / build).mkdir(exist_ok=True)
            (tmp_path / build / f"libggml-{build.lower()}.so").touch()
            monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path / build))
            target, draft = placed(context, on_card), placed(context, beside)
            kept.append(costs_path(target, draft))
    assert kept[0] == kept[-1], "the processor is the same by each build"
    assert len(set(kept)) == len(kept) - 1


def placed(context: Context, on_card: int) -> Context:
    """Returns what is asked of a context whose model has so many of its three layers on a card."""
    layers = +Counter({"CUDA0": on_card, PROCESSOR: 3 - on_card})
    model = SimpleNamespace(
        path=context.model.path, layers=layers, on_gpu=on_card > 0, rules=(), overridden=()
    )
    return cast(Context, SimpleNamespace(model=model, settings=context.settings))


def test_texts_are_kept_while_sizes_are_timed_again_when_idle(models: dict[str, Model]) -> None:
    text = np.arange(30, dtype=np.int32)
    with Context(models["plain"], SETTINGS) as target, Context(models["plain"], SETTINGS) as fresh:
        found = measure_costs(target, None)
        found.target.weights.clear()  # a fast machine may know enough of all sizes by now
        look = SecondLook(target, found, nobody)
        before = target.evaluated
        assert look.take() and target.evaluated == before, "there is no text to stand behind"
        target.score([Want(text)])
        while look.take():
            assert target.held().tolist() == text.tolist()
        after = np.append(text, np.int32(7))
        before = target.evaluated
        fresh.score([Want(text)])
        assert np.abs(target.score([Want(after)])[0] - fresh.score([Want(after)])[0]).max() < ROUNDING
        assert target.evaluated - before == 1, "what was there before is still there"


@pytest.mark.parametrize("kind", ["hybrid", "recurrent"])
def test_what_cannot_go_back_is_left_alone_when_idle(models: dict[str, Model], kind: str) -> None:
    with Context(models[kind], SETTINGS) as target:
        target.score([Want(np.arange(9, dtype=np.int32))])
        before = target.evaluated
        assert not SecondLook(target, wrong(), nobody).take()
        assert target.evaluated == before
