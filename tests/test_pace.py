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
        for rows in (1, 0):
            assert pace.grants_step(Ask("draft", TOKENS, (1,) * n, rows, (0.5,)), 1) == (n < length)
        assert pace.grants_rows(Ask("target", TOKENS, (1,) * n, n + 1)) == min(n, length)


def test_what_is_granted_depends_on_the_number_of_guesses_alone() -> None:
    """Exactness: a decision that looked at a drawn token would bias the text."""
    pace = FixedLength(3)
    for tail in [(0, 0), (9, 9), (5, 1)]:
        for reach in (0.0, 0.5, 1.0):
            assert pace.grants_step(Ask("draft", TOKENS, tail, 1, (reach,)), 1)
            assert pace.grants_rows(Ask("target", TOKENS, tail, 3, (reach, reach))) == 2


def test_a_likelier_free_guess_goes_before_a_fixed_number_of_the_models() -> None:
    pace = FixedLength(3)
    for free, granted in ((0.6, True), (0.7, False), (0.8, False)):
        ask = Ask("draft", TOKENS, (), 1, (0.7, 0.5), otherwise=(free, 0.1))
        assert pace.grants_step(ask, 1) == granted


def test_a_fixed_pace_learns_nothing_and_lets_the_draft_read_everything() -> None:
    pace = FixedLength(2)
    for accepted in (0, 2):
        assert pace.observe(Round((1,), "a", 2, accepted, ("target",))) == 1
    pace.spent(Ask("target", TOKENS, (), 1), 5, 1.0)
    assert pace == FixedLength(2)
    assert pace.window(3000) == 3000


@pytest.mark.parametrize("length", [-1, LONGEST + 1, 1.5, "4", None])
def test_a_length_that_makes_no_sense_is_refused(length: object) -> None:
    with pytest.raises(SettingError, match=f"draft length is {length!r}: it must be from 0 to {LONGEST}"):
        FixedLength(length)  # type: ignore[arg-type]
