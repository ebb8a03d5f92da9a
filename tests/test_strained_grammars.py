"""A guess may exhaust a grammar: the text continues, and nobody guesses there any more.

llguidance's copies of a matcher share a lexer, which refuses every text once it has given up on one. The
grammar here has texts of `a` whose lexer gives up after some twenty.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import fakes
import numpy as np
import pytest
from fakes import TableModel, speculate, tokens_of

from edgespec.core.drafters import Drafter, Offer
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.demanded import DemandedText
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.pace.odds import BINS, Odds, proportional
from edgespec.core.values import Round
from edgespec.core.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.errors import GrammarError
from edgespec.grammar.grammar import Grammar
from edgespec.grammar.matchers import ALLOWANCE_S, PATIENCE_S, Matchers, matcher_for
from edgespec.sampling.masks import Masks
from edgespec.sampling.sampler import Sampler, Sampling

PIECES = [b"a" * 16, b"b", b"c", b"", b"bc"]
A, B, C, END, N = 0, 1, 2, 3, len(PIECES)
DEEP = "(((a{1,100}){1,100}){1,100}){1,100}"
HEAVY = f"(b|bc|{DEEP}c)+"
PROMPT = [B, C]
LENGTH = 12
NEVER = {A: -60.0, END: -60.0}  # what the target does not say
TARGET, DRAFT = TableModel(N, seed=1), TableModel(N, seed=2)


def masks_of(matchers: Matchers, expression: str = HEAVY) -> Masks:
    return matchers.masks(Grammar("regex", expression), len(PROMPT))


def new_matchers(own_time: Callable[[], float] = time.thread_time) -> Matchers:
    return Matchers(lambda shown: PIECES, frozenset({END}), N, own_time=own_time)


@pytest.fixture
def matchers() -> Matchers:
    return new_matchers()


class Wild:
    """Offers what the target never says."""

    name = "wild"

    def __init__(self, guess: tuple[int, ...] = (A,) * 6) -> None:
        self.odds, self.asked = Odds((0.9,) * BINS), 0
        self._guess = guess

    def for_text(self) -> Wild:
        return self

    def offer(self, tokens: np.ndarray, limit: int) -> Offer:
        self.asked += 1
        n = min(len(self._guess), limit)
        return Offer(self._guess[:n], (0.9,) * n, (0.9,) * n)

    def learn(self, judged: object) -> None:
        pass


def drafter_named(name: str, masks: Masks, bias: dict[int, float]) -> Drafter:
    guesses_a = Sampler(Sampling(temperature=1.0, top_p=1.0, min_p=0.0, logit_bias=bias), N, masks)
    model = DraftModel(
        guesses_a, n_ctx=99, n_vocab=N, odds=proportional(0.0, 1.0), places=Odds((0.9,) * BINS)
    )
    demanded = DemandedText(masks, lambda text: [A] * (len(text) // 16), Odds((0.9,) * BINS))
    return {
        "offer": Competition([Wild()], masks=masks),
        "model": Competition([], model, masks),
        "all": Competition([Wild(), demanded], model, masks),
    }[name]


def generation(
    rule: Rule,
    make: Callable[[Masks], Drafter] | None,
    matchers: Matchers,
    bias: dict[int, float] = NEVER,
    max_tokens: int = LENGTH,
) -> list[Round]:
    masks = masks_of(matchers)
    s = Sampling(temperature=1.0, top_p=1.0, min_p=0.0, logit_bias=bias)
    return speculate(
        TARGET, PROMPT, sampler=Sampler(s, N, masks), rule=rule, drafter=make and make(masks), draft=DRAFT,
        pace=5, max_tokens=max_tokens, end={END}, piece=PIECES.__getitem__,
    )  # fmt: skip


def test_a_refused_guess_leaves_the_mask_of_what_is_emitted(matchers: Matchers) -> None:
    """The lexer that gave up refused every token, so the row of the target was masked no more."""
    masks = masks_of(matchers)
    assert masks.after([*PROMPT, B])
    assert masks.fitting([*PROMPT, B], [A] * 6) < 6
    for text in ([B], [B, B], [B, B, B]):
        allowed = masks.after([*PROMPT, *text])
        assert allowed and allowed.ids.tolist() == [A, B, C, END, 4]


@pytest.mark.parametrize("ask", ["mask", "fitting", "only_text"])
def test_a_text_goes_on_where_another_of_the_same_grammar_gives_up(matchers: Matchers, ask: str) -> None:
    """It ended, or went on without its grammar: all texts of a grammar share a lexer."""
    first, second = masks_of(matchers), masks_of(matchers)
    assert second.after([*PROMPT, B])
    with pytest.raises(GrammarError, match="too complex"):
        for n in range(9):
            first.after([*PROMPT, *[A] * n])
    text = [*PROMPT, B, C]
    if ask == "fitting":
        assert second.fitting(text, [B, C, C]) == 2
    elif ask == "only_text":
        assert second.only_text([*PROMPT, A]) == b""
    allowed = second.after(text)
    assert allowed and allowed.ids.tolist() == [A, B, END, 4]


@pytest.mark.parametrize("name", ["offer", "model", "all"])
@pytest.mark.parametrize("judge", [verify_block, verify_tokens, None])
def test_a_guess_that_runs_a_grammar_out_of_its_fuel_ends_no_text(
    matchers: Matchers, name: str, judge: fakes.Judge | None
) -> None:
    """It ended the text, for guesses and what is said share a lexer."""

    def make(masks: Masks) -> Drafter:
        return drafter_named(name, masks, {A: 60.0})

    for seed in range(3):
        rule = Independent(np.random.default_rng(seed), judge) if judge else Coupled(seed)
        found = generation(rule, make, matchers)
        assert found[-1].finish == "length" and len(tokens_of(found)) == LENGTH
        if not judge:
            assert tokens_of(found) == tokens_of(generation(rule, None, matchers))


def test_texts_keep_their_distribution_where_guesses_break_the_grammar() -> None:
    """Tokens drawn before the grammar broke are judged like others: dropping them would be seen here."""

    few = dict.fromkeys((END, 4), -np.inf)  # never said, for there would be many more texts

    def law(make: Callable[[Masks], Drafter] | None) -> dict[tuple[int, ...], float]:
        def run(world: fakes.World) -> tuple[int, ...]:
            rule = Independent(world, verify_block)  # type: ignore[arg-type]
            try:
                return tokens_of(generation(rule, make, new_matchers(), few, 4))
            except GrammarError:  # where the target itself says what breaks it
                return ()

        return fakes.law(run)

    guessed = law(lambda masks: drafter_named("model", masks, few))
    assert fakes.distance(guessed, law(None)) < 1e-6


def test_nobody_guesses_where_a_guess_may_have_broken_the_grammar(matchers: Matchers) -> None:
    masks, wild = masks_of(matchers), Wild()
    competition = Competition([wild], masks=masks)
    for n in range(5):
        with pytest.raises(StopIteration) as ended:
            next(competition.draft(np.array([*PROMPT, *[B] * n], np.int32), 6, Coupled(1)))
        masks.after([*PROMPT, *[B] * n])
    assert masks.strained and wild.asked <= 2 and not ended.value.value.tokens


def test_what_is_emitted_has_its_own_time_where_guesses_used_theirs_up() -> None:
    """Masks of guesses that were refused counted for the text: slow ones ended it."""
    took = 0.35 * PATIENCE_S + ALLOWANCE_S  # a third of what slow masks may take together
    now = itertools.count()
    masks = masks_of(new_matchers(lambda: next(now) * took), "[abc]+")
    assert masks.after([*PROMPT, C]) and masks.after([*PROMPT, C, C]), "guesses, refused"
    assert masks.after([*PROMPT, B]) and masks.strained
    with pytest.raises(GrammarError, match="too slow"):
        for n in range(2, 9):
            masks.after([*PROMPT, *[B] * n])


def test_a_grammar_that_takes_long_to_compile_is_not_compiled_for_a_text_that_others_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine's thread compiled it, for seconds, and then found it too slow to follow."""
    compiled = []

    def compile_(*of: Any) -> Any:
        compiled.append(of)
        return matcher_for(*of)

    monkeypatch.setattr("edgespec.grammar.matchers.matcher_for", compile_)
    matchers = new_matchers(lambda: len(compiled) * 2 * PATIENCE_S)
    masks = masks_of(matchers)
    with pytest.raises(GrammarError, match="too complex while it was followed"):
        for n in range(9):
            masks.after([*PROMPT, *[A] * n])
    assert len(compiled) == 1
    allowed = masks_of(matchers).after([*PROMPT, B])
    assert allowed and len(compiled) == 2, "the next request begins with a new one"
