"""Flash attention is used where it is faster on this machine, and where only it will do."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf

from edgespec.core.loop import Want
from edgespec.core.pace.cost_table import CostTable
from edgespec.engine.measuring import measure_costs
from edgespec.engine.pair import Pair
from edgespec.llama import attention, attention_timing, other_sequences
from edgespec.llama.attention import (
    CELLS,
    PROMPT_ROWS,
    ROWS,
    Attention,
    attention_of,
    decided,
)
from edgespec.llama.attention_timing import Shape, confirmed, time_attention
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.ggml import libraries
from edgespec.llama.model import Model
from edgespec.llama.other_sequences import OtherSequences, others_in_use
from edgespec.llama.sequence import HeldSequence
from edgespec.llama.thread_count import Threads
from edgespec.pairs.settings import PairSettings
from edgespec_models.fit.formulas import CHUNK, score_bytes
from edgespec_models.gguf.header import read_file
from edgespec_models.kept_file import WEEK

PLAN = [*((n, cells) for cells in CELLS for n in ROWS), (PROMPT_ROWS, CELLS[-1])]


def costing(*milliseconds: float) -> dict[tuple[int, int], float]:
    """Returns what an attention costs: 1, 4 and 8 rows behind 512 tokens, then 2,048, then a prompt."""
    return {key: ms / 1000 for key, ms in zip(PLAN, milliseconds, strict=True)}


# SmolLM2's heads, and those of a 0.6B model, on an AMD EPYC (Zen 4, AVX-512, 2 cores), 2026-11-25
SMALL = Attention(
    costing(0.047, 0.195, 0.356, 0.187, 0.793, 1.421, 8.169),
    costing(0.033, 0.076, 0.144, 0.136, 0.379, 0.635, 8.796),
)
WIDE = Attention(
    costing(0.310, 0.688, 1.213, 1.132, 2.867, 5.146, 26.8),
    costing(0.162, 0.240, 0.419, 0.559, 0.759, 1.360, 21.0),
)


@pytest.fixture
def model(tmp_path: Path) -> Any:
    with Model(tiny_gguf.write_llama(tmp_path / "model.gguf", n_head=4, n_kv=2, d=128)) as model:
        yield model


def resolved(
    model: Model, found: Attention | None, room: int | None = None, **wanted: Any
) -> ContextSettings:
    """Returns what is decided where attention costs what was `found`."""
    settings, _ = decided(model, ContextSettings(**{"n_ctx": 512, **wanted}), room, lambda _: found)
    return settings


@pytest.mark.parametrize(
    ("flash", "plain", "least", "runs"),
    [
        ([5, 5.1], [2, 2.1], (5, 2), 2),
        ([5, 50, 5.2], [20, 2, 2.1], (5, 2), 3),
        ([90, 70, 50, 35, 25, 18, 13, 9], [1] * 8, None, 8),
    ],
    ids=["at once", "again", "never"],
)
def test_a_timing_next_to_a_busy_program_is_made_again_or_left(
    flash: list[float], plain: list[float], least: tuple[float, float] | None, runs: int
) -> None:
    """One disturbed run had flash attention take a fifth of the time, and that was kept for a week."""
    made = iter(flash), iter(plain)
    assert confirmed(lambda: next(made[0]), lambda: next(made[1])) == least
    assert [len(list(left)) for left in made] == [len(flash) - runs, len(plain) - runs]


def test_it_is_off_where_a_round_is_cheaper_without() -> None:
    assert not SMALL.flash_pays() and not WIDE.flash_pays()


def test_it_is_on_where_a_prompt_is_read_so_much_faster_that_this_counts_for_more() -> None:
    swapped = Attention(WIDE.plain, WIDE.flash)
    reading = Attention(
        costing(0.1, 0.2, 0.4, 0.3, 0.6, 1.0, 4.0), costing(0.1, 0.2, 0.4, 0.3, 0.6, 1.0, 40.0)
    )
    assert swapped.flash_pays() and reading.flash_pays()


def test_it_is_on_where_many_sequences_fill_the_cache(model: Model) -> None:
    """It skips the cells of others, which else cost as much as those of the text that is being written."""
    assert WIDE.flash_pays(1.5) and not WIDE.flash_pays(0.5)
    assert resolved(model, WIDE, n_seq=4, n_rows=4).flash_attention is True
    assert resolved(model, WIDE, n_seq=2, n_rows=2).flash_attention is False


def test_what_others_held_in_use_decides_at_the_next_start(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One agent behind four slots goes without it from then on, four that write at once have it."""
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path))
    four = {"n_seq": 4, "n_rows": 4}

    def use(sequences: int) -> None:
        """Has some of four sequences read 500 tokens each, as one start, and as often as an hour has."""
        seen = OtherSequences()
        for _ in range(200):
            held = [HeldSequence(bytearray(4 * 500 * (seq < sequences))) for seq in range(4)]
            seen.note(held, [(seq, 500) for seq in range(sequences)])
        seen.keep(model.path, 4)

    use(1)
    assert resolved(model, WIDE, **four).flash_attention is False
    use(4)
    assert others_in_use(model.path, 4) > 0.2 and resolved(model, WIDE, **four).flash_attention is True
    for file in (tmp_path / "attention").iterdir():
        file.write_text('{"own": 1e400}')
    assert others_in_use(model.path, 4) == other_sequences.ASSUMED


def test_cells_that_two_sequences_share_are_no_other_ones(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path))
    with Context(model, ContextSettings(n_ctx=512, n_seq=2, n_rows=2, flash_attention=False)) as context:
        context.score([Want(np.zeros(100, np.int32), (), 1, 0)])
        assert context.share(0, 1, 70)
        context.score([Want(np.zeros(80, np.int32), (), 1, 1)])
        context.keep_others()
    (file,) = (tmp_path / "attention").iterdir()
    assert json.loads(file.read_text()) == {"own": 100 * 100 + 10 * 80, "others": 10 * 100}


@pytest.mark.sample(1)
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_others_hold_does_not_change_the_attention_that_prompts_on_disk_were_read_with(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_disk: bool
) -> None:
    """The second session of an agent read 12,500 tokens again, alone behind four slots in the first."""
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path))
    settings = PairSettings(n_ctx=256, slots=2, threads=1, cache_disk=on_disk << 20, flash_attention=False)
    with Pair(tiny_target, None, settings) as pair:
        pair.target_context.score([Want(np.zeros(100, np.int32), (), 1, 0)])
    assert (others_in_use(tiny_target, 2) == other_sequences.ASSUMED) == on_disk


def test_what_is_measured_decides_for_a_context(model: Model) -> None:
    assert resolved(model, WIDE).flash_attention is False
    assert resolved(model, Attention(WIDE.plain, WIDE.flash)).flash_attention is True
    assert resolved(model, None).flash_attention is False, "a build that cannot be timed"
    assert resolved(model, None, n_seq=4, n_rows=4).flash_attention is True


@pytest.mark.parametrize("given", [True, False])
def test_what_the_user_says_holds(model: Model, given: bool) -> None:
    found = WIDE if given else Attention(WIDE.plain, WIDE.flash)
    assert resolved(model, found, flash_attention=given).flash_attention is given


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({}, "off, measured here at 1.74 of the time without it"),
        ({"n_seq": 8, "n_rows": 8}, "on, measured here at"),
        ({"flash_attention": True}, "on, as asked"),
        ({"flash_attention": False}, "off, as asked"),
        ({"kv_type": "q8_0"}, "on, as a q8_0 cache needs it"),
        ({"room": 1}, "on, as there is no room for the scores of attention without it"),
    ],
)
def test_it_is_known_why_it_is_on_or_off(model: Model, wanted: dict[str, Any], text: str) -> None:
    room = wanted.pop("room", None)
    settings, found = decided(model, ContextSettings(**{"n_ctx": 512, **wanted}), room, lambda _: WIDE)
    assert str(found).startswith(text) and found.on is settings.flash_attention


def test_a_quantised_cache_has_it(tmp_path: Path) -> None:
    with Model(tiny_gguf.write_llama(tmp_path / "wide-heads.gguf", n_head=2)) as model:
        assert resolved(model, WIDE, kv_type="q8_0").flash_attention is True
        with Context(model, ContextSettings(n_ctx=256, kv_type="q4_0")) as context:
            assert context.settings.flash_attention is True


def test_scores_that_do_not_fit_ask_for_smaller_chunks_and_then_for_flash_attention(model: Model) -> None:
    assert resolved(model, WIDE).chunk == CHUNK
    room = score_bytes(4, 512, 64)
    assert resolved(model, WIDE, room) == resolved(model, WIDE, room, chunk=64, flash_attention=False)
    without_room = resolved(model, WIDE, room - 1)
    assert without_room.flash_attention is True and without_room.chunk == 512
    asked = resolved(model, WIDE, room - 1, flash_attention=False)
    assert asked.flash_attention is False, "somebody asked for it"


def test_the_timing_is_kept_and_made_again_after_a_week_or_if_it_is_damaged(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Shape] = []
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path))

    def timed(shape: Shape, plan: Any, threads: int) -> Any:
        made.append(shape)
        return WIDE.flash, WIDE.plain

    def found() -> Attention | None:
        return attention_of(header, timing=timed)

    header = read_file(model.path)
    assert found() == found() == WIDE and made == [Shape(32, 32, 4, 2)]
    (file,) = (tmp_path / "attention").iterdir()
    for damage in ("{", "[]", json.dumps({"format": 1, "flash": [[1, 2, "x"]], "plain": []})):
        file.write_text(damage)
        attention.attention_timed.cache_clear()
        assert found() == WIDE
    assert len(made) == 4
    old = file.stat().st_mtime - WEEK - 1
    os.utime(file, (old, old))
    attention.attention_timed.cache_clear()
    assert found() == WIDE and len(made) == 5
    file.unlink()
    assert found() == WIDE and len(made) == 5, "this process knows it"


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs are enough, however busy the machine is with other tests."""
    monkeypatch.setattr(attention_timing, "NEARLY", math.inf)
    monkeypatch.setattr(attention_timing, "LONGEST_S", math.inf)
    attention.attention_timed.cache_clear()


@pytest.mark.usefixtures("undisturbed")
def test_attention_is_really_timed_both_ways() -> None:
    found = time_attention(Shape(32, 32, 4, 2), [(1, 64), (4, 256)], 1)
    assert found and all(set(kind) == {(1, 64), (4, 256)} for kind in found)
    assert all(0 < seconds < 1 for kind in found for seconds in kind.values())


@pytest.mark.usefixtures("undisturbed")
def test_a_machine_without_memory_for_it_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base = libraries()[1]
    assert time_attention(Shape(32, 32, 4, 2), [(1, 64)], 1)
    monkeypatch.setattr(base, "ggml_backend_alloc_ctx_tensors", lambda context, backend: None)
    monkeypatch.setattr(attention_timing, "_functions", lambda: base)
    assert time_attention(Shape(32, 32, 4, 2), [(1, 64)], 1) is None


@pytest.mark.usefixtures("undisturbed")
def test_latent_attention_is_timed_with_its_values_among_the_keys() -> None:
    found = time_attention(Shape(96, 64, 4, 1, in_keys=True), [(2, 64)], 1)
    assert found and all(0 < kind[2, 64] < 1 for kind in found)


def test_without_it_the_number_of_threads_changes_no_logit(tmp_path: Path) -> None:
    """With it, a row behind 512 tokens and more is split over the threads, and rounds so."""
    tokens = np.random.default_rng(3).integers(0, 512, 700).astype(np.int32)
    rows = {}
    with Model(tiny_gguf.write_llama(tmp_path / "long.gguf", context_length=1024)) as model:
        for flash in (True, False):
            for threads in (1, 2):
                how = ContextSettings(n_ctx=768, threads=threads, flash_attention=flash)
                with Context(model, how) as context:
                    context.score([Want(tokens[:-1])])
                    rows[flash, threads] = context.score([Want(tokens)])[0][0].copy()
    assert np.array_equal(rows[False, 1], rows[False, 2])
    assert not np.array_equal(rows[True, 1], rows[True, 2]), "else nothing is shown here"


@pytest.mark.parametrize("flash", [True, False])
def test_the_number_of_threads_stays_within_a_text_where_digits_depend_on_it(
    tmp_path: Path, flash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Threads, "choose", lambda threads, n: asked.append(n))
    tokens = np.random.default_rng(4).integers(0, 512, 300).astype(np.int32)
    with Model(tiny_gguf.write_llama(tmp_path / "model.gguf")) as model:
        with Context(model, ContextSettings(n_ctx=512, threads=1, flash_attention=flash)) as context:
            context.score([Want(tokens[:200])])
            context.score([Want(tokens[:299])])
            asked.clear()
            context.score([Want(tokens)])
            assert asked == ([] if flash else [1])
            context.score([Want(tokens[:1])])
            assert asked[-1] == 1, "another text begins"


@pytest.mark.usefixtures("undisturbed")
def test_a_pair_knows_what_context_costs_before_it_has_seen_any(tiny_target: Path, tiny_draft: Path) -> None:
    """Rows share the reading of keys and values: eight behind a text cost less than eight times one."""
    settings = PairSettings(n_ctx=1024, threads=1, remember=False, flash_attention=False)
    with Pair(tiny_target, tiny_draft, settings) as pair:
        target = measure_costs(*pair.contexts.values()).target
    assert set(target.reach) == {*ROWS, PROMPT_ROWS} and target.reach[1] == 1
    one = target.seconds(1, 4000) - target.seconds(1, 0)
    eight = target.seconds(8, 4000) - target.seconds(8, 0)
    assert 0 < one < eight and eight == pytest.approx(target.reach[8] * one)


def test_a_table_without_shared_reading_adds_as_much_for_each_row() -> None:
    table = CostTable({1: 0.01, 8: 0.02}, slope=0.1)
    assert table.seconds(4, 1000) - table.seconds(4, 0) == pytest.approx(4 * 0.1 * 0.01)
    shared = CostTable({1: 0.01, 8: 0.02}, slope=0.1, reach={1: 1.0, 4: 1.5, 8: 2.5})
    curve = shared.curve(8, 2000) - shared.curve(8)
    assert curve[[1, 4, 6, 8]] == pytest.approx([0.002, 0.003, 0.004, 0.005])
