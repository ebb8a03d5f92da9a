"""Tests of this folder need a graphics card that llama.cpp uses; one in software will do."""

from __future__ import annotations

import pytest

from edgespec_models.fit.need import Device


@pytest.fixture(scope="session", autouse=True)
def card() -> Device:
    """The first card."""
    from edgespec.llama.devices import cards

    found = cards()
    if not found:
        pytest.skip("this build of llama.cpp finds no graphics card: `make gpu-test` has one in software")
    return found[0]
