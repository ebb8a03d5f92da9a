"""Drafters guess within their limits, evaluate no token twice, and never bias the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import fakes
import numpy as np
import pytest
from fakes import TableModel
from numpy.typing import NDArray

from edgespec.core import media
from edgespec.core.drafters import HOPELESS, Drafter, Drafting, Guesser, NoDrafter, Offer, offer
from edgespec.core.drafters import history as history_module
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel, lead
from edgespec.core.drafters.draft_temperature import FACTORS, DraftTemperature
from edgespec.core.drafters.history import History, TextPool
from edgespec.core.drafters.lookup import MIN_MATCH, SURE, SuffixAutomaton, SuffixLookup
from edgespec.core.drafters.recycling import LONGEST_WALK, PLACES, STEADY, TokenRecycling
from edgespec.core.loop import NO_ROWS
from edgespec.core.pace.odds import BINS, Odds, proportional
from edgespec.core.values import Ask, Draft, Judged, Reach
from edgespec.core.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.grammar.grammar import Grammar
from edgespec.grammar.matchers import Matchers
from edgespec.sampling.sampler import Distribution, Sampler, Sampling, point_mass

V = 5
PLAIN = Sampling(temperature=1, top_p=1, min_p=0)
GREEDY = Sampling(temperature=0)


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def always(odds: float) -> Odds:
    """Returns odds that say the same whatever the confidence."""
    return Odds((odds,) * BINS)


def drafted(
    drafter: Drafter,
    prefix: Sequence[int],
    limit: int,
    *,
    model: TableModel | None = None,
    rule: Rule | None = None,
    granted: int = 99,
    draws: Callable[[Ask], bool] = lambda ask: True,
) -> tuple[Draft, list[Ask]]:
    """Runs one drafting; returns the draft and the evaluations it asked for.

    Answers come from `model`, `granted` times; `draws` says whether one more guess may be drawn.
    """
    asks: list[Ask] = []
    drafting = drafter.draft(tokens(*prefix), limit, rule or Coupled(1))
    answer, first = None, None
    while True:
        try:
            ask = drafting.send(answer)
        except StopIteration as stop:
            return stop.value, asks
        answer, first = None, first or ask
        assert (ask.tokens is first.tokens, ask.skipped) == (True, first.skipped), "it begins at one place"
        if ask.rows:
            asks.append(ask)
            if model and len(asks) <= granted:
                answer = np.stack([model.row([*ask.tokens.tolist(), *ask.tail])])
        elif not ask.reach or draws(ask):
            answer = NO_ROWS


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
    guess, asks = drafted(Competition([SuffixLookup(always(1.0))]), [1, 2, 3, 4, 0, 1, 2, 3], 10)
    assert guess.tokens == (4, 0, 1, 2, 3)
    assert guess.sources == ("lookup",) * 5 and not asks
    assert [(p.ids.tolist(), p.probs.tolist()) for p in guess.probs] == [([t], [1.0]) for t in guess.tokens]


def test_lookup_says_nothing_about_text_that_is_new() -> None:
    for text in ([1, 2, 3, 4, 0, 3, 3], [1], [1, 1]):
        assert SuffixLookup(always(1.0)).offer(tokens(*text), 10) == Offer(), MIN_MATCH


def test_lookup_is_surer_the_longer_the_match_and_offers_more() -> None:
    text = [*range(20), *range(100, 120)]
    offers = [SuffixLookup().offer(tokens(*text, *range(m)), 48) for m in (2, 4, 8)]
    for m, made in zip((2, 4, 8), offers, strict=True):
        assert made.tokens == tuple([*text, *range(m)][m : m + len(made.tokens)])
        assert made.confidence == SURE[m : m + len(made.tokens)]
    assert 0 < len(offers[0].tokens) < len(offers[1].tokens) < len(offers[2].tokens)


@pytest.mark.parametrize("limit", [1, 5, 11, 48])
@pytest.mark.parametrize("match", [2, 100, 400])
def test_lookup_never_offers_more_than_the_limit(limit: int, match: int) -> None:
    """Matches longer than there are degrees of sureness are as sure as it gets."""
    text = [*range(500), *range(match)]
    made = SuffixLookup(always(1.0)).offer(tokens(*text), limit)
    assert made.tokens == tuple(text[match : match + limit])
    assert len(made.confidence) == len(made.reach) == limit


def test_lookup_follows_edits_like_a_lookup_made_anew() -> None:
    """Appends, shortens, changes in the middle, another conversation: the state is that of the tokens."""
    rng = np.random.default_rng(1)
    kept, text = SuffixLookup(always(1.0)), [0]
    for _ in range(300):
        change = rng.integers(5)
        if change == 0:
            text = text[: rng.integers(1, len(text) + 1)]
        elif change == 1:
            text = [*text[:-1], int(rng.integers(3))]
        elif change == 2 and rng.random() < 0.2:
            text = rng.integers(0, 3, 5).tolist()
        text = [*text, *rng.integers(0, 3, rng.integers(0, 6)).tolist()]
        made = kept.offer(tokens(*text), 6)
        matched = longest_repeat(text)
        assert bool(made.tokens) == (matched >= MIN_MATCH)
        assert kept.automaton.tokens == text and kept.automaton.match[0] == matched


def test_lookup_appends_what_is_new_and_does_not_begin_again() -> None:
    """O(1) a token: the automaton that grows is one and the same."""
    lookup = SuffixLookup()
    lookup.sync(tokens(1, 2, 3))
    before = lookup.automaton
    for n in (4, 5, 6):
        lookup.sync(tokens(*range(1, n + 1)))
        assert lookup.automaton is before
    lookup.sync(tokens(1, 9, 3, 4))
    assert lookup.automaton is not before


def test_a_picture_twice_is_no_repetition_and_token_0_is_one() -> None:
    """Cells of a picture are negative and never guessed: what follows it the second time is, behind text."""
    picture = media.cells(b"a cat", 4, 4).tolist()
    lookup = SuffixLookup(always(1.0))
    assert lookup.offer(tokens(*picture, 0, 5, *picture), 4).tokens == ()
    assert lookup.offer(tokens(*picture, 0, 5, 7, 0, *picture, 0, 5), 4).tokens == (7, 0)


def test_lookup_does_not_keep_a_view_of_the_callers_tokens() -> None:
    """The loop writes guesses behind its tokens in the same array."""
    lookup, held = SuffixLookup(always(1.0)), tokens(1, 2, 3, 1, 2)
    assert lookup.offer(held, 4).tokens[0] == 3
    held[:] = 7
    lookup.sync(held)
    assert lookup.automaton.tokens == [7] * 5


# --- recycling


def seen(
    before: Sequence[int], guesses: Sequence[int], truth: Sequence[int], fresh: Sequence[int] | None = None
) -> Judged:
    """Returns what a greedy target showed: `truth` is what it finds likeliest at each place it looked at."""
    accepted = next((i for i, (x, y) in enumerate(zip(guesses, truth, strict=False)) if x != y), len(guesses))
    fresh = truth[: accepted + 1] if fresh is None else fresh
    draft = Draft(tuple(guesses), tuple(map(point_mass, guesses)), ("lookup",) * len(guesses))
    return Judged(tokens(*before, *fresh), len(fresh), draft, accepted, tuple(map(point_mass, truth)))


def recycling(*texts: Sequence[int]) -> TokenRecycling:
    """Returns a table that saw plain decoding of the texts."""
    table = TokenRecycling(50, always(1.0))
    for text in texts:
        for n in range(2, len(text)):
            table.learn(seen(text[:n], (), (text[n],)))
    return table


def test_recycling_walks_what_the_target_last_found_likeliest() -> None:
    table = recycling([1, 2, 3, 4, 5])
    assert table.offer(tokens(9, 1, 2), 10).tokens == (3, 4, 5)
    assert table.offer(tokens(9, 1, 2), 2).tokens == (3, 4)
    table.learn(seen([8, 1, 2], (), (7,)))
    assert table.offer(tokens(9, 1, 2), 10).tokens == (7,), "the latest counts"


def test_recycling_goes_by_two_tokens_and_by_one_where_they_are_new() -> None:
    table = recycling([1, 2, 3], [4, 2, 5])
    assert table.offer(tokens(1, 2), 1).tokens == (3,)
    assert table.offer(tokens(4, 2), 1).tokens == (5,)
    known, new = (table.offer(tokens(first, 2), 1) for first in (4, 9))
    assert new.tokens == (5,), "what followed 2 the last time"
    assert new.confidence[0] < known.confidence[0]


def test_recycling_learns_from_guesses_that_were_rejected_too() -> None:
    table = TokenRecycling(50, always(1.0))
    table.learn(seen([1, 2], (7, 8), (3, 9, 6)))
    assert table.offer(tokens(1, 2), 1).tokens == (3,)
    assert table.offer(tokens(2, 7), 1).tokens == (9,), "behind a guess that did not stay"
    assert table.offer(tokens(7, 8), 1).tokens == (6,)


def test_recycling_learns_the_likeliest_token_of_a_distribution() -> None:
    p = Distribution(np.array([3, 5, 6]), np.array([0.2, 0.5, 0.3]))
    table = TokenRecycling(50, always(1.0))
    table.learn(Judged(tokens(1, 2, 6), 1, Draft(), 0, (p,)))
    assert table.offer(tokens(1, 2), 1).tokens == (5,)


def test_recycling_is_surer_the_steadier_the_target_is() -> None:
    table, before = recycling([1, 2, 3]), 0.0
    for _ in range(STEADY):
        sure = table.offer(tokens(1, 2), 1).confidence[0]
        assert before < sure <= 1
        before = sure
        table.learn(seen([1, 2], (), (3,)))
    for _ in range(3):
        assert table.offer(tokens(1, 2), 1).confidence[0] <= 1
        table.learn(seen([1, 2], (), (3,)))
    table.learn(seen([1, 2], (), (4,)))
    assert table.offer(tokens(1, 2), 1).confidence[0] < before, "a change of mind begins anew"


def test_recycling_ends_a_walk_in_a_circle() -> None:
    assert len(recycling([1, 1, 1, 1]).offer(tokens(1, 1), 48).tokens) == LONGEST_WALK


def test_recycling_says_nothing_at_the_beginning_of_a_text_or_where_it_knows_nothing() -> None:
    table = recycling([1, 2, 3])
    assert table.offer(tokens(2), 5) == table.offer(tokens(1, 9), 5) == Offer()
    table.learn(seen([4], (), (5,)))  # one token before it
    table.learn(seen([4], (6, 7), (5, 8, 9)))
    assert table.offer(tokens(4, 6), 1).tokens == (8,)


def test_recycling_keeps_its_size_and_never_mistakes_a_pair_for_another() -> None:
    """Pairs share places in the table; what another pair left there is no answer."""
    rng = np.random.default_rng(0)
    table = TokenRecycling(1000, always(1.0))
    last: dict[tuple[int, int], int] = {}
    single: dict[int, int] = {}
    for a, b, c in rng.integers(0, 1000, (60_000, 3)).tolist():
        table.learn(seen([a, b], (), (c,)))
        last[a, b] = single[b] = c
    assert table._pair.shape == (PLACES, 4)
    right = 0
    for (a, b), c in list(last.items())[-2000:]:
        generated = table.offer(tokens(a, b), 1).tokens[0]
        assert generated in (c, single[b])
        right += generated == c
    assert right > 1900, "recent pairs are there"
    for other in range(1000):  # pairs that have a token in common share places, too
        table.learn(seen([7, other], (), ((other + 1) % 1000,)))
        table.learn(seen([other, 9], (), (other,)))
    for other in set(range(1000)) - {7, 9}:
        assert table.offer(tokens(7, other), 1).tokens == ((other + 1) % 1000,)
        assert table.offer(tokens(other, 9), 1).tokens[0] in (other, 999)


# --- offers


def test_an_offer_ends_where_it_becomes_hopeless() -> None:
    made = offer(range(10), [0.5] * 10, always(0.3))
    assert made.reach == pytest.approx((0.3, 0.09))
    assert made.tokens == (0, 1) and made.confidence == (0.5, 0.5) and 0.3**3 < HOPELESS
    assert offer([1], [0.5], always(0.01)) == Offer((1,), (0.5,)), "watched, and not offered"
    assert offer([], [], always(1.0)) == Offer()


# --- the draft model


def model_drafter(
    s: Sampling = PLAIN, *, n_ctx: int = 100, n_vocab: int = V, odds: Odds | None = None
) -> DraftModel:
    return DraftModel(Sampler(s, n_vocab), n_ctx=n_ctx, n_vocab=n_vocab, odds=odds)


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


def test_a_draft_that_reads_no_pictures_reads_the_text_or_what_is_behind_them() -> None:
    picture = media.cells(b"a cat", 4, 4).tolist()
    text, model = [1, 2, *picture, 3, 4], TableModel(V, seed=4)
    for how, read in (("left out", [1, 2, 3, 4]), ("not crossed", [3, 4])):
        drafter = DraftModel(Sampler(GREEDY, V), n_ctx=100, n_vocab=V, media=how)
        guess, asks = drafted(drafter, text, 3, model=model)
        assert len(guess.tokens) == len(asks) == 3
        assert all(ask.tokens.tolist() == read for ask in asks)
        assert {ask.skipped for ask in asks} == {0 if how == "left out" else 6}


def test_a_draft_with_a_shorter_memory_reads_the_end_of_the_text() -> None:
    """It used to fall silent where the text outgrew it. Its guesses are those of a text that begins later."""
    rng = np.random.default_rng(3)
    text = rng.integers(0, V, 400).tolist()
    model, begins = TableModel(V, seed=4, order=None), []
    for n in range(60, 400, 7):
        guess, asks = drafted(model_drafter(GREEDY, n_ctx=80), text[:n], 6, model=model)
        skipped = {ask.skipped for ask in asks}
        begins.append(skipped.pop())
        assert not skipped and all(ask.tokens.tolist() == text[begins[-1] : n] for ask in asks)
        assert all(ask.tokens.size + len(ask.tail) <= 80 for ask in asks)
        for i, token in enumerate(guess.tokens):
            assert token == int(model.row([*text[begins[-1] : n], *guess.tokens[:i]])[:V].argmax())
        assert len(guess.tokens) == 6
    assert begins[0] == 0 and begins == sorted(begins) and len(set(begins)) < len(begins) / 2


def test_what_is_drawn_at_a_place_does_not_depend_on_where_the_draft_begins_to_read() -> None:
    """Coupled guesses are drawn by their place in the text, so a short memory must not move it."""
    places: list[int] = []

    class Noting(Coupled):
        def draw(self, distribution: Distribution, position: int) -> int:
            places.append(position)
            return super().draw(distribution, position)

    text = np.random.default_rng(3).integers(0, V, 200).tolist()
    drafted(model_drafter(n_ctx=80), text, 3, model=TableModel(V, seed=4), rule=Noting(1))
    assert places == [200, 201, 202]


def test_ids_past_the_shared_vocabulary_are_never_guessed() -> None:
    """The draft's rows may be longer than what both know, with large logits in the padding."""
    model = TableModel(V, seed=5, padding=7)
    for s in (PLAIN, GREEDY, Sampling()):
        guess, _ = drafted(model_drafter(s), [1, 2, 3], 20, model=model)
        assert len(guess.tokens) == 20 and max(guess.tokens) < V


def test_text_that_the_draft_cannot_read_is_not_drafted_upon() -> None:
    """A target may have a few tokens more; once one is in the text the draft is not asked."""
    drafter, model = model_drafter(n_ctx=500, n_vocab=V), TableModel(V, seed=6)
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


def likely(least: float) -> Callable[[Ask], bool]:
    """Returns a driver's answer by the shape of q: a guess may be drawn where its reach is large enough."""
    return lambda ask: ask.reach[0] >= least


def test_drafting_stops_before_it_draws_from_an_unsure_distribution() -> None:
    model, drawn = TableModel(V, seed=7, spread=3), 0

    class Spy(Coupled):
        def draw(self, distribution: Distribution, position: int) -> int:
            nonlocal drawn
            drawn += 1
            return super().draw(distribution, position)

    lengths = set()
    for start in range(V):
        drawn = 0
        drafter = model_drafter(odds=proportional(0.0, 1.0))
        guess, asks = drafted(drafter, [start, 1], 8, model=model, rule=Spy(1), draws=likely(0.4))
        assert drawn == len(guess.tokens)
        assert np.prod([drafter.odds.of(q.probs.max()) for q in guess.probs]) >= 0.4
        assert len(asks) == min(len(guess.tokens) + 1, 8), "one look more than guesses: the unsure one"
        lengths.add(len(guess.tokens))
    assert len(lengths) > 1


def test_each_guess_is_asked_for_twice_by_its_place_and_by_how_sure_the_draft_is() -> None:
    asks: list[Ask] = []
    drafter = DraftModel(
        Sampler(PLAIN, V), n_ctx=100, n_vocab=V, odds=proportional(0.0, 1.0),
        places=Odds((0.5,) * BINS, [900, 800, *[700] * (BINS - 2)], [1000] * BINS),
    )  # fmt: skip
    model = TableModel(V, seed=8)
    drafting = drafter.draft(tokens(1, 2), 3, Coupled(1), otherwise=(0.5, 0.2))
    ask = next(drafting)
    while True:
        asks.append(ask)
        row = np.stack([model.row([*ask.tokens.tolist(), *ask.tail])]) if ask.rows else NO_ROWS
        try:
            ask = drafting.send(row)
        except StopIteration as end:
            guess = end.value
            break
    assert [ask.rows for ask in asks] == [1, 0] * 3
    assert [ask.tail for ask in asks] == [guess.tokens[: i // 2] for i in range(6)]
    assert [ask.otherwise for ask in asks] == [(0.5, 0.2), *[()] * 5], "the free guess competes once"
    sure = [float(q.probs.max()) for q in guess.probs]
    assert guess.confidence == pytest.approx(sure)
    by_shape = np.cumprod([drafter.odds.of(c) for c in sure])
    first, second, third = drafter.places.onward(3)
    assert (first, second, third) == pytest.approx((0.9, 0.8, 0.7), abs=0.01)
    assert asks[0].reach == pytest.approx((first, first * second, first * second * third)), "all to come"
    assert [asks[i].reach[0] for i in (1, 3, 5)] == pytest.approx(by_shape)
    assert asks[2].reach[0] == pytest.approx(by_shape[0] * second)
    assert asks[4].reach[0] == pytest.approx(by_shape[1] * third)
    assert guess.reach == (), "it was drawn: it may not be cut"


def test_the_reach_of_a_draft_to_come_ends_where_it_is_hopeless_and_is_never_empty() -> None:
    for odds, limit, least, most in ((0.5, 48, 4, 6), (1.0, 48, 30, 48), (1.0, 7, 7, 7), (0.001, 48, 1, 1)):
        drafter = model_drafter()
        drafter.places = always(odds)
        _, asks = drafted(drafter, [1, 2], limit)
        assert least <= len(asks[0].reach) <= most


def test_a_draft_refused_at_first_is_nothing_and_draws_nothing() -> None:
    model = TableModel(V, seed=8)
    assert drafted(model_drafter(), [1, 2], 4, model=model, draws=lambda ask: False)[0] == Draft()
    assert drafted(model_drafter(), [1, 2], 4, model=model, granted=0)[0] == Draft()


@pytest.mark.parametrize("n_vocab", [2, 5, 100, 1000, 4097])
def test_how_sure_a_greedy_choice_is_comes_from_the_two_largest_logits(n_vocab: int) -> None:
    """A softmax over the whole vocabulary would say the same at a hundred times the cost."""
    rng = np.random.default_rng(n_vocab)
    for _ in range(50):
        row = rng.normal(0, 3, n_vocab).astype(np.float32)
        row[rng.integers(n_vocab)] = row.max()  # now and then a tie
        second, first = np.sort(row)[-2:].astype(np.float64)
        best = int(row.argmax())
        assert lead(row, best) == pytest.approx(1 / (1 + np.exp(second - first)))
        assert 0.5 <= lead(row, best) <= 1
    assert lead(np.array([3], np.float32), 0) == 1


def test_the_draft_model_learns_which_of_its_guesses_were_reached_and_kept() -> None:
    drafter = model_drafter(odds=Odds((0.5,) * BINS))
    drafter.places = always(0.5)
    draft = Draft((1, 2, 3, 4), (point_mass(1),) * 4, ("model",) * 4, (0.95, 0.85, 0.75, 0.65))
    drafter.learn(Judged(tokens(1, 2, 3), 3, draft, 2, ()))
    assert drafter.odds.seen == [0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
    assert drafter.odds.accepted == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1], "the fourth was never reached"
    assert drafter.places.seen[:4] == [1, 1, 1, 0] and drafter.places.accepted[:4] == [1, 1, 0, 0]


# --- no second evaluation


def run_counting(
    target: TableModel, draft: TableModel, s: Sampling, k: int, rule: Rule
) -> tuple[list[fakes.Round], list[list[int]]]:
    """Returns the rounds, and for each the number of tokens of every call of the draft."""
    calls: list[list[int]] = []
    seen = 0

    class Watching(fakes.Restless):
        def observe(self, round_: fakes.Round, seconds: float) -> float:
            nonlocal seen
            calls.append(draft.decoded[seen:])
            seen = len(draft.decoded)
            return 1.0

    rounds = fakes.speculate(
        target, [1, 2, 3, 4, 0, 1], sampler=Sampler(s, V), rule=rule, draft=draft,
        drafter=Competition([], model_drafter(s)),
        pace=Watching([k]), max_tokens=60,
    )  # fmt: skip
    return rounds, calls


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
def test_the_draft_evaluates_one_token_after_a_rejection_and_two_after_full_acceptance(
    k: int, judge: fakes.Judge
) -> None:
    """No token is evaluated twice by either model."""
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


# --- the competition


class Offering:
    """A guesser that offers what it is told to."""

    def __init__(self, name: str, guesses: Sequence[int], odds: float) -> None:
        self.name, self.guesses, self.odds = name, guesses, always(odds)
        self.heard: list[Judged] = []

    def offer(self, tokens: np.ndarray, limit: int) -> Offer:
        return offer(self.guesses[:limit], [0.55] * limit, self.odds)

    def learn(self, judged: Judged) -> None:
        self.heard.append(judged)


def test_an_offer_is_drafted_as_far_as_the_grammar_allows_it() -> None:
    """What is rejected for certain is not evaluated, and an offer that fits goes before a longer one."""
    pieces = [b"a", b"b", b"c", b""]
    grammar = Matchers(lambda shown: pieces, frozenset({3}), 4)
    for expression, wanted in (("[ab]+", (0, 1)), ("[abc]+", (0, 1, 2)), ("b+", (1, 1)), ("c+", ())):
        offers = Offering("long", [0, 1, 2], 0.9), Offering("short", [1, 1], 0.9)
        masks = grammar.masks(Grammar("regex", expression), 2)
        draft, asks = drafted(Competition(offers, masks=masks), [0, 1], 4)
        assert (draft.tokens, len(draft.probs), asks) == (wanted, len(wanted), [])


def test_the_offer_that_promises_most_tokens_is_taken() -> None:
    short, long = Offering("short", [1], 0.9), Offering("long", [2, 3, 4], 0.6)
    for guessers in ([short, long], [long, short]):
        guess, asks = drafted(Competition(guessers), [1], 9)
        assert guess.tokens == (2, 3, 4) and guess.sources == ("long",) * 3 and not asks
        assert guess.reach == pytest.approx((0.6, 0.36, 0.216)), "and it may be cut anywhere"
        assert drafted(Competition(guessers), [1], 1)[0].tokens == (1,), "one token: the surer"
    assert drafted(Competition([]), [1, 2], 2)[0] == Draft()


def test_the_pace_chooses_between_the_best_offer_and_the_model() -> None:
    model = TableModel(V, seed=11)
    free = Offering("free", [3, 3, 3], 0.6)
    both = Competition([Offering("worse", [2], 0.3), free], model_drafter())
    guess, asks = drafted(both, [1, 2, 3, 4], 2, model=model)
    assert guess.sources == ("model", "model") and len(asks) == 2 and guess.reach == ()
    assert asks[0].otherwise == pytest.approx((0.6, 0.36))
    guess, asks = drafted(both, [1, 2, 3, 4], 2, model=model, granted=0)
    assert guess.sources == ("free", "free") and len(guess.reach) == 2
    guess, asks = drafted(both, [1, 2, 3, 4], 2, model=model, draws=lambda ask: False)
    assert guess.sources == ("free", "free"), "also where the model looked and was not sure"


def test_the_model_may_be_all_there_is() -> None:
    guess, asks = drafted(Competition([], model_drafter()), [1, 2], 2, model=TableModel(V, seed=11))
    assert guess.sources == ("model", "model") and asks[0].otherwise == ()


def test_offers_are_scored_whether_taken_or_not_by_what_was_emitted_instead() -> None:
    right, wrong = Offering("right", [7, 8, 9], 0.5), Offering("wrong", [7, 1, 9], 0.5)
    both = Competition([right, wrong])
    drafted(both, [1], 9)
    judged = Judged(tokens(1, 7, 8), 2, Draft(), 0, ())
    both.learn(judged)
    assert (right.odds.seen[5], right.odds.accepted[5]) == pytest.approx((1.98, 1.98))
    assert (wrong.odds.seen[5], wrong.odds.accepted[5]) == pytest.approx((1.98, 0.98))
    assert right.heard == wrong.heard == [judged]
    both.learn(judged)  # of a round in which nobody was asked
    assert right.odds.seen[5] == pytest.approx(1.98) and len(right.heard) == 2


def test_the_model_learns_from_its_own_drafts_alone() -> None:
    both = Competition([Offering("free", [3], 0.9)], model_drafter())
    assert both.model
    free = Draft((3,), (point_mass(3),), ("free",), (0.5,), (0.9,))
    both.learn(Judged(tokens(1, 3), 1, free, 1, ()))
    assert sum(both.model.odds.seen) == 0
    own = Draft((3,), (point_mass(3),), ("model",), (0.5,))
    both.learn(Judged(tokens(1, 3), 1, own, 1, ()))
    assert sum(both.model.odds.seen) == 1


def test_no_drafter_asks_and_guesses_nothing() -> None:
    assert drafted(NoDrafter(), [1, 2], 5) == (Draft(), [])


def test_a_draft_is_cut_in_all_its_parts() -> None:
    draft = Draft((1, 2, 3), tuple(map(point_mass, (1, 2, 3))), ("a", "b", "c"), (0.9, 0.8, 0.7), (1, 0.5, 0))
    cut = draft.cut(2)
    assert (cut.tokens, len(cut.probs), cut.sources) == ((1, 2), 2, ("a", "b"))
    assert (cut.confidence, cut.reach) == ((0.9, 0.8), (1, 0.5))
    assert draft.cut(3) is draft and draft.cut(9) is draft and draft.cut(0) == Draft()


# --- exactness of drafting, by enumeration


class Discarding(DraftModel):
    """The trap: throws the last guess away where it turned out to be an unlikely one."""

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule, otherwise: Reach = ()) -> Drafting:
        guess = yield from super().draft(tokens, limit, rule, otherwise)
        kept = len(guess.tokens)
        while kept and guess.probs[kept - 1].prob(guess.tokens[kept - 1]) < 0.5:
            kept -= 1
        return guess.cut(kept)


def round_error(
    drafter: type[DraftModel], judge: fakes.Judge, seed: int, least: float, guessers: Sequence[Guesser] = ()
) -> tuple[float, set[int]]:
    """Returns how far one round with the drafter is from the target, over all that chance can do, and the
    lengths of its drafts. Guesses are drawn while their reach, which follows the shape of q, is `least`."""
    k = 2
    n = 3
    target = TableModel(n, seed=seed, order=None)
    draft = TableModel(n, seed=seed + 1000, order=None)
    lengths: set[int] = set()
    sampler = fakes.Remembering(PLAIN, n)

    def run(world: fakes.World) -> tuple[int, ...]:
        rule = Independent(world, judge)  # type: ignore[arg-type]
        model = drafter(sampler, n_ctx=50, n_vocab=n, odds=proportional(0.0, 1.0))
        both = Competition(guessers, model)
        guess, _ = drafted(both, [0, 1], k, model=draft, rule=rule, draws=likely(least))
        lengths.add(len(guess.tokens))
        verdict = rule.verify(guess, lambda i: sampler(target.row([0, 1, *guess.tokens[:i]])), 2)
        return (*guess.tokens[: verdict.accepted], verdict.token)

    p = lambda prefix: sampler(target.row([0, 1, *prefix]))  # noqa: E731
    found = fakes.law(run)
    return fakes.distance(fakes.completed(found, p, k + 1), fakes.joint(p, k + 1)), lengths


@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
@pytest.mark.parametrize(("least", "lengths"), [(0.0, {2}), (0.4, {1, 2}), (0.6, {0, 1, 2})])
def test_stopping_before_drawing_leaves_the_distribution_exact(
    judge: fakes.Judge, least: float, lengths: set[int]
) -> None:
    found: set[int] = set()
    for seed in range(12):
        error, drawn = round_error(DraftModel, judge, seed, least)
        assert error < 1e-12
        found |= drawn
    assert found == lengths


@pytest.mark.parametrize("judge", [verify_tokens, verify_block])
def test_a_free_guess_in_the_place_of_one_that_was_not_drawn_leaves_it_exact(judge: fakes.Judge) -> None:
    """The model's look at the shape of q decides who guesses; its guesses were not drawn yet."""
    found: set[int] = set()
    for seed in range(12):
        error, drawn = round_error(DraftModel, judge, seed, 0.6, [Offering("free", [1, 0], 0.5)])
        assert error < 1e-12
        found |= drawn
    assert found == {1, 2}


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


def test_a_guesser_that_was_wrong_for_long_is_read_again_once_it_is_right() -> None:
    """It fell silent after five rejections: what is not offered was not counted, and never would be."""

    class Stubborn:
        name = "stubborn"

        def __init__(self) -> None:
            self.odds = Odds((0.1,) * 5 + (0.8,) * 5)

        def for_text(self) -> Stubborn:
            return self

        def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
            return offer([7], [0.05], self.odds)

        def learn(self, judged: Judged) -> None:
            pass

    guesser = Stubborn()
    competition = Competition([guesser])
    for generated, rounds, heard in ((3, 100, False), (7, 300, True)):
        for _ in range(rounds):
            guess, _asks = drafted(competition, [1, 2], 4)
            judged = tokens(1, 2, generated)
            accepted = int(bool(guess.tokens) and generated == 7)
            competition.learn(Judged(judged, 1, guess, accepted, (point_mass(generated),)))
        assert bool(drafted(competition, [1, 2], 4)[0].tokens) == heard


# --- the temperature of a draft


@pytest.mark.parametrize("temperature", [1.0, 20.0, 100.0])
def test_a_flat_draft_over_a_large_vocabulary_teaches_its_temperature_nothing(temperature: float) -> None:
    """Past some 10,000 tokens all may be slight; the likeliest of none was asked for: the engine ended."""
    rng = np.random.default_rng(31)
    sampler = Sampler(Sampling(temperature=temperature, top_p=1, min_p=0), 20_000)
    p, q = (sampler(rng.normal(0, 3, 20_000).astype(np.float32)) for _ in range(2))
    learned = DraftTemperature()
    learned.learn(p, q)
    assert learned.seen == (temperature == 1)


@pytest.mark.parametrize("suits", range(len(FACTORS)))
def test_the_temperature_that_suits_a_draft_is_learned(suits: int) -> None:
    """The target's distribution is the draft's own at one of the factors."""

    def at(logits: NDArray[np.float32], factor: float) -> Distribution:
        return Sampler(replace(PLAIN, temperature=factor), V)(logits)

    rng, learned = np.random.default_rng(3), DraftTemperature()
    for _ in range(80):
        logits = rng.normal(0, 3, V).astype(np.float32)
        learned.learn(at(logits, FACTORS[suits]), at(logits, learned.factor))
    assert FACTORS[learned.chosen] == FACTORS[suits]
    overlap, compared = learned.acceptance() or (0.0, 0.0)
    assert overlap > 0.95 and 0 < compared < 1


# --- history


def written(pool: TextPool, *texts: Sequence[int], at_once: int = 5) -> None:
    """Writes texts into a pool as their rounds would, in turn."""
    writers = [(History(pool), tokens(*text)) for text in texts]
    for n in range(5, max(map(len, texts)) + at_once, at_once):
        for history, text in writers:
            if (part := text[:n]).size > max(history._noted, 4):
                history.learn(Judged(part, min(at_once, part.size - 4), Draft(), 0, ()))
    pool.settle()


def test_what_another_text_went_on_with_is_offered() -> None:
    text, other = list(range(100, 160)), list(range(200, 260))
    history = History(TextPool(1 << 12))
    written(history.pool, text, other)
    for at in (10, 25, 58):
        found = history.for_text().offer(tokens(7, 7, *text[at - 8 : at]), 5).tokens
        assert found[:2] == tuple(text[at : at + 2])
    assert history.offer(tokens(7, 7, 103, 104, 105, 106), 8).tokens[:3] == (107, 108, 109)
    assert history.offer(tokens(103, 104, 105), 8) == Offer(), "three tokens are too few"
    assert history.offer(tokens(3, 104, 105, 106), 8) == Offer()


def test_a_question_that_is_asked_again_is_surer_of_its_answer_than_one_that_ends_alike() -> None:
    """Both end as a chat template does: eight tokens matched, and trust came with half of the answer."""
    ending, answer, pool = list(range(1, 9)), range(700, 720), TextPool(1 << 12)
    question, other = [*range(100, 160), *ending], [*range(300, 360), *ending]
    history = History(pool)
    history.learn(Judged(tokens(*question, *answer), len(answer), Draft(), 0, ()))
    pool.settle()
    again, alike = (History(pool).offer(tokens(*asked), 4) for asked in (question, other))
    assert again.tokens == alike.tokens == tuple(answer[:4])
    assert again.confidence[0] > 0.9 > alike.confidence[0]


def test_no_continuation_crosses_into_another_text() -> None:
    pool = TextPool(1 << 12)
    written(pool, list(range(100, 120)), list(range(200, 220)), list(range(300, 320)))
    found = History(pool).offer(tokens(*range(112, 120)), 9)
    assert found.tokens == ()
    assert set(History(pool).offer(tokens(*range(202, 210)), 30).tokens) <= set(range(210, 220))


def test_the_latest_of_two_continuations_wins_and_old_texts_give_way() -> None:
    pool = TextPool(1 << 7)
    written(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12])
    written(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22])
    assert History(pool).offer(tokens(6, 7, 8, 9), 2).tokens[:1] == (20,)
    written(pool, list(range(1000, 1200)))
    assert History(pool).offer(tokens(6, 7, 8, 9), 2) == Offer()
    assert History(pool).offer(tokens(1150, 1151, 1152, 1153), 2).tokens == (1154, 1155)


def test_texts_are_found_again_however_many_were_written_since() -> None:
    """The maps of n-grams grow with them: in small ones they would take each other's places."""
    rng, pool = np.random.default_rng(5), TextPool(1 << 18)
    texts = [rng.integers(0, 50_000, 4000).tolist() for _ in range(15)]
    for n, text in enumerate(texts):
        written(pool, text, at_once=500)
        for known in texts[: n + 1 : 7]:
            at = rng.integers(100, 3900, 50).tolist()
            found = [History(pool).offer(tokens(*known[i - 20 : i]), 3).tokens for i in at]
            assert sum(one == tuple(known[i : i + 3]) for i, one in zip(at, found, strict=True)) > 45
        assert History(pool).offer(tokens(*text[-20:]), 3).tokens == (), "its end goes on with nothing"


def test_a_pools_hashes_are_the_same_one_by_one_and_many_at_once() -> None:
    grams = np.random.default_rng(0).integers(-(2**31), 2**31, (200, 8)).astype(np.int32)
    assert [int(one) for one in history_module._hashes(grams)] == [
        history_module._hash(row) for row in grams.tolist()
    ]
