"""Evaluations that are filled up whatever they cost, for tests in which nobody may notice it."""

from __future__ import annotations

import pytest

from edgespec.core.pace.batch_plan import BatchPlan

ROWS = 3


def fill_always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has rows added to each evaluation that has room for them. Returns the numbers of rows, as they come."""
    added: list[int] = []

    def filling(self: BatchPlan) -> int:
        rows = min(ROWS, self.most - self.total) if self.fills else 0
        added.append(max(rows, 0))
        return added[-1]

    monkeypatch.setattr(BatchPlan, "filling", filling)
    return added
