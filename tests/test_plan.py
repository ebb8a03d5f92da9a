"""Plans: what a model reads is counted, what reading costs is measured once, and the arithmetic is exact."""

from __future__ import annotations

import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from local_hub import LocalHub

from edgespec.commands import cli
from edgespec.commands.plan import before_pull, header_fit, heads, measuring, model_cost, pair_plan, rates
from edgespec.commands.plan.header_fit import fit_of_heads, write_stub
from edgespec.commands.plan.model_cost import ModelCost, Places
from edgespec.commands.plan.rates import Rate, Rates
from edgespec.core.loop import Want
from edgespec.errors import PlanError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.pairs import planned
from edgespec.pairs.settings import PairSettings
from edgespec_models import tiny
from edgespec_models.fit.allotment import ALL, Allotment
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM, Device, Need, Parts
from edgespec_models.gguf.header import Header, Tensor, read_file
from edgespec_models.gguf.number_formats import FORMATS, UnknownFormatError, format_of, n_bytes
from edgespec_models.gguf.reading import Matrix, Reading, reading_of
from edgespec_models.gguf.uniform import random_bytes, write_uniform
from edgespec_models.hub.choose_file import Chosen
from edgespec_models.hub.hub import Hub, HubFile
from edgespec_models.shelf import catalogue
from edgespec_models.shelf.store import Store
from edgespec_tui.screens.model_shelf import Shelf

pytestmark = pytest.mark.usefixtures("one_oracle")

GIB = 2**30
ARCHITECTURES: dict[str, Callable[[Path], Path]] = {
    "dense": lambda path: tiny_gguf.write_llama(path, layers=6),
    "sliding window": lambda path: tiny_gguf.write_sliding(path, layers=12),
    "experts": lambda path: tiny_gguf.write_experts(path, layers=6),
    "hybrid": lambda path: tiny_gguf.write_hybrid(path, attention=(False, False, True) * 3),
    "recurrent": lambda path: tiny_gguf.write_recurrent(path, layers=6),
}


# --- random weights


@pytest.mark.parametrize("type_", FORMATS)
def test_random_weights_are_numbers_of_a_sensible_size(type_: int) -> None:
    """An overflow would make no evaluation slower, but the next one wrong to look at."""
    layout = FORMATS[type_]
    assert GGML_QUANT_SIZES[GGMLQuantizationType(type_)] == (layout.weights, layout.size), layout.name
    assert GGMLQuantizationType(type_).name == layout.name
    data = b"".join(random_bytes((1024, 8), type_, "x.weight", np.random.default_rng(0)))
    assert len(data) == n_bytes((1024, 8), type_)
    try:
        values = dequantize(np.frombuffer(data, np.uint8).reshape(8, -1), GGMLQuantizationType(type_))
    except NotImplementedError:
        pytest.skip("gguf cannot unpack it")
    assert values.shape == (8, 1024) and np.isfinite(values).all()
    assert 0.002 < values.std() < 0.2


def test_long_tensors_repeat_what_was_drawn() -> None:
    pieces = [len(piece) for piece in random_bytes((4096, 4096), 8, "x", np.random.default_rng(0))]
    assert sum(pieces) == 4096 * 4096 // 32 * 34 and max(pieces) < 5 << 20


def test_vectors_hold_what_keeps_a_model_alive() -> None:
    def vector(name: str) -> float:
        return float(np.frombuffer(b"".join(random_bytes((4,), 0, name, np.random.default_rng(0))), "f4")[0])

    assert vector("blk.0.attn_norm.weight") == 1 and vector("blk.0.ssm_a") == -1
    assert vector("blk.0.attn_q.bias") == 0


def test_a_format_that_is_not_known_is_said() -> None:
    with pytest.raises(UnknownFormatError, match="blk.0.x has the number format 99"):
        format_of(99, "blk.0.x")


@pytest.mark.parametrize(
    ("type_", "mixed"), [(0, False), (1, False), (8, False), (12, False), (39, False), (8, True)]
)
def test_a_model_of_any_format_can_be_evaluated(type_: int, mixed: bool, tmp_path: Path) -> None:
    write_uniform(tmp_path / "m.gguf", type_, 256, 2, mixed=mixed)
    made = read_file(tmp_path / "m.gguf")
    matrices = [tensor for tensor in made.tensors if len(tensor.shape) > 1]
    assert {tensor.type for tensor in matrices if "gate_inp" not in tensor.name} == {type_}
    assert any(tensor.name.endswith("_exps.weight") for tensor in matrices) == mixed
    with Model(tmp_path / "m.gguf") as model, Context(model, ContextSettings(n_ctx=64, n_rows=4)) as context:
        (rows,) = context.score([Want(np.arange(8, dtype=np.int32), (), 4)])
        assert np.isfinite(rows).all() and rows.std() > 0


# --- what a model reads


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_of_any_architecture_all_matrices_are_read(kind: str, tmp_path: Path) -> None:
    header = read_file(ARCHITECTURES[kind](tmp_path / "whole.gguf"))
    found = reading_of([header])
    names = {tensor.name for tensor in header.tensors}
    unread = {"token_embd.weight"} if "output.weight" in names else set()
    wanted = [t for t in header.tensors if len(t.shape) > 1 and t.name not in unread]
    assert sum(matrix.size for matrix in found.matrices) == sum(t.n_bytes or 0 for t in wanted)
    assert found.layers == header.of_architecture("block_count")


def test_blocks_that_only_guess_are_not_read(tmp_path: Path) -> None:
    """That is what plain decoding costs."""
    with_block, without = (reading_of([read_file(path)]) for path in (tiny.mtp_path(), tiny.target_path()))
    assert with_block.layers == without.layers
    assert sum(with_block.types.values()) == pytest.approx(sum(without.types.values()), rel=0.01)


def even(*matrices: Matrix, layers: int = 1) -> dict[int, float]:
    """Returns costs where a layer takes a second beside its weights, and a byte of n rows n seconds."""
    rate = Rate({n: float(n) for n in (1, 2, 4, 16)})
    rates = SimpleNamespace(
        layer=lambda: Rate(dict.fromkeys((1, 2, 4, 16), 1.0)), byte=lambda type_, width, mixed: rate
    )
    return model_cost._cost(Reading(matrices, layers, 64), Places(rates)).seconds  # type: ignore[arg-type]


def test_costs_are_those_of_layers_and_bytes() -> None:
    assert even(Matrix(8, 10), Matrix(8, 5), layers=3) == {1: 18.0, 2: 33.0, 4: 63.0, 16: 243.0}


def test_of_experts_those_count_that_some_token_needs() -> None:
    """One token of two in eight reads a quarter; sixteen nearly all, and each for a quarter of the rows."""
    found = even(Matrix(8, 80, experts=8, used=2), layers=1)
    assert found[1] == pytest.approx(1 + 20)
    assert found[16] == pytest.approx(1 + 16 * 20), "as much work in all: here a byte costs what its rows do"
    flat = Rate(dict.fromkeys((1, 16), 1.0))
    awake = 8 * (1 - 0.75**16)
    assert model_cost._read(Matrix(8, 80, 8, 2), 16, flat.seconds) == pytest.approx(10 * awake)


def place(byte: float) -> Any:
    """Returns the rates of a place where a layer takes a second, and a crossing from there a hundred."""
    layer, crossing, rate = (Rate(dict.fromkeys((1, 4), cost)) for cost in (1.0, 100.0, byte))
    return SimpleNamespace(
        layer=lambda: layer, crossing=lambda: crossing, byte=lambda type_, width, mixed: rate
    )


def test_each_tensor_costs_what_its_place_does_and_each_split_layer_a_crossing() -> None:
    """Four experts of eight a token lie in main memory in one of two layers; there a byte costs tenfold."""
    matrices = [
        *(Matrix(8, 10, name=f"blk.{i}.attn_q.weight") for i in (0, 1)),
        *(Matrix(8, 80, 8, 4, f"blk.{i}.ffn_up_exps.weight") for i in (0, 1)),
    ]
    lies = Places(place(1.0), place(10.0), lambda name: name == "blk.1.ffn_up_exps.weight")
    found = model_cost._cost(Reading(tuple(matrices), 2, 64), lies)
    assert found.seconds[1] == pytest.approx(2 + 100 + 20 + 40 + 400)
    assert found.seconds[4] == pytest.approx(2 + 100 + 20 + 80 * (1 - 0.5**4) * 11)


def on_a_card(
    n_gpu_layers: int = ALL, cpu_moe: tuple[int, ...] | None = None, fits: bool = True, n_ctx: int = 4096
) -> Fit:
    """Returns how a pair of ours would lie on a machine with a card."""
    need = Need({RAM: Parts(weights=GIB), "CUDA0": Parts(weights=GIB)}, 7)
    chosen = Allotment(n_ctx, n_gpu_layers, ALL, {"target": need, "draft": need}, cpu_moe)
    gave_up = (f"experts of {len(cpu_moe)} of 6 layers in main memory",) if cpu_moe else ()
    return Fit(fits, chosen, (Device(RAM, GIB, GIB), Device("CUDA0", GIB, GIB)), gave_up)


@pytest.mark.usefixtures("quick")
def test_speeds_and_words_are_those_of_where_the_experts_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = tiny_gguf.write_experts(tmp_path / "mixture.gguf", layers=6)

    def evaluated(self: Rates, type_: int, width: int, layers: int, **how: Any) -> dict[int, float]:
        each = 1e-3 if self._settings.n_gpu_layers == 0 else 1e-5
        return {n: each * layers * (1 + 0.1 * n) * (2 if how.get("rules") else 1) for n in measuring.SIZES}

    monkeypatch.setattr(Rates, "_evaluated", evaluated)

    def speed(fit: Fit) -> float:
        return pair_plan.plan_pair([read_file(mixture)], None, fit=fit).plain_tok_per_s

    speeds = [speed(on_a_card(*asked)) for asked in ((), (ALL, (1,)), (ALL, (0, 1, 2, 3, 4, 5)), (3,), (0,))]
    assert speeds == sorted(speeds, reverse=True) and len(set(speeds)) == 5
    monkeypatch.setattr(header_fit, "pair_fit", lambda *_, **__: on_a_card(cpu_moe=(0, 1, 2, 3)))
    words = ["plan", "--target", str(mixture), "--draft", str(mixture)]
    assert cli.main([*words, "--json"]) == 0
    (pair,) = told(capsys)["pairs"]
    assert speeds[0] > pair["plain_tok_per_s"] > speeds[2]
    assert cli.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "; experts of 4 of 6 layers in main memory: about " in shown and " with its draft" in shown
    _, (_, line) = before_pull.expectation("a/b", [[read_file(mixture)]] * 2)
    assert line.startswith("speed   experts of 4 of 6 layers in main memory: about ")


@pytest.mark.parametrize(
    ("fit", "grade"),
    [
        (on_a_card(), 2), (on_a_card(cpu_moe=(1,)), 2), (on_a_card(5), 1), (on_a_card(fits=False), 0),
        (on_a_card(n_ctx=256), 1),
    ],
)  # fmt: skip
def test_a_quantisation_suits_if_only_experts_lie_in_main_memory(
    fit: Fit, grade: int, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(header_fit, "pair_fit", lambda *_, **__: fit)
    assert header_fit.suitable([[read_file(small)]]) == grade


def test_a_quantisation_does_not_suit_beside_a_projector_that_leaves_no_room(small: Path) -> None:
    """What a projector takes was not counted, so that one was chosen which did not fit with it."""
    for size, grade in ((2**20, 2), (2**50, 0)):
        projector = Chosen((HubFile("a/b", "c", "mmproj.gguf", size, None),), "")
        assert header_fit.suitable([[read_file(small)]], projector) == grade


def test_a_format_that_a_model_hardly_uses_is_not_measured_for_it() -> None:
    asked: list[int] = []

    def byte(type_: int, width: int, *, mixed: bool) -> Rate:
        asked.append(type_)
        return Rate({1: 1.0})

    rates = SimpleNamespace(layer=lambda: Rate({1: 0.0}), byte=byte)
    found = model_cost._cost(Reading((Matrix(12, 990), Matrix(0, 10)), 1, 64), Places(rates))  # type: ignore[arg-type]
    assert set(asked) == {12} and found.seconds == {1: 1000.0}


def test_a_time_that_no_machine_takes_is_mended() -> None:
    """On a busy machine four tokens took longer than sixteen, and no guesses paid any more."""
    from edgespec.commands.plan.measuring import _undisturbed

    assert _undisturbed({1: 1.0, 2: 1.5, 4: 9.0, 8: 2.0, 16: 3.0}) == {
        1: 1.0, 2: 1.5, 4: pytest.approx(2.3), 8: 2.0, 16: 3.0
    }  # fmt: skip


# --- from costs to speeds


def fake_cost(one: float, each: float) -> ModelCost:
    return ModelCost({n: one + each * (n - 1) for n in (1, 2, 3, 4, 5, 6, 8, 12, 16)})


@pytest.mark.parametrize(("acceptance", "each"), [*itertools.product((0.2, 0.6, 0.9), (0.002, 0.02, 0.08))])
def test_the_speed_is_that_of_the_best_number_of_guesses(acceptance: float, each: float) -> None:
    target, draft = fake_cost(0.1, each), fake_cost(0.005, 0.001)

    def speed(k: int) -> float:
        tokens = sum(acceptance**i for i in range(k + 1))
        verifying = 0.1 + each * k + pair_plan.ROUND_S
        return tokens / (verifying + k * 0.005)

    found = pair_plan._plan(target, draft, [acceptance]).speeds[0]
    best = max(range(16), key=speed)
    assert found.tok_per_s == pytest.approx(speed(best)) and found.draft_length == best
    assert found.tok_per_s >= pair_plan._plan(target, draft, []).plain_tok_per_s


def test_without_a_draft_there_is_one_speed() -> None:
    found = pair_plan._plan(fake_cost(0.1, 0.1), None, [0.5])
    assert found.speeds == ()
    assert found.plain_tok_per_s == pytest.approx(10, rel=0.01)


# --- measuring, and keeping what was measured


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write_llama(tmp_path_factory.mktemp("plan") / "small.gguf", layers=2)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "BUDGET_S", 0.05)
    monkeypatch.setattr(rates, "WIDTHS", (256,))
    monkeypatch.setattr(rates, "LARGE", 1 << 20)
    monkeypatch.setattr(rates, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))  # a quiet machine


@pytest.fixture
def told_rates(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What evaluations would take: to time them is another test's."""
    seconds = {n: 1e-3 * (1 + 0.1 * n) for n in (1, 2, 3, 4, 5, 6, 8, 12, 16)}
    monkeypatch.setattr(Rates, "_evaluated", lambda self, type_, width, layers, **how: dict(seconds))


@pytest.mark.usefixtures("quick")
def test_what_was_measured_is_kept_for_this_machine_and_these_settings(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, settings = [read_file(small)], PairSettings()
    assert pair_plan.kept_plan(head, None, settings) is None
    stages: list[str] = []
    found = pair_plan.plan_pair(head, None, settings, on_stage=stages.append)
    assert found.plain_tok_per_s > 0
    assert stages == ["measuring F32-256 on this machine", "measuring layer on this machine"][::-1]
    with monkeypatch.context() as patch:
        patch.setattr(Rates, "_evaluated", None)  # measuring again fails
        assert pair_plan.plan_pair(head, None, settings) == found == pair_plan.kept_plan(head, None, settings)
    assert pair_plan.kept_plan(head, None, PairSettings(threads=2)) is None
    for path in Rates(settings)._path("layer").parent.iterdir():
        path.write_text("{}")
    assert pair_plan.kept_plan(head, None, settings) is None, "what makes no sense is measured anew"


@pytest.mark.slow
def test_what_was_measured_on_a_busy_machine_is_said_so_and_measured_anew(
    small: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    """`plan` said 44 tok/s with a warning, and the next `pull` promised them "up to 25 % off"; it had 607."""
    head, settings = [read_file(small)], PairSettings()
    monkeypatch.setattr(rates, "Others", lambda: SimpleNamespace(cores=lambda: 1.4))
    fit = fit_of_heads(head, head, settings)
    assert pair_plan.plan_pair(head, head, settings, fit=fit).disturbed
    kept = pair_plan.kept_plan(head, head, settings, fit=fit)
    assert kept and kept.disturbed and kept.busy == 1.4
    _, (_, speed) = before_pull.expectation("some/pair", [head, head], draft="some/draft")
    assert "while other programs kept 1.4 cores busy, so probably faster" in speed and "%" not in speed
    assert "`edgespec plan some/pair --draft some/draft` measures it again" in speed
    monkeypatch.setattr(rates, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))
    assert not pair_plan.plan_pair(head, head, settings, fit=fit).disturbed
    assert "busy" in planned.PlannedSpeed(2.0, None, None, False, disturbed=True).sentence()


def test_an_installed_pair_whose_files_are_gone_or_damaged_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ "the catalogue has no pair" was said."""
    path = tiny_gguf.write_llama(tmp_path / "mine.gguf", d=32, layers=1)
    assert cli.main(["import", str(path), "--target-only"]) == 0
    path.write_bytes(b"GGUF")
    assert cli.main(["plan", "mine"]) == 1
    assert "mine.gguf is not a GGUF file" in capsys.readouterr().err
    path.unlink()
    assert cli.main(["plan", "mine"]) == 1
    assert f"{path} of pair mine is gone: `edgespec import` it again" in capsys.readouterr().err


def test_a_place_that_is_not_here_is_one_sentence(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was planned as if nothing had been said."""
    refused = {"error": "UnknownPlaceError", "message": "there is no NOWHERE"}
    monkeypatch.setattr(
        rates.JsonChild, "ask", lambda _, asked: {"devices": []} if "devices" in asked else refused
    )
    assert cli.main(["plan", "--target", str(small), "-ot", "ffn=NOWHERE"]) == 1
    assert capsys.readouterr().err.endswith("edgespec: there is no NOWHERE\n")


def test_what_llama_cpp_refuses_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(path: Path, *_: object, mixed: bool) -> None:
        path.write_bytes(b"no model")

    monkeypatch.setattr(rates, "write_uniform", wrong)
    with pytest.raises(
        PlanError, match=r"^nothing can be planned here: .*a model of random weights"
    ) as refused:
        Rates(PairSettings()).layer()
    assert "\n" not in str(refused.value) and "random.gguf" not in str(refused.value)


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "no_room", lambda *_: "384 MB are to be written")
    with pytest.raises(PlanError, match="nothing can be planned: 384 MB .*; make room, or .* with TMPDIR"):
        Rates(PairSettings()).layer()


def test_a_format_that_is_not_known_is_one_sentence(small: Path) -> None:
    head = read_file(small)
    odd = Header(head.name, head.metadata, (*head.tensors, Tensor("odd", (4, 4), 99, 0, None)), head.raw, 1)
    with pytest.raises(PlanError, match="number format 99"):
        model_cost.model_cost([odd], Places(Rates(PairSettings())))


def test_a_stub_is_as_long_as_the_model_and_takes_no_room(small: Path, tmp_path: Path) -> None:
    head = read_file(small)
    stub = write_stub(tmp_path, "target", [head])
    assert stub.stat().st_size == small.stat().st_size
    assert read_file(stub).tensors == head.tensors
    parts = write_stub(tmp_path, "part", [head, head])
    assert parts.name == "part-00001-of-00002.gguf" and len(list(tmp_path.glob("part-*"))) == 2


# --- the command


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("told_rates")
def test_a_pair_of_this_machine_is_planned(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--target", str(small), "--draft", str(small), "--json"]) == 0
    (pair,) = told(capsys)["pairs"]
    assert pair["name"] == "small" and pair["fits"] and pair["plain_tok_per_s"] > 0
    assert [speed["acceptance"] for speed in pair["speeds"]] == [0.6, 0.4, 0.6, 0.8]
    assert pair["acceptance_assumed"] and pair["memory"] > small.stat().st_size
    assert cli.main(["plan", "--target", str(small), "--draft", str(small), "--acceptance", "0.9"]) == 0
    shown = capsys.readouterr().out
    assert "90%" in shown and "assumed" not in shown and "tok/s" in shown and "off:" in shown


@pytest.fixture
def local() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        yield hub


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_of_a_pair_on_the_hub_only_the_heads_are_fetched(
    local: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures need no weights: 18 MB of them stay where they are."""
    big = tiny_gguf.write_llama(tmp_path / "big.gguf", d=256, layers=8, n_head=4, ffn=1024, dtype="F32")
    small = tiny_gguf.write_llama(tmp_path / "draft.gguf", layers=1)
    local.add("acme/Big-GGUF", {"Big-Q8_0.gguf": big.read_bytes()})
    local.add("acme/Small-GGUF", {"Small-Q8_0.gguf": small.read_bytes()})
    ours = functools.partial(Hub, endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)
    monkeypatch.setattr("edgespec_models.hub.hub.Hub", ours)
    assert cli.main(["plan", "acme/Big-GGUF", "--draft", "acme/Small-GGUF", "--json"]) == 0
    (pair,) = told(capsys)["pairs"]
    assert pair["plain_tok_per_s"] > 0 and pair["fits"] is True
    assert local.served["Big-Q8_0.gguf"] < big.stat().st_size / 4
    assert not list((tmp_path / "hub").rglob("*.gguf")), "nothing was downloaded"


@pytest.mark.usefixtures("told_rates")
def test_before_a_download_it_is_said_whether_a_pair_fits_and_how_fast_it_is(small: Path) -> None:
    head = read_file(small)
    _, (memory, speed) = before_pull.expectation("some/pair", [[head], [head]])
    assert memory.startswith("memory  it takes ") and "with a context of 512 tokens" in memory
    assert speed == "speed   `edgespec plan some/pair` says how fast it would run here"
    pair_plan.plan_pair([head], [head], fit=fit_of_heads([head], [head]))
    _, (memory, speed) = before_pull.expectation("some/pair", [[head], [head]])
    assert speed.startswith("speed   about ") and "measured here by `edgespec plan`" in speed
    eyes = Need({RAM: Parts(weights=1 << 50)}, 0, "formula")
    fit, (memory, _) = before_pull.expectation("some/pair", [[head]], projector=eyes)
    assert fit and not fit.fits, "with a projector that takes all there is"


@pytest.mark.usefixtures("told_rates")
def test_what_was_said_of_a_pair_is_known_by_its_name(
    small: Path, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """The list of pairs in the chat has no heads to ask with, only names."""
    assert planned.planned("small") is None
    assert cli.main(["plan", "--target", str(small), "--draft", str(small), "--json"]) == 0
    (pair,) = told(capsys)["pairs"]
    known = planned.planned("small")
    assert known and known.plain_tok_per_s == pair["plain_tok_per_s"] and known.assumed
    assert known.tok_per_s == pair["speeds"][0]["tok_per_s"] and (known.gain or 0) >= 1
    assert "60% of guesses accepted (assumed)" in known.sentence()
    planned._path().write_text('{"small": {"nonsense": 1}, "other": 3}')
    assert planned.planned("small") is None and planned.planned("other") is None
    planned._path().write_text("[")
    planned.keep("x", planned.PlannedSpeed(2.0, None, None, False))
    assert planned.planned("x") == planned.PlannedSpeed(2.0, None, None, False)


def test_the_list_of_pairs_in_the_chat_shows_what_was_planned(tmp_path: Path, home: Path) -> None:
    name = catalogue.catalogue()[0].name
    planned.keep(name, planned.PlannedSpeed(10.0, 14.0, 0.6, True))
    pair = next(pair for pair in Shelf(Store(tmp_path)).pairs() if pair.name == name)
    assert pair.gain == "1.40x planned" and "14.0 with 60% of guesses accepted" in pair.detail[0]


def test_what_is_known_of_a_pair_is_reckoned_with() -> None:
    known = next(entry for entry in catalogue.catalogue() if entry.acceptance is not None)
    assert heads.acceptance_of(known.name) == (known.acceptance, False)
    assert 0 < (known.acceptance or 0) < 1 and "accepted" in known.gain_from
    assert heads.acceptance_of("no/such") == (heads.ACCEPTED["chat"], True)


def test_the_embedded_pair_is_known_by_its_name() -> None:
    pair = heads.named_pair("embedded", None)
    assert pair.target[0].name == str(tiny.target_path()) and pair.draft and not pair.assumed


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["qwen9"], 1, "the catalogue has no pair 'qwen9'"),
        (["--acceptance", "2", "embedded"], 2, "--acceptance is 2.0: it must be from 0 to 1"),
        (["embedded", "--target", "x.gguf"], 2, "leave out one of them"),
        (["--draft", "x"], 2, "--draft works with one pair"),
        (["--target", "absent.gguf"], 1, "there is no file absent.gguf"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) == code
    shown = capsys.readouterr()
    assert sentence in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_without_a_network_the_catalogue_is_given_up_in_one_sentence(
    local: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its pairs was tried, and each failed in the same words."""
    ours = functools.partial(Hub, endpoint=local.endpoint, token=False, cache=tmp_path, offline=False)
    monkeypatch.setattr("edgespec_models.hub.hub.Hub", ours)
    assert cli.main(["plan"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert len({path for _, _, path in local.requests}) <= 2


def test_ctrl_c_ends_it_and_leaves_no_files(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = rates.JsonChild.ask

    def interrupted(child: rates.JsonChild, asked: dict[str, Any]) -> dict[str, Any]:
        if "budget" not in asked:  # what memory it takes
            return ask(child, asked)
        assert list(tmp_path.rglob("random.gguf")), "it is there while it is evaluated"
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(rates.JsonChild, "ask", interrupted)
    assert cli.main(["plan", "--target", str(small), "--again"]) == 130
    assert capsys.readouterr().err == "edgespec: stopped\n"
    assert not list(tmp_path.rglob("*.gguf"))


@pytest.mark.slow
def test_plans_are_near_what_whole_models_cost(tmp_path: Path) -> None:
    """Within a factor of two even on a busy machine; tests/benchmarks/plan_error.py measures how near."""
    path = tiny_gguf.write_llama(
        tmp_path / "whole.gguf", n_vocab=4096, d=768, layers=16, n_head=8, ffn=3072, dtype="F16"
    )
    planned = model_cost.model_cost([read_file(path)], Places(Rates(PairSettings())))
    asked = {
        "path": str(path),
        "n_gpu_layers": -1,
        "threads": None,
        "kv_type": "f16",
        "rpc": (),
        "budget": 3.0,
    }
    whole = measuring.seconds({**asked, "tensor_split": (), "rules": ()})
    for n in (1, 4, 16):
        assert 0.5 < planned.seconds[n] / whole[n] < 2
