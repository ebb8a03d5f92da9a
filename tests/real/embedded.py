"""The shipped pair, and the prompts that it was not trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgespec.commands.verify import equality
from edgespec.pairs.settings import PairSettings

BYTE_IDENTICAL = PairSettings(threads=1, flash_attention=True)  # where the machine has it: it is probed
ELSEWHERE = PairSettings(threads=1, flash_attention=False)  # batches take other kernels than single tokens

EXCUSED_AT_MOST = 0.05  # of the texts
LOGITS_DIFFER_AT_MOST = 0.25


def complaint(differences: Sequence[equality.Difference | None], *, identical: bool) -> str | None:
    """Says what is wrong with the differences of many texts, and whether too many differ; None if nothing."""
    if wrong := equality.complaint(
        differences, identical=identical, logits_differ_at_most=LOGITS_DIFFER_AT_MOST
    ):
        return wrong
    n, found = len(differences), [found for found in differences if found]
    if len(found) <= EXCUSED_AT_MOST * n:
        return None
    return f"{len(found)} of {n} texts differ by rounding, more than {EXCUSED_AT_MOST:.0%}: {found[:3]}"


def pair_files() -> tuple[Path, Path]:
    """Returns (target, draft); skips the test where they are absent."""
    tiny = pytest.importorskip("edgespec_models.tiny")
    files = Path(tiny.target_path()), Path(tiny.draft_path())
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        pytest.skip(f"the embedded pair is not in this checkout: no {' and no '.join(missing)}")
    return files


@cache
def _prompts() -> tuple[dict[str, Any], ...]:
    from edgespec_models import tiny

    lines = Path(tiny.held_out_prompts_path()).read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines)


def held_out_prompts(n: int) -> list[dict[str, Any]]:
    """Returns n prompts ("kind", "prompt", often "messages"), spread evenly over file and kinds."""
    everything = _prompts()
    assert len(everything) >= n
    return [everything[i * len(everything) // n] for i in range(n)]
