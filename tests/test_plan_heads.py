"""Plans of pairs with a head: a guess's cost is measured on random weights, for every kind of head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_heads
import tiny_gguf
import tiny_heads
from test_heads import Files

from edgespec.commands import cli
from edgespec.commands.plan import head_cost, measuring, model_cost, pair_plan
from edgespec.commands.plan.head_cost import depth, guessing_head
from edgespec.commands.plan.model_cost import ModelCost
from edgespec.pairs.check import find_head, headers_of
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.slice import layers_of, write_head, write_slice


def deep(folder: Path) -> Files:
    """A head that reads layers which a slice does not have."""
    target = tiny_gguf.write_llama(folder / "llama.gguf", layers=12)
    return target, tiny_heads.write_eagle(folder / "eagle.gguf", layers=(2, 6, 11))


@pytest.mark.parametrize("write", [*test_heads.FILES, deep])
def test_a_guess_of_every_kind_of_head_is_timed(tmp_path: Path, write: Callable[[Path], Files]) -> None:
    """Neither the weights of the target nor those of the head are there."""
    target, draft = write(tmp_path)
    model, beside = layers_of(headers_of(target)), headers_of(draft) if draft else None
    n = depth(model)
    path, head = tmp_path / "slice.gguf", tmp_path / "head.gguf"
    write_slice(path, model, n, blocks=draft is None)
    if beside:
        write_head(head, beside, n)
    asked: dict[str, Any] = {"path": str(path), "head": str(head) if draft else None, "budget": 0.0}
    found = measuring.answer({**asked, "n_gpu_layers": 0, "threads": 1, "kv_type": "f16"})
    assert "error" not in found
    assert all(seconds > 0 for seconds in found["seconds"].values())
    whole, sliced = guessing_head(headers_of(target), beside), find_head(path, head if draft else None)
    assert whole and sliced
    assert (whole.kind, whole.n_blocks, whole.longest) == (sliced.kind, sliced.n_blocks, sliced.longest)
    assert layers_of(headers_of(path)).layers


def test_a_slice_without_its_blocks_has_no_head(tmp_path: Path) -> None:
    """That is what plain decoding is measured on."""
    model = layers_of(headers_of(tiny_heads.write_mtp(tmp_path / "m.gguf", blocks=2)))
    write_slice(tmp_path / "s.gguf", model, 1)
    assert find_head(tmp_path / "s.gguf", None) is None


def test_plan_says_how_fast_a_head_makes_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(model_cost, "BUDGET_S", 0.05)
    for module in (model_cost, head_cost):  # on a quiet machine
        monkeypatch.setattr(module, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))
    target = tiny_heads.write_mtp(tmp_path / "m.gguf")
    assert cli.main(["plan", "--target", str(target), "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["draft"]["seconds"]["1"] > 0
    assert len(pair["speeds"]) == 4
    assert pair["memory"] > 0
    monkeypatch.setattr(model_cost, "evaluated", None)  # measuring again fails
    monkeypatch.setattr(head_cost, "evaluated", None)
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
