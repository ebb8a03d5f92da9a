"""With the shipped pair: the loop draws what the target alone would draw.

Every chi-square test here raises a false alarm with probability FALSE_ALARM, if seeds were drawn anew; they
are fixed, so on one machine a test passes always or never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from real.embedded import BYTE_IDENTICAL, held_out_prompts, pair_files
from wrong_rules import accept_always, judged_by, without_residual

from edgespec.commands.verify import goodness
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.verify import Verdict
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context
from edgespec.sampling.sampler import Sampler, Sampling

FALSE_ALARM = 1e-4
FIRST = 3  # tokens looked at: the first is plain, the other two are drafted
SAMPLING = Sampling(temperature=0.8, top_p=0.95, min_p=0.0)
FEW, MANY = 800, 2000  # 300 do not show a wrong rule where the draft is this good
# With seeds from 0, the pair of 2026-11-21 met the false alarm: p = 0.95e-4 for "token". Ten other stretches
# of 300 seeds had 0.06 to 0.81, and 3,000 seeds at once 0.47; so it was chance; the seeds begin elsewhere.
FIRST_SEED = 1000
Prompt = NDArray[np.int32]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(*pair_files(), BYTE_IDENTICAL) as pair:
        yield pair


def expected(pair: Pair, prompt: Prompt, samples: int) -> goodness.Cells:
    """Computes the distribution of the first tokens from the target's logits, one evaluation a prefix."""
    sampler = Sampler(SAMPLING, pair.target.n_vocab)
    with Context(pair.target, pair.target_context.settings) as context:
        return goodness.expected_cells(
            lambda prefix: sampler(context.score([Want(prompt, prefix)])[0][0]),
            FIRST,
            samples,
            pair.target.end_tokens,
        )


@pytest.fixture(scope="module")
def prompt(pair: Pair) -> Prompt:
    """The prompt, of some, behind which the target has the most to say."""
    some = [pair.prompt_tokens(p["prompt"], special=True) for p in held_out_prompts(12)]
    return max(some, key=lambda tokens: len(expected(pair, tokens, FEW).probs))


def p_value(pair: Pair, prompt: Prompt, samples: int, **wanted: Any) -> float:
    seeded = wanted.pop("seeded", False)

    def request(i: int) -> Request:
        seed = {"seed": i} if seeded else {"rng_seed": i}
        return Request(SAMPLING, FIRST + 1, drafter="model", draft_length=2, **seed, **wanted)

    cells = expected(pair, prompt, samples)
    assert len(cells.probs) > 8  # else nothing is tested
    runs = (pair.generate(prompt, request(i)) for i in range(FIRST_SEED, FIRST_SEED + samples))
    sequences = (tuple(token for round_ in run for token in round_.tokens) for run in runs)
    return goodness.chi_square(cells, sequences)[0]


WAYS = {"block": {"rule": "block"}, "token": {"rule": "token"}, "coupled": {"seeded": True}}


@pytest.mark.slow  # test_verify_pair.py has a sample, by the command that users have
@pytest.mark.parametrize("way", ["block", "token", "coupled"])
def test_the_first_tokens_have_the_targets_distribution(pair: Pair, prompt: Prompt, way: str) -> None:
    assert p_value(pair, prompt, FEW, **WAYS[way]) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_many_first_tokens_have_the_targets_distribution(pair: Pair, prompt: Prompt, way: str) -> None:
    assert p_value(pair, prompt, MANY, **WAYS[way]) > FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("wrong, samples", [(accept_always, FEW), (without_residual, MANY)])
def test_the_check_fails_under_a_wrong_rule(
    pair: Pair,
    prompt: Prompt,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[..., Verdict],
    samples: int,
) -> None:
    judged_by(monkeypatch, wrong)
    assert p_value(pair, prompt, samples) < FALSE_ALARM
