"""Evaluations that are filled up whatever they cost, for tests in which nobody may notice it."""

from __future__ import annotations

import pytest

from edgespec.core.pace.load import Load

ROWS = 3


def fill_always(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has rows added to each evaluation that has room for them. Returns the numbers of rows, as they come."""
    added: list[int] = []

    def filling(self: Load) -> int:
        rows = min(ROWS, self.most - self.total) if self.fills else 0
        added.append(max(rows, 0))
        return added[-1]

    monkeypatch.setattr(Load, "filling", filling)
    return added
