"""Drafters guess within their limits, evaluate no token twice, and never bias what is emitted."""

from __future__ import annotations

from collections.abc import Sequence

import fakes
import numpy as np
import pytest
from fakes import TableModel

from edgespec.drafters import Drafter, Drafting, NoDrafter
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.first_of import FirstOf
from edgespec.drafters.suffix_lookup import SuffixAutomaton, SuffixLookup
from edgespec.events import Ask, Draft
from edgespec.sampling import Distribution, Sampler, Sampling, point_mass
from edgespec.verify import Coupled, Independent, Rule, verify_block, verify_tokens

V = 5
PLAIN = Sampling(temperature=1, top_p=1, min_p=0)
GREEDY = Sampling(temperature=0)


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def drafted(
    drafter: Drafter,
    prefix: Sequence[int],
    limit: int,
    *,
    model: TableModel | None = None,
    rule: Rule | None = None,
    granted: int = 99,
) -> tuple[Draft, list[Ask]]:
    """Runs one drafting, answering from `model` `granted` times; returns the draft and what was asked."""
    rule = rule or Coupled(1)
    asks: list[Ask] = []
    drafting = drafter.draft(tokens(*prefix), limit, rule)
    answer = None
    while True:
        try:
            ask = drafting.send(answer)
        except StopIteration as stop:
            return stop.value, asks
        asks.append(ask)
        answer = None
        if model and len(asks) <= granted:
            answer = np.stack([model.row([*ask.tokens.tolist(), *ask.tail])])


# --- the suffix automaton


def longest_repeat(text: Sequence[int]) -> int:
    """Returns the length of the longest suffix that also ends earlier, by trying all."""
    n = len(text)
    return max(m for m in range(n) if m == 0 or any(text[e - m : e] == text[n - m :] for e in range(m, n)))


@pytest.mark.parametrize(("letters", "length", "times"), [(1, 30, 1), (2, 40, 30), (3, 60, 20), (10, 80, 5)])
def test_the_longest_repeated_suffix_is_found_where_it_really_occurred(
    letters: int, length: int, times: int
) -> None:
    rng = np.random.default_rng(letters)
    for _ in range(times):
        automaton, text = SuffixAutomaton(), []
        for token in rng.integers(0, letters, length).tolist():
            automaton.append(token)
            text.append(token)
            matched, end = automaton.match
            assert matched == longest_repeat(text)
            if matched:
                assert end < len(text), "there is something behind it to guess"
                assert text[end - matched : end] == text[len(text) - matched :]


@pytest.mark.parametrize("letters", [1, 2, 4, 1000])
def test_the_automaton_stays_within_two_states_a_token(letters: int) -> None:
    """Blumer et al.: at most 2n - 1 states and 3n - 4 transitions, whatever the text."""
    automaton = SuffixAutomaton()
    n = 3000
    for token in np.random.default_rng(letters).integers(0, letters, n).tolist():
        automaton.append(token)
    assert len(automaton._length) <= 2 * n
    assert sum(map(len, automaton._next)) <= 3 * n


def test_the_worst_text_for_an_automaton_stays_small_too() -> None:
    automaton = SuffixAutomaton()
    for token in [0] + [1] * 1000 + [0] + [1] * 500 + [2] + [0] * 500:
        automaton.append(token)
    assert len(automaton._length) <= 2 * len(automaton.tokens)


# --- lookup


def test_lookup_continues_an_earlier_occurrence_with_certainty() -> None:
    guess, asks = drafted(SuffixLookup(min_match=3), [1, 2, 3, 4, 0, 1, 2, 3], 10)
    assert guess.tokens == (4, 0, 1, 2, 3)
    assert guess.sources == ("lookup",) * 5 and not asks
    assert [(p.ids.tolist(), p.probs.tolist()) for p in guess.probs] == [([t], [1.0]) for t in guess.tokens]


def test_lookup_says_nothing_about_text_that_is_new() -> None:
    assert drafted(SuffixLookup(min_match=3), [1, 2, 3, 4, 0, 2, 3], 10)[0] == Draft()
    assert drafted(SuffixLookup(min_match=1), [1], 10)[0] == Draft()


def test_lookup_guesses_further_the_longer_the_match_and_never_past_the_limit() -> None:
    text = [*range(20), *range(100, 120), *range(6)]
    assert len(drafted(SuffixLookup(reach=1), text, 64)[0].tokens) == 6
    assert len(drafted(SuffixLookup(reach=2), text, 64)[0].tokens) == 12
    for limit in (1, 5, 11):
        assert drafted(SuffixLookup(reach=2), text, limit)[0].tokens == tuple(range(6, 6 + limit))


@pytest.mark.parametrize("min_match", [1, 2, 3])
def test_lookup_follows_edits_like_a_lookup_made_anew(min_match: int) -> None:
    """Appends, shortens, changes in the middle, another conversation: the state is that of the tokens."""
    rng = np.random.default_rng(min_match)
    kept, text = SuffixLookup(min_match=min_match), [0]
    for _ in range(300):
        change = rng.integers(5)
        if change == 0:
            text = text[: rng.integers(1, len(text) + 1)]
        elif change == 1:
            text = [*text[:-1], int(rng.integers(3))]
        elif change == 2 and rng.random() < 0.2:
            text = rng.integers(0, 3, 5).tolist()
        text = [*text, *rng.integers(0, 3, rng.integers(0, 6)).tolist()]
        old, _ = drafted(kept, text, 6)
        matched = longest_repeat(text)
        assert bool(old.tokens) == (matched >= min_match)
        assert kept._automaton.tokens == text and kept._automaton.match[0] == matched


def test_lookup_appends_what_is_new_and_does_not_begin_again() -> None:
    """O(1) a token: the automaton that grows is one and the same."""
    lookup = SuffixLookup()
    lookup.sync(tokens(1, 2, 3))
    before = lookup._automaton
    lookup.sync(tokens(1, 2, 3, 4))
    assert lookup._automaton is before
    lookup.sync(tokens(1, 9, 3, 4))
    assert lookup._automaton is not before


def test_lookup_does_not_keep_a_view_of_the_callers_tokens() -> None:
    """The loop writes guesses behind its tokens in the same array."""
    lookup, held = SuffixLookup(min_match=1), tokens(1, 2, 3, 1)
    assert drafted(lookup, [1, 2, 3, 1], 4)[0].tokens[0] == 2
    lookup.sync(held)
    held[:] = 7
    lookup.sync(held)
    assert lookup._automaton.tokens == [7, 7, 7, 7]


# --- the draft model


def model_drafter(
    s: Sampling = PLAIN, *, n_ctx: int = 100, n_vocab: int = V, min_confidence: float = 0.0
) -> DraftModel:
    return DraftModel(Sampler(s, n_vocab), n_ctx=n_ctx, n_vocab=n_vocab, min_confidence=min_confidence)


def test_guesses_are_drawn_from_the_distributions_that_are_recorded_with_them() -> None:
    """Exactness rests on it: q is what the rule drew x from, at the position of x."""
    drawn: list[tuple[int, int, Distribution]] = []

    class Spy(Independent):
        def draw(self, distribution: Distribution, position: int) -> int:
            token = super().draw(distribution, position)
            drawn.append((token, position, distribution))
            return token

    model = TableModel(V, seed=1)
    spy = Spy(np.random.default_rng(0))
    guess, asks = drafted(model_drafter(), [1, 2, 3], 4, model=model, rule=spy)
    assert [(t, q) for t, _, q in drawn] == list(zip(guess.tokens, guess.probs, strict=True))
    assert [position for _, position, _ in drawn] == [3, 4, 5, 6]
    assert [ask.tail for ask in asks] == [guess.tokens[:i] for i in range(4)]
    for i, q in enumerate(guess.probs):
        wanted = fakes.reference(model.row([1, 2, 3, *guess.tokens[:i]]), [], PLAIN).probs
        assert q.probs.tolist() == pytest.approx([wanted[t] for t in q.ids.tolist()])


def test_a_greedy_draft_is_certain_of_the_likeliest_tokens() -> None:
    model = TableModel(V, seed=2)
    guess, _ = drafted(model_drafter(GREEDY), [1, 2], 3, model=model)
    text = [1, 2]
    for token, q in zip(guess.tokens, guess.probs, strict=True):
        assert token == model.row(text).argmax() and q.probs.tolist() == [1.0]
        text.append(token)


def test_penalties_of_the_draft_count_its_own_guesses() -> None:
    model = TableModel(V, seed=3)
    s = Sampling(temperature=1, top_p=1, min_p=0, repeat_penalty=1.5, frequency_penalty=1, penalty_last_n=3)
    guess, _ = drafted(model_drafter(s), [1, 2, 2], 5, model=model)
    for i, q in enumerate(guess.probs):
        text = [1, 2, 2, *guess.tokens[:i]]
        wanted = fakes.reference(model.row(text), text, s).probs
        assert q.probs.tolist() == pytest.approx([wanted[t] for t in q.ids.tolist()])


@pytest.mark.parametrize(("limit", "granted", "n_ctx", "wanted"), [
    (4, 99, 100, 4), (4, 2, 100, 2), (4, 0, 100, 0),
    (64, 99, 10, 7), (64, 99, 4, 1), (64, 99, 3, 0), (64, 99, 2, 0),
])  # fmt: skip
def test_a_draft_is_never_longer_than_limit_grant_or_context(
    limit: int, granted: int, n_ctx: int, wanted: int
) -> None:
    """Prefix of 3; the last guess is never evaluated, so the context is filled to the last token."""
    model = TableModel(V, seed=4)
    guess, asks = drafted(model_drafter(n_ctx=n_ctx), [1, 2, 3], limit, model=model, granted=granted)
    assert len(guess.tokens) == len(guess.probs) == len(guess.sources) == wanted
    assert all(3 + len(ask.tail) <= n_ctx for ask in asks)


def test_ids_past_the_shared_vocabulary_are_never_guessed() -> None:
    """The draft's rows may be longer than what both know, with large logits in the padding."""
    model = TableModel(V, seed=5, padding=7)
    for s in (PLAIN, GREEDY, Sampling()):
        guess, _ = drafted(model_drafter(s), [1, 2, 3], 20, model=model)
        assert len(guess.tokens) == 20 and max(guess.tokens) < V


def test_text_that_the_draft_cannot_read_is_not_drafted_upon() -> None:
    """A target may have a few tokens more; once one is in the text the draft is not asked."""
    drafter, model = model_drafter(n_vocab=V), TableModel(V, seed=6)
    assert drafted(drafter, [1, 2], 3, model=model)[0].tokens
    guess, asks = drafted(drafter, [1, 2, V], 3, model=model)
    assert guess == Draft() and not asks
    far = [1, 2, V, *[0] * 200]
    for length in range(3, len(far), 40):
        assert drafted(drafter, far[:length], 3, model=model)[0] == Draft()


@pytest.mark.parametrize("length", [3, 40, 200])
def test_another_text_is_looked_at_from_its_beginning(length: int) -> None:
    """A drafter may be handed edits and other conversations: what it knew of the old text does not count."""
    drafter, model = model_drafter(n_ctx=500, n_vocab=V), TableModel(V, seed=6)
    assert drafted(drafter, [1, 2, 3, 4, 0], 3, model=model)[0].tokens
    assert drafted(drafter, [1, 2, V, *[0] * (length - 3)], 3, model=model)[0] == Draft()


def test_drafting_stops_before_it_draws_from_an_unsure_distribution() -> None:
    model = TableModel(V, seed=7, spread=3)
    seen = set()
    for start in range(V):
        guess, asks = drafted(model_drafter(min_confidence=0.7), [start, 1], 8, model=model)
        assert all(q.probs.max() >= 0.7 for q in guess.probs)
        assert len(asks) == min(len(guess.tokens) + 1, 8), "one look more than guesses: the unsure one"
        seen.add(len(guess.tokens))
    assert len(seen) > 1


def test_each_ask_says_how_likely_its_guess_will_count() -> None:
    guess, asks = drafted(model_drafter(), [1, 2], 4, model=TableModel(V, seed=8))
    reach = [1.0, *np.cumprod([q.probs.max() for q in guess.probs[:-1]])]
    assert [ask.worth for ask in asks] == pytest.approx(reach)


# --- no second evaluation


def run_counting(
    target: TableModel, draft: TableModel, s: Sampling, k: int, rule: Rule
) -> tuple[list[fakes.Round], list[list[int]]]:
    """Returns the rounds, and for each the number of tokens of every call of the draft."""
    calls: list[list[int]] = []
    seen = 0

    class Watching(fakes.Restless):
        def observe(self, round_: fakes.Round) -> None:
            nonlocal seen
            calls.append(draft.decoded[seen:])
            seen = len(draft.decoded)

    rounds = fakes.speculate(
        target, [1, 2, 3, 4, 0, 1], sampler=Sampler(s, V), rule=rule, drafter=model_drafter(s), draft=draft,
        pace=Watching([k]), max_tokens=60,
    )  # fmt: skip
    return rounds, calls


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
def test_the_draft_evaluates_one_token_after_a_rejection_and_two_after_full_acceptance(
    k: int, judge: fakes.Judge
) -> None:
    """No token is evaluated twice by either model (algorithms 1.7)."""
    target = TableModel(V, seed=9)
    draft = TableModel(V, seed=10, near=target, spread=0.7)
    rounds, calls = run_counting(target, draft, PLAIN, k, Independent(np.random.default_rng(3), judge))
    assert calls[0] == [] and calls[1][0] == 7, "the prompt, once, with the first token"
    firsts = set()
    for before, now in zip(rounds[1:-2], calls[2:-1], strict=True):
        whole = before.accepted == before.drafted
        assert now == [2 if whole else 1, *[1] * (k - 1)]
        firsts.add(now[0])
    assert firsts == {1, 2}, "both cases occurred"
    assert len(draft.decoded) == sum(r.drafted for r in rounds), "k calls for k guesses"


def test_the_target_evaluates_each_round_the_last_token_and_the_guesses() -> None:
    target = TableModel(V, seed=9)
    draft = TableModel(V, seed=10, near=target, spread=0.7)
    rounds, _ = run_counting(target, draft, PLAIN, 3, Independent(np.random.default_rng(3)))
    assert target.decoded == [6, *[r.drafted + 1 for r in rounds[1:]]]
    assert target.asked == [r.drafted + 1 for r in rounds]


def test_a_draft_that_agrees_costs_one_call_a_guess_and_is_kept() -> None:
    target = TableModel(V, seed=9)
    rounds, calls = run_counting(target, TableModel(V, seed=9), GREEDY, 4, Coupled(1))
    assert all(r.accepted == r.drafted for r in rounds)
    assert all(now == [2, 1, 1, 1] for now in calls[2:-1])


# --- combinations


def test_the_first_drafter_that_has_a_guess_is_taken() -> None:
    model = TableModel(V, seed=11)
    both = FirstOf(SuffixLookup(min_match=3), model_drafter())
    guess, asks = drafted(both, [1, 2, 3, 4, 1, 2, 3], 2, model=model)
    assert guess.sources == ("lookup", "lookup") and not asks, "a free guess costs no evaluation"
    guess, asks = drafted(both, [1, 2, 3, 4], 2, model=model)
    assert guess.sources == ("model", "model") and len(asks) == 2
    assert drafted(FirstOf(NoDrafter(), SuffixLookup()), [1, 2], 2)[0] == Draft()


def test_no_drafter_asks_and_guesses_nothing() -> None:
    assert drafted(NoDrafter(), [1, 2], 5) == (Draft(), [])


def test_a_draft_is_cut_in_all_its_parts() -> None:
    draft = Draft((1, 2, 3), tuple(map(point_mass, (1, 2, 3))), ("a", "b", "c"))
    cut = draft.cut(2)
    assert (cut.tokens, len(cut.probs), cut.sources) == ((1, 2), 2, ("a", "b"))
    assert draft.cut(3) is draft and draft.cut(9) is draft and draft.cut(0) == Draft()


# --- exactness of drafting, by enumeration


class Discarding(DraftModel):
    """The trap: throws the last guess away where it turned out to be an unlikely one."""

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule) -> Drafting:
        guess = yield from super().draft(tokens, limit, rule)
        kept = len(guess.tokens)
        while kept and guess.probs[kept - 1].prob(guess.tokens[kept - 1]) < 0.5:
            kept -= 1
        return guess.cut(kept)


def round_error(
    drafter: type[DraftModel], judge: fakes.Judge, seed: int, confidence: float
) -> tuple[float, set[int]]:
    """Returns how far one round with the drafter is from the target, over all that chance can do, and the
    lengths of its drafts."""
    k = 2
    n = 3
    target = TableModel(n, seed=seed, order=None)
    draft = TableModel(n, seed=seed + 1000, order=None)
    lengths: set[int] = set()
    sampler = fakes.Remembering(PLAIN, n)

    def run(world: fakes.World) -> tuple[int, ...]:
        rule = Independent(world, judge)  # type: ignore[arg-type]
        guesser = drafter(sampler, n_ctx=50, n_vocab=n, min_confidence=confidence)
        guess, _ = drafted(guesser, [0, 1], k, model=draft, rule=rule)
        lengths.add(len(guess.tokens))
        verdict = rule.verify(guess, lambda i: sampler(target.row([0, 1, *guess.tokens[:i]])), 2)
        return (*guess.tokens[: verdict.accepted], verdict.token)

    p = lambda prefix: sampler(target.row([0, 1, *prefix]))  # noqa: E731
    found = fakes.law(run)
    return fakes.distance(fakes.completed(found, p, k + 1), fakes.joint(p, k + 1)), lengths


@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
@pytest.mark.parametrize(("confidence", "lengths"), [(0.0, {2}), (0.5, {1, 2}), (0.6, {0, 1, 2})])
def test_stopping_before_drawing_leaves_the_distribution_exact(
    judge: fakes.Judge, confidence: float, lengths: set[int]
) -> None:
    seen: set[int] = set()
    for seed in range(12):
        error, found = round_error(DraftModel, judge, seed, confidence)
        assert error < 1e-12
        seen |= found
    assert seen == lengths


@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
def test_discarding_after_looking_is_seen_to_be_inexact(judge: fakes.Judge) -> None:
    assert max(round_error(Discarding, judge, seed, 0.0)[0] for seed in range(4)) > 0.005


def test_a_draft_whose_logits_are_no_numbers_guesses_nothing_and_stops_nothing() -> None:
    """A damaged draft used to end the answer of a sound target."""
    drafting = DraftModel(Sampler(Sampling(), 8), n_ctx=64, n_vocab=8).draft(
        np.array([1, 2], np.int32), 4, Independent(np.random.default_rng(0))
    )
    next(drafting)
    with pytest.raises(StopIteration) as end:
        drafting.send(np.full((1, 8), np.nan, np.float32))
    assert end.value.value.tokens == ()
