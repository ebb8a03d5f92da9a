"""The figures match their definitions, on hand-made rounds and a clock that the test sets."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from edgespec.core.stats import Statistics, Tally
from edgespec.core.values import FinishReason, Round


@dataclass
class Watch:
    """A clock, and the seconds spent in llama.cpp, that a test sets."""

    now: float = 100.0
    draft: float = 5.0
    target: float = 50.0
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(lambda: (self.draft, self.target), lambda: self.now)

    def round_(
        self,
        n: int,
        drafted: int = 0,
        accepted: int = 0,
        *,
        after: float = 0.0,
        draft: float = 0.0,
        target: float = 0.0,
        finish: FinishReason | None = None,
    ) -> None:
        self.now += after
        self.draft += draft
        self.target += target
        self.tally.note(Round((7,) * n, "x" * n, drafted, accepted, ("target",) * n, finish))


def spoken() -> Statistics:
    """First token after 0.5 s, then 9 more in 3 s of which 0.6 in the draft and 2.1 in the target."""
    watch = Watch()
    watch.round_(1, after=0.5, draft=0.25, target=0.25)
    watch.round_(5, 4, 4, after=1.0, draft=0.25, target=0.75)
    watch.round_(1, 4, 0, after=1.0, draft=0.25, target=0.75)
    watch.round_(3, 3, 2, after=1.0, draft=0.125, target=0.625, finish="length")
    return watch.tally.statistics(prompt_tokens=12)


def test_a_draft_that_works_next_to_the_target_leaves_no_time_below_nothing() -> None:
    """ "other -44 ms" was said."""
    watch = Watch()
    watch.round_(1, after=0.5, draft=0.25, target=0.25)
    watch.round_(5, 4, 4, after=1.0, draft=0.5, target=0.75)
    s = watch.tally.statistics(prompt_tokens=1)
    assert s.seconds == {"draft": 0.5, "verify": 0.75, "other": 0.0}
    assert "-" not in s.lines()[-1]


def test_counts_and_times_follow_their_definitions() -> None:
    s = spoken()
    assert (s.n_tokens, s.drafted, s.accepted, s.prompt_tokens, s.finish_reason) == (10, 11, 6, 12, "length")
    assert s.ttft_s == 0.5
    assert s.tpot_s == pytest.approx(3 / 9)
    assert s.tok_per_s == pytest.approx(3)
    assert s.acceptance_rate == 6 / 11
    assert s.mean_accepted_length == 9 / 3


def test_acceptance_by_position_counts_only_positions_that_were_reached() -> None:
    """Position 0 was reached three times and stayed twice; position 3 was reached once, in the first."""
    assert spoken().acceptance_by_position == (2 / 3, 2 / 2, 1 / 2, 1 / 1)


def test_the_seconds_between_first_and_last_token_are_shared_out_without_rest() -> None:
    s = spoken()
    assert s.seconds == pytest.approx({"draft": 0.625, "verify": 2.125, "other": 0.25})
    assert sum(s.seconds.values()) == pytest.approx(3.0)


def test_plain_decoding_has_no_acceptance() -> None:
    watch = Watch()
    for _ in range(3):
        watch.round_(1, after=0.1)
    s = watch.tally.statistics(3)
    assert (s.acceptance_rate, s.mean_accepted_length, s.acceptance_by_position) == (None, None, ())
    assert s.tok_per_s == pytest.approx(10)
    assert "nothing was drafted" in "\n".join(s.lines())


def test_one_token_has_a_first_time_and_no_speed() -> None:
    watch = Watch()
    watch.round_(1, after=2.0)
    s = watch.tally.statistics(3)
    assert (s.ttft_s, s.tpot_s, s.tok_per_s) == (2.0, None, None)
    assert "too few tokens" in s.lines()[0]


def test_nothing_at_all_has_no_figures_and_still_prints() -> None:
    watch = Watch()
    watch.round_(0, after=1.0, finish="stop")  # the end token came first
    s = watch.tally.statistics(3)
    assert (s.n_tokens, s.ttft_s, s.tpot_s, s.finish_reason) == (0, None, None, "stop")
    assert s.seconds == {"draft": 0.0, "verify": 0.0, "other": 0.0}
    assert s.lines()


def test_a_round_that_brings_only_the_end_token_does_not_stretch_the_time() -> None:
    """n_tokens is without the end token, and so is the time of the last one."""
    watch = Watch()
    watch.round_(1, after=1.0)
    watch.round_(1, after=1.0)
    watch.round_(0, 2, 0, after=5.0, finish="stop")
    s = watch.tally.statistics(3)
    assert (s.n_tokens, s.tpot_s, s.drafted) == (2, 1.0, 2)


def test_tokens_that_arrive_together_make_no_speed() -> None:
    watch = Watch()
    watch.round_(4, after=1.0)
    assert watch.tally.statistics(3).tok_per_s is None


def test_figures_may_be_asked_for_in_the_middle() -> None:
    watch = Watch()
    watch.round_(1, after=1.0)
    watch.round_(2, 2, 1, after=1.0)
    assert watch.tally.statistics(3).acceptance_by_position == (1.0, 0.0)
    watch.round_(3, 2, 2, after=1.0, finish="stop")
    s = watch.tally.statistics(3)
    assert s.acceptance_by_position == (1.0, 0.5) and s.finish_reason == "stop"


def test_statistics_are_plain_values_that_json_takes() -> None:
    found = json.loads(json.dumps(spoken().as_dict()))
    assert found["acceptance_by_position"] == [2 / 3, 1.0, 0.5, 1.0]
    assert found.keys() >= {
        "n_tokens", "tok_per_s", "ttft_s", "tpot_s", "drafted", "accepted", "acceptance_rate",
        "mean_accepted_length", "seconds", "finish_reason", "prompt_tokens",
    }  # fmt: skip


def test_the_lines_for_people_name_what_they_count() -> None:
    first, acceptance, time = spoken().lines()
    assert "10 tokens, 3.0 tok/s, first token after 500 ms (12 tokens of prompt)" in first
    assert acceptance == "acceptance rate 0.55 (6 of 11), by position 0.67 1.00 0.50 1.00"
    assert time == "mean accepted length 3.00; draft 625 ms, verify 2125 ms, other 250 ms"
