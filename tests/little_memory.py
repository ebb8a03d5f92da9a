"""A machine with less memory than this one."""

from __future__ import annotations

import pytest

from edgespec.memory import at_load


def memory_is(patch: pytest.MonkeyPatch, free: int, total: int = 8 << 30) -> None:
    """Has pairs find so many bytes of memory when they are chosen and loaded."""
    patch.setattr(at_load, "free_memory", lambda: (free, total))
