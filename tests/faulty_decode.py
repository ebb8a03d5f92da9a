"""An evaluation of llama.cpp's that does something else: it fails, is interrupted, or is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgespec.llama import context


def decodes_by(patch: pytest.MonkeyPatch, evaluate: Callable[..., int]) -> None:
    """Has contexts evaluate by this function in place of `llama_decode`, which returns 0 or why not."""
    patch.setattr(context.C, "llama_decode", evaluate)
