"""A fixed pace grants as many guesses as it was told to, whoever asks, and sees no drafted token."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.errors import SettingError
from edgespec.events import Ask, Round
from edgespec.pace import LONGEST, FixedLength

TOKENS = np.arange(5, dtype=np.int32)


@pytest.mark.parametrize("length", [0, 1, 4, LONGEST])
def test_as_many_steps_and_rows_are_granted_as_drafts_may_have_tokens(length: int) -> None:
    pace = FixedLength(length)
    for n in range(LONGEST + 3):
        assert pace.grants_step(Ask("draft", TOKENS, (1,) * n, 1)) == (n < length)
        assert pace.grants_rows(Ask("target", TOKENS, (1,) * n, n + 1)) == min(n, length)


def test_what_is_granted_depends_on_the_number_of_guesses_alone() -> None:
    """Exactness: a decision that looked at a drawn token would bias the text."""
    pace = FixedLength(3)
    for tail in [(0, 0), (9, 9), (5, 1)]:
        for worth in (0.0, 0.5, 1.0):
            assert pace.grants_step(Ask("draft", TOKENS, tail, 1, worth))
            assert pace.grants_rows(Ask("target", TOKENS, tail, 3, worth)) == 2


def test_a_fixed_pace_learns_nothing() -> None:
    pace = FixedLength(2)
    for accepted in (0, 2):
        pace.observe(Round((1,), "a", 2, accepted, ("target",)))
    assert pace == FixedLength(2)


@pytest.mark.parametrize("length", [-1, LONGEST + 1, 1.5, "4", None])
def test_a_length_that_makes_no_sense_is_refused(length: object) -> None:
    with pytest.raises(SettingError, match=f"draft length is {length!r}: it must be from 0 to {LONGEST}"):
        FixedLength(length)  # type: ignore[arg-type]
