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
from commands import in_process
from test_heads import Files

from edgespec.commands import cli
from edgespec.commands.plan import model_cost, pair_plan, rates
from edgespec.commands.plan.model_cost import ModelCost, Places, guessing_head, head_cost
from edgespec.commands.plan.rates import Rate
from edgespec.pairs.check import headers_of
from edgespec_models import tiny
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.heads import Head

pytestmark = pytest.mark.usefixtures("one_oracle")


def flat(**seconds: float) -> Any:
    """Returns rates at which a byte costs a second, whatever it is, or so many for 4 and 8 rows."""
    rate = Rate({1: 1.0, 4: seconds.get("four", 1.0), 8: seconds.get("eight", 1.0)})
    layer = Rate(dict.fromkeys((1, 4, 8), 0.0))
    return Places(SimpleNamespace(layer=lambda: layer, byte=lambda type_, width, mixed: rate))  # type: ignore[arg-type]


@pytest.mark.parametrize("write", test_heads.FILES)
def test_a_guess_of_every_kind_of_head_costs_what_it_reads(
    tmp_path: Path, write: Callable[[Path], Files]
) -> None:
    """A layer or two, and the rows that make logits."""
    target, draft = write(tmp_path)
    headers, beside = headers_of(target), headers_of(draft) if draft else None
    head = guessing_head(headers, beside)
    assert head
    found = head_cost(headers, beside, head, flat()).seconds[1]
    names = ("output.weight", "token_embd.weight")
    rows = [t.n_bytes or 0 for header in headers for t in header.tensors if t.name in names]
    whole = model_cost.model_cost(headers, flat()).seconds[1]
    assert 0.2 * min(rows) < found < 2 * whole


def test_a_head_that_reads_a_block_at_once_costs_what_its_rows_do() -> None:
    file = [read_file(tiny.mtp_path())]
    one, all_ = (
        head_cost(file, None, Head("dflash", 1, alone=True, block=block), flat(four=3.0, eight=9.0))
        for block in (0, 7)
    )
    assert all_.seconds[1] == pytest.approx(3 * one.seconds[1])


def test_plan_says_how_fast_a_head_makes_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(rates, "BUDGET_S", 0.05)
    monkeypatch.setattr(rates, "WIDTHS", (256,))
    monkeypatch.setattr(rates, "LARGE", 1 << 20)
    monkeypatch.setattr(rates, "Others", lambda: SimpleNamespace(cores=lambda: 0.0))  # a quiet machine
    target = tiny_heads.write_mtp(tmp_path / "m.gguf")
    assert cli.main(["plan", "--target", str(target), "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["draft"]["seconds"]["1"] > 0
    assert len(pair["speeds"]) == 4
    assert pair["memory"] > 0
    monkeypatch.setattr(rates.Rates, "_evaluated", None)  # measuring again fails
    assert cli.main(["plan", "--target", str(target)]) == 0
    assert "no draft" not in capsys.readouterr().out


def speed(kind: Any, longest: int, guess: float, accepted: float = 0.9) -> pair_plan.SpeedAtAcceptance:
    """Plans a target that reads 16 tokens as fast as one."""
    target = ModelCost(dict.fromkeys((1, 2, 4, 8, 16), 1.0))
    head = Head(kind, 1, alone=True, longest=longest)
    (found,) = pair_plan._plan(target, ModelCost({1: guess}), [accepted], head).speeds
    return found


def test_a_head_that_guesses_all_at_once_pays_once_and_no_head_guesses_further_than_it_can() -> None:
    one_by_one, at_once = speed("eagle3", 0, 0.3), speed("dflash", 7, 0.3)
    assert at_once.draft_length == 7
    assert at_once.tok_per_s == pytest.approx(sum(0.9**k for k in range(8)) / 1.3, rel=0.01)
    assert one_by_one.tok_per_s < at_once.tok_per_s
    assert speed("mtp", 2, 0.01).draft_length == 2
    assert speed("mtp", 0, 0.01).draft_length > 7
    assert speed("mtp", 3, 5.0).draft_length == 0


def test_without_a_hub_one_reason_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of the catalogue tried for itself: 63 s and 57 lines, 23 of them alike."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, out, err = in_process("plan", "--json")
    [only] = json.loads(out)["pairs"]
    assert code == 1 and "cannot be reached" in only["error"]
    assert "on the hub:" in err and err.endswith(" more\n")
    code, out, err = in_process("plan")
    assert code == 1 and not out and err.count("cannot be reached") == 1
