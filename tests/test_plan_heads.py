"""Plans of pairs with a head: a guess costs what it reads, for every kind of head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_heads
import tiny_heads
from test_heads import Files

from edgespec.commands import cli
from edgespec.commands.plan import head_cost, model_cost, pair_plan
from edgespec.commands.plan.head_cost import guessing_head
from edgespec.commands.plan.model_cost import ModelCost
from edgespec.engine.pair import Pair
from edgespec.pairs.check import find_head, headers_of
from edgespec.pairs.settings import PairSettings
from edgespec_models import tiny
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.slice import layers_of, write_slice


@pytest.mark.parametrize("write", test_heads.FILES)
def test_a_guess_of_every_kind_of_head_costs_what_it_reads(
    tmp_path: Path, write: Callable[[Path], Files]
) -> None:
    """A part of the target's cost: a layer or two, and the rows that make logits."""
    target, draft = write(tmp_path)
    headers, beside = headers_of(target), headers_of(draft) if draft else None
    head = guessing_head(headers, beside)
    assert head
    cost = ModelCost(dict.fromkeys((1, 2, 4, 8, 16), 1.0), 1, 1)
    found = head_cost.head_cost(headers, beside, head, cost)
    model = layers_of(headers)
    assert model.output / (model.read(model.layers) + model.output) * 0.2 < found.seconds[1] < 1.5


def test_a_head_that_reads_a_block_at_once_costs_what_its_rows_do() -> None:
    """The same bytes, but more rows of them."""
    costs = ModelCost({1: 1.0, 4: 2.0, 8: 4.0}, 1, 1)
    file = [read_file(tiny.mtp_path())]
    one, all_ = (
        head_cost.head_cost(file, None, Head("dflash", 1, alone=True, block=block), costs) for block in (0, 7)
    )
    assert all_.seconds[1] == 2 * one.seconds[1]


def test_an_mtp_block_of_the_embedded_target_is_estimated_as_it_is_measured() -> None:
    """Its layer is one of eleven, and its output rows are the target's: within a factor of two."""
    with Pair(tiny.mtp_path(), settings=PairSettings(remember=False, threads=1)) as pair:
        measured = pair.costs()
    one = measured.target.seconds(1)
    file = [read_file(tiny.mtp_path())]
    head = guessing_head(file, None)
    assert head
    found = head_cost.head_cost(file, None, head, ModelCost({1: one}, 1, 1)).seconds[1]
    assert 0.5 < found / measured.draft.seconds(1) < 2


def test_a_slice_without_its_blocks_has_no_head(tmp_path: Path) -> None:
    """That is what plain decoding is measured on."""
    model = layers_of(headers_of(tiny_heads.write_mtp(tmp_path / "m.gguf", blocks=2)))
    write_slice(tmp_path / "s.gguf", model, 1)
    assert find_head(tmp_path / "s.gguf", None) is None


def test_plan_says_how_fast_a_head_makes_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(model_cost, "BUDGET_S", 0.05)
    monkeypatch.setattr(model_cost, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))  # a quiet machine
    target = tiny_heads.write_mtp(tmp_path / "m.gguf")
    assert cli.main(["plan", "--target", str(target), "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["draft"]["seconds"]["1"] > 0
    assert len(pair["speeds"]) == 4
    assert pair["memory"] > 0
    monkeypatch.setattr(model_cost, "evaluated", None)  # measuring again fails
    assert cli.main(["plan", "--target", str(target)]) == 0
    assert "no draft" not in capsys.readouterr().out


def speed(kind: Any, longest: int, guess: float, accepted: float = 0.9) -> pair_plan.SpeedAtAcceptance:
    """Plans a target that reads 16 tokens as fast as one."""
    target = ModelCost(dict.fromkeys((1, 2, 4, 8, 16), 1.0), 1, 1)
    head = Head(kind, 1, alone=True, longest=longest)
    (found,) = pair_plan._plan(target, ModelCost({1: guess}, 1, 1), [accepted], head).speeds
    return found


def test_a_head_that_guesses_all_at_once_pays_once_and_no_head_guesses_further_than_it_can() -> None:
    one_by_one, at_once = speed("eagle3", 0, 0.3), speed("dflash", 7, 0.3)
    assert at_once.draft_length == 7
    assert at_once.tok_per_s == pytest.approx(sum(0.9**k for k in range(8)) / 1.3, rel=0.01)
    assert one_by_one.tok_per_s < at_once.tok_per_s
    assert speed("mtp", 2, 0.01).draft_length == 2
    assert speed("mtp", 0, 0.01).draft_length > 7
    assert speed("mtp", 3, 5.0).draft_length == 0
