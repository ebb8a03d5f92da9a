"""Plans of pairs with a head: a guess costs what it reads, for every kind of head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_heads
import tiny_heads
from commands import in_process
from test_heads import Files
from test_plan import plan

from edgespec.commands.plan import pair_plan
from edgespec.commands.plan.bandwidth import SIZES
from edgespec.commands.plan.pair_plan import plan_pair
from edgespec.pairs.check import headers_of
from edgespec.pairs.settings import PairSettings
from edgespec_models.gguf.heads import Head

pytestmark = pytest.mark.usefixtures("one_oracle")


@pytest.mark.parametrize("write", test_heads.FILES)
def test_a_guess_of_every_kind_of_head_costs_what_it_reads(
    tmp_path: Path, write: Callable[[Path], Files]
) -> None:
    """A layer or two, and the rows that make logits."""
    target, draft = write(tmp_path)
    headers, beside = headers_of(target), headers_of(draft) if draft else None
    flat = plan_pair(headers, beside, PairSettings(), bandwidth=lambda *_: dict.fromkeys(SIZES, 1.0))
    names = ("output.weight", "token_embd.weight")
    rows = [t.n_bytes or 0 for header in headers for t in header.tensors if t.name in names]
    assert flat.draft
    assert 0.2 * min(rows) < flat.draft[1] < 2 * flat.target[1]


def test_plan_says_how_fast_a_head_makes_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tiny_heads.write_mtp(tmp_path / "m.gguf")
    assert plan("--target", target, "--json") == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["draft"]["1"] > 0
    assert len(pair["speeds"]) == 4
    assert pair["memory"] > 0
    assert plan("--target", target) == 0
    assert "no draft" not in capsys.readouterr().out


def speed(kind: Any, longest: int, guess: float, accepted: float = 0.9) -> pair_plan.SpeedAtAcceptance:
    """Plans a target that reads 16 tokens as fast as one."""
    head = Head(kind, 1, alone=True, longest=longest)
    return pair_plan.speed(dict.fromkeys(SIZES, 1.0), {1: guess}, accepted, head)


def test_a_head_that_guesses_all_at_once_pays_once_and_no_head_guesses_further_than_it_can() -> None:
    one_by_one, at_once = speed("eagle3", 0, 0.3), speed("dflash", 7, 0.3)
    assert at_once.draft_length == 7
    assert at_once.tok_per_s == pytest.approx(sum(0.9**k for k in range(8)) / 1.3, rel=0.01)
    assert one_by_one.tok_per_s < at_once.tok_per_s
    assert speed("mtp", 2, 0.01).draft_length == 2
    assert speed("mtp", 0, 0.01).draft_length > 7
    assert speed("mtp", 3, 5.0).draft_length == 0


def test_without_a_hub_two_pairs_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of the catalogue tried for itself: 63 s and 57 lines, 23 of them alike."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, out, err = in_process("plan", "--json")
    tried = json.loads(out)["pairs"]
    assert code == 1 and len(tried) == 2 and all("cannot be reached" in pair["error"] for pair in tried)
    assert "the last two could not be:" in err and err.endswith(" more\n")
    code, out, err = in_process("plan")
    assert code == 1 and not out and err.count("cannot be reached") == 1
