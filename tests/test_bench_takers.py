"""One sample of a loaded pair."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.engine.pair import Pair
from edgespec.measure.lines import Line, Unit
from edgespec.measure.prompts import Prompt, tokenize
from edgespec.measure.takers import Asked, PairTaker
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

PROMPT = Prompt("p", "code", "What does os.path.join do? " * 8)
PLAIN, OURS, FIXED = (
    Line("greedy", "plain", plain=True),
    Line("greedy", "edgespec"),
    Line("greedy", "edgespec n=2", draft_length=2),
)
UNIT = Unit(4, PROMPT, "greedy", 0, (PLAIN, OURS))
ASKED = Asked(Sampling(temperature=0.8), max_tokens=12, seed=1)


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tiny_draft: Path) -> Iterator[Pair]:
    with Pair(tiny_target, tiny_draft, PairSettings(n_ctx=512, threads=1)) as pair:
        yield pair


def taker(pair: Pair, *, cancelled: bool = False) -> PairTaker:
    return PairTaker(pair, ASKED, tokenize(pair, [PROMPT], raw=False), lambda: cancelled)


def test_a_sample_has_rounds_that_add_up_and_the_lines_length(pair: Pair) -> None:
    for line, longest in ((PLAIN, 0), (FIXED, 2), (OURS, 48)):
        got = taker(pair)(line, UNIT)
        assert got and (got.unit, got.line, got.prompt, got.kind) == (4, line.name, "p", "code")
        assert sum(round_.tokens for round_ in got.rounds) == got.n_tokens == got.steps + 1
        assert max(round_.drafted for round_ in got.rounds) <= longest
        assert sum(round_.drafted for round_ in got.rounds) == got.drafted
        assert got.wall_s == pytest.approx(sum(round_.seconds for round_ in got.rounds))


def test_every_generation_evaluates_its_whole_prompt(pair: Pair) -> None:
    """Caches that held the prompt made the second line's first token free."""
    take = taker(pair)
    for line in (OURS, PLAIN, OURS, PLAIN):
        before = pair.target_context.evaluated
        got = take(line, UNIT)
        assert got and pair.target_context.evaluated - before >= got.prompt_tokens > 50


def test_a_cancelled_generation_is_no_sample(pair: Pair) -> None:
    assert taker(pair, cancelled=True)(PLAIN, UNIT) is None


def test_requests_say_what_the_mode_means() -> None:
    sampled, coupled = (Line(mode, "edgespec") for mode in ("sampled", "coupled"))
    assert ASKED.request(OURS, 0).sampling.temperature == 0
    assert (ASKED.request(sampled, 2).seed, ASKED.request(sampled, 2).rng_seed) == (None, 3)
    assert (ASKED.request(coupled, 2).seed, ASKED.request(coupled, 2).rng_seed) == (3, None)
    assert ASKED.request(coupled, 0).sampling.temperature == 0.8
    assert ASKED.request(replace(PLAIN, mode="sampled"), 0).drafter == "none"
    assert ASKED.request(FIXED, 0).draft_length == 2


def test_prompts_go_through_the_template_unless_they_are_raw(pair: Pair) -> None:
    prompts = [Prompt("chat", "a", "hi"), Prompt("raw", "a", "<|im_start|>hi", raw=True)]
    got = tokenize(pair, prompts, raw=False)
    assert len(got["chat"]) > len(got["raw"])
    assert got["raw"][0] == got["chat"][0]  # a control token that is meant
    assert len(tokenize(pair, prompts, raw=True)["chat"]) < len(got["chat"])
