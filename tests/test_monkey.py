"""Whatever is pressed, pasted, resized or sent as bytes: the app goes on, and what was said is saved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from monkey import play


@pytest.mark.parametrize(
    ("seed", "n_keys"),
    [(1, 120), *(pytest.param(seed, 4000, marks=pytest.mark.slow) for seed in range(2, 7))],
)
def test_a_monkey_cannot_end_the_app(
    seed: int, n_keys: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6,000 random keys ended it 15 times: screens were closed twice, or paged before they were drawn."""
    monkeypatch.chdir(tmp_path)
    asyncio.run(play(tmp_path, seed, n_keys))
