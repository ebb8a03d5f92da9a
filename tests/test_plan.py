"""Plans: what a model reads is counted, how fast this machine reads is measured, the arithmetic is exact."""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from commands import posix
from full_disk import no_room
from local_hub import LocalHub

from edgespec.commands import cli
from edgespec.commands.plan import bandwidth, command, heads, pair_plan
from edgespec.commands.plan.bandwidth import SIZES, seconds_a_byte
from edgespec.commands.plan.pair_plan import Seconds, cost, plan_pair
from edgespec.commands.pull.words import speed_line
from edgespec.errors import PlanError
from edgespec.memory import header_fit
from edgespec.memory.header_fit import write_stub
from edgespec.memory.recommended import acceptance_of
from edgespec.pairs import planned
from edgespec.pairs.settings import PairSettings
from edgespec_models import tiny
from edgespec_models.fit.allotment import ALL, Allotment
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM, Device, Need, Parts
from edgespec_models.gguf.header import Header, Tensor, read_file
from edgespec_models.gguf.reading import Matrix, matrices_of
from edgespec_models.hub.choose_file import Chosen
from edgespec_models.hub.hub import HubFile
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


# --- what a model reads


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_of_any_architecture_all_matrices_are_read(kind: str, tmp_path: Path) -> None:
    header = read_file(ARCHITECTURES[kind](tmp_path / "whole.gguf"))
    names = {tensor.name for tensor in header.tensors}
    unread = {"token_embd.weight"} if "output.weight" in names else set()
    wanted = [t for t in header.tensors if len(t.shape) > 1 and t.name not in unread]
    assert sum(matrix.size for matrix in matrices_of([header])) == sum(t.n_bytes or 0 for t in wanted)


def test_blocks_that_only_guess_are_not_read(tmp_path: Path) -> None:
    """That is what plain decoding costs."""
    read = [
        sum(matrix.size for matrix in matrices_of([read_file(path)]))
        for path in (tiny.mtp_path(), tiny.target_path())
    ]
    assert read[0] == pytest.approx(read[1], rel=0.01)


CARDS, EVEN = PairSettings(n_gpu_layers=ALL), {n: float(n) for n in SIZES}  # n rows of a byte: n seconds


def test_costs_are_those_of_bytes_and_rows() -> None:
    found = cost([Matrix(8, 10), Matrix(8, 5)], None, CARDS, lambda *_: EVEN)
    assert (found[1], found[2], found[16]) == (15.0, 30.0, 240.0)


def test_of_experts_those_count_that_some_token_needs() -> None:
    """One token of two in eight reads a quarter; sixteen nearly all, and each for a quarter of the rows."""
    experts = [Matrix(8, 80, experts=8, used=2)]
    found = cost(experts, None, CARDS, lambda *_: EVEN)
    assert found[1] == pytest.approx(20)
    assert found[16] == pytest.approx(16 * 20), "as much work in all: here a byte costs what its rows do"
    flat = cost(experts, None, CARDS, lambda *_: dict.fromkeys(SIZES, 1.0))
    assert flat[16] == pytest.approx(80 * (1 - 0.75**16))


@pytest.mark.parametrize(
    ("weights", "seconds"),
    [
        ({RAM: 40}, 350),
        ({"CUDA0": 40}, 35),
        ({RAM: 10, "CUDA0": 30}, 80),
        ({RAM: 30, "CUDA0": 30}, 80),  # 20 of them are never read
        ({RAM: 20, "CUDA0": 20}, 170),
    ],
)
def test_what_lies_in_main_memory_costs_what_it_does_there(weights: dict[str, int], seconds: float) -> None:
    """There a byte costs tenfold, and experts are the first to lie there."""

    def rate(_: str, settings: PairSettings) -> Seconds:
        return dict.fromkeys(SIZES, 1.0 if settings.n_gpu_layers else 10.0)

    matrices = [Matrix(8, 10), Matrix(8, 10), Matrix(8, 10, experts=2, used=1), Matrix(8, 10)]
    need = Need({name: Parts(weights=size) for name, size in weights.items()}, 1)
    assert cost(matrices, need, CARDS, rate)[1] == seconds


@pytest.mark.parametrize(
    ("type_", "dtype"), [(1, "F16"), (30, "F16"), (8, "Q8_0"), (14, "Q8_0"), (12, "Q4_0")]
)
def test_a_format_is_measured_as_the_one_of_its_size(type_: int, dtype: str) -> None:
    asked: list[str] = []

    def rate(name: str, _: PairSettings) -> Seconds:
        asked.append(name)
        return EVEN

    cost([Matrix(type_, 990), Matrix(0, 10)], None, CARDS, rate)
    assert set(asked) == {dtype}


def on_a_card(
    n_gpu_layers: int = ALL, cpu_moe: tuple[int, ...] | None = None, fits: bool = True, n_ctx: int = 4096
) -> Fit:
    """Returns how a pair of ours would lie on a machine with a card."""
    need = Need({RAM: Parts(weights=GIB), "CUDA0": Parts(weights=GIB)}, 7)
    chosen = Allotment(n_ctx, n_gpu_layers, ALL, {"target": need, "draft": need}, cpu_moe)
    return Fit(fits, chosen, (Device(RAM, GIB, GIB), Device("CUDA0", GIB, GIB)))


def test_speeds_are_those_of_where_a_model_lies(tmp_path: Path) -> None:
    mixture = tiny_gguf.write_experts(tmp_path / "mixture.gguf", layers=6)
    head = [read_file(mixture)]
    size = sum(matrix.size for matrix in matrices_of(head))

    def measured(_: str, settings: PairSettings) -> Seconds:
        return dict.fromkeys(SIZES, 1e-6 if settings.n_gpu_layers == 0 else 1e-8)

    def speed(share: float) -> float:
        parts = {RAM: Parts(weights=int(share * size)), "CUDA0": Parts(weights=size - int(share * size))}
        lies = Fit(True, Allotment(4096, ALL, ALL, {"target": Need(parts, 7)}, None), ())
        return plan_pair(head, None, PairSettings(), lies, bandwidth=measured).plain_tok_per_s

    speeds = [speed(share) for share in (0, 0.2, 0.6, 0.99)]
    assert speeds == sorted(speeds, reverse=True) and len(set(speeds)) == 4


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        (on_a_card(), 2), (on_a_card(cpu_moe=(1,)), 2), (on_a_card(5), 1), (on_a_card(fits=False), 0),
        (on_a_card(n_ctx=256), 1), (None, 2),
    ],
)  # fmt: skip
def test_a_quantisation_suits_if_only_experts_lie_in_main_memory(fit: Fit | None, expected: int) -> None:
    assert header_fit.grade(fit, n_ctx_train=512) == expected


def test_a_quantisation_does_not_suit_next_to_a_projector_that_leaves_no_room(small: Path) -> None:
    """What a projector takes was not counted, so that one was chosen which did not fit with it."""
    for size, grade in ((2**20, 2), (2**50, 0)):
        projector = Chosen((HubFile("a/b", "c", "mmproj.gguf", size, None),), "")
        assert header_fit.suitable([[read_file(small)]], projector) == grade


# --- from costs to speeds


def fake_cost(one: float, each: float) -> Seconds:
    return {n: one + each * (n - 1) for n in SIZES}


@pytest.mark.parametrize(("acceptance", "each"), [*itertools.product((0.2, 0.6, 0.9), (0.002, 0.02, 0.08))])
def test_the_speed_is_that_of_the_best_number_of_guesses(acceptance: float, each: float) -> None:
    target, draft = fake_cost(0.1, each), fake_cost(0.005, 0.001)

    def speed(k: int) -> float:
        tokens = sum(acceptance**i for i in range(k + 1))
        verifying = 0.1 + each * k + pair_plan.ROUND_S
        return tokens / (verifying + k * 0.005)

    found = pair_plan.speed(target, draft, acceptance, None)
    best = max(range(16), key=speed)
    assert found.tok_per_s == pytest.approx(speed(best)) and found.draft_length == best
    assert found.tok_per_s >= speed(0)


# --- measuring


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write_llama(tmp_path_factory.mktemp("plan") / "small.gguf", layers=2)


def plan(*words: str | Path) -> int:
    """Does what the command does, with what evaluations would take: to time them is another test's."""
    parser = argparse.ArgumentParser()
    command.add(parser)
    rates = {n: 1e-8 * (1 + 0.1 * n) for n in SIZES}
    return command.run(parser.parse_args([*map(str, words)]), bandwidth=lambda *_: rates)


def test_the_bandwidth_of_this_machine_is_measured() -> None:
    small = replace(bandwidth.LAYER, d=64, n_head=8, ffn=256)
    found = seconds_a_byte("Q8_0", PairSettings(threads=1), small)
    assert tuple(found) == SIZES
    assert 1e-12 < found[1] <= found[16] < 1e-5


def test_an_installed_pair_whose_files_are_gone_or_damaged_is_reported(
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
    assert "pair mine lacks mine.gguf" in capsys.readouterr().err


def test_a_place_that_is_not_here_is_one_sentence(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was planned as if nothing had been said."""
    assert cli.main(["plan", "--target", str(small), "-ot", "ffn=NOWHERE"]) == 1
    shown = capsys.readouterr().err
    assert "NOWHERE" in shown and shown.count("\n") == 1


def test_what_cannot_be_loaded_is_one_sentence() -> None:
    with pytest.raises(PlanError, match="^nothing can be planned here: .*127.0.0.1:9") as refused:
        seconds_a_byte("Q8_0", PairSettings(rpc=("127.0.0.1:9",)), replace(bandwidth.LAYER, d=64, ffn=256))
    assert "\n" not in str(refused.value)


@posix
def test_a_full_disk_is_one_sentence() -> None:
    with no_room(1 << 20), pytest.raises(PlanError, match="nothing can be planned here: .*too large"):
        seconds_a_byte("Q8_0", PairSettings())


def test_a_format_that_is_not_known_is_one_sentence(small: Path) -> None:
    head = read_file(small)
    odd = Header(head.name, head.metadata, (*head.tensors, Tensor("odd", (4, 4), 99, 0, None)), head.raw, 1)
    with pytest.raises(PlanError, match="number format 99"):
        plan_pair([odd], None, PairSettings(), bandwidth=lambda *_: EVEN)


def test_a_stub_is_as_long_as_the_model_and_takes_no_room(small: Path, tmp_path: Path) -> None:
    head = read_file(small)
    stub = write_stub(tmp_path, "target", [head])
    assert stub.stat().st_size == small.stat().st_size
    assert read_file(stub).tensors == head.tensors
    parts = write_stub(tmp_path, "part", [head, head])
    assert parts.name == "part-00001-of-00002.gguf" and len(list(tmp_path.glob("part-*"))) == 2


# --- the command


def printed_plan(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_pair_of_this_machine_is_planned(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--target", small, "--draft", small, "--json") == 0
    (pair,) = printed_plan(capsys)["pairs"]
    assert pair["name"] == "small" and pair["fits"] and pair["plain_tok_per_s"] > 0
    assert [speed["acceptance"] for speed in pair["speeds"]] == [0.6, 0.4, 0.6, 0.8]
    assert pair["acceptance_assumed"] and pair["memory"] > small.stat().st_size
    assert pair["attention"].startswith("flash attention: o")
    assert plan("--target", small, "--draft", small, "--acceptance", "0.9") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "90%" in shown and "assumed" not in shown and "tok/s" in shown
    assert "off by 15% on average" in shown and "small: flash attention: o" in shown


@pytest.fixture
def local() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        yield hub


def test_of_a_pair_on_the_hub_only_the_heads_are_fetched(
    local: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures need no weights: 18 MB of them stay where they are."""
    big = tiny_gguf.write_llama(tmp_path / "big.gguf", d=256, layers=8, n_head=4, ffn=1024, dtype="F32")
    small = tiny_gguf.write_llama(tmp_path / "draft.gguf", layers=1)
    local.add("acme/Big-GGUF", {"Big-Q8_0.gguf": big.read_bytes()})
    local.add("acme/Small-GGUF", {"Small-Q8_0.gguf": small.read_bytes()})
    monkeypatch.setenv("HF_ENDPOINT", local.endpoint)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert plan("acme/Big-GGUF", "--draft", "acme/Small-GGUF", "--json") == 0
    (pair,) = printed_plan(capsys)["pairs"]
    assert pair["plain_tok_per_s"] > 0 and pair["fits"] is True
    assert local.served["Big-Q8_0.gguf"] < big.stat().st_size / 4
    assert not list((tmp_path / "hub").rglob("*.gguf")), "nothing was downloaded"


def test_before_a_download_it_is_stated_how_fast_a_pair_is(home: Path) -> None:
    assert speed_line("some/pair", None).endswith("`edgespec plan some/pair` says how fast it would run here")
    planned.keep("some/pair", planned.PlannedSpeed(10.0, 14.0, 0.6, True))
    assert speed_line("some/pair", None).startswith("speed   planned here: 10.0 tok/s plain, 14.0 with 60%")
    assert "`edgespec plan some/pair --draft a/b`" in speed_line("some/pair", "a/b")


def test_what_was_stated_of_a_pair_is_known_by_its_name(
    small: Path, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """The list of pairs in the chat has no heads to ask with, only names."""
    assert planned.planned("small") is None
    assert plan("--target", small, "--draft", small, "--json") == 0
    (pair,) = printed_plan(capsys)["pairs"]
    known = planned.planned("small")
    assert known and known.plain_tok_per_s == pair["plain_tok_per_s"] and known.assumed
    assert known.tok_per_s == pair["speeds"][0]["tok_per_s"] and (known.gain or 0) >= 1
    assert "60% of guesses accepted (assumed)" in known.sentence()
    odd = {"plain_tok_per_s": 2.0, "tok_per_s": 3.0, "acceptance": "60%", "assumed": True}
    planned.kept_in().write_text(json.dumps({"small": {"nonsense": 1}, "other": 3, "odd": odd}))
    assert not any(map(planned.planned, ("small", "other", "odd")))
    planned.kept_in().write_text("[")
    planned.keep("x", planned.PlannedSpeed(2.0, None, None, False))
    assert planned.planned("x") == planned.PlannedSpeed(2.0, None, None, False)


def test_the_list_of_pairs_in_the_chat_shows_what_was_planned(tmp_path: Path, home: Path) -> None:
    name = catalogue.catalogue()[0].name
    planned.keep(name, planned.PlannedSpeed(10.0, 14.0, 0.6, True))
    pair = next(pair for pair in Shelf(Store(tmp_path)).pairs() if pair.name == name)
    assert pair.gain == "1.40x planned" and "14.0 with 60% of guesses accepted" in pair.detail[0]


def test_what_is_known_of_a_pair_is_reckoned_with() -> None:
    known = next(entry for entry in catalogue.catalogue() if entry.acceptance is not None)
    assert acceptance_of(known.name) == (known.acceptance, False)
    assert 0 < (known.acceptance or 0) < 1 and "accepted" in known.gain_from
    assert acceptance_of("no/such") == (0.6, True)


def test_the_embedded_pair_is_known_by_its_name() -> None:
    pair = heads.named_pair("embedded", None, PairSettings())
    assert pair.target[0].name == str(tiny.target_path()) and pair.draft and not pair.acceptance[1]


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
    monkeypatch.setenv("HF_ENDPOINT", local.endpoint)
    assert cli.main(["plan"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert len({path for _, _, path in local.requests}) <= 2


def test_ctrl_c_ends_it_and_leaves_no_files(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = bandwidth.JsonChild.ask

    def interrupted(child: bandwidth.JsonChild, asked: dict[str, Any]) -> dict[str, Any]:
        if "settings" not in asked:  # about memory
            return ask(child, asked)
        assert list(tmp_path.rglob("grown.gguf")), "it is there while it is evaluated"
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(bandwidth.JsonChild, "ask", interrupted)
    monkeypatch.setattr(bandwidth, "LAYERS", {"F16": 2})
    assert cli.main(["plan", "--target", str(small)]) == 130
    assert capsys.readouterr().err.endswith("edgespec: stopped\n")
    assert not list(tmp_path.rglob("*.gguf"))
