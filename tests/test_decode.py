"""The loop emits exactly what the target alone would, whatever guesses: by enumeration and by chi-square.

Everything here runs `generate` in the engine as it is, on table models. Each statistical test fails at a
rate of 1e-6 if all is well; seeds are fixed.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import fakes
import numpy as np
import pytest
from fakes import Remembering, Restless, TableModel, speculate, text_of, tokens_of
from filling import fill_always
from wrong_rules import flipped, without_residual

from edgespec.core.drafters import Drafter, Drafting, Guesser, NoDrafter, Offer, offer
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.free import free_guessers
from edgespec.core.drafters.history import History, TextPool
from edgespec.core.loop import Limits, generate
from edgespec.core.media import cells
from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.odds import BINS, Odds, proportional
from edgespec.core.pace.pace import FixedLength, Pace
from edgespec.core.request import Scoring
from edgespec.core.text import TextRelease
from edgespec.core.values import FREE, LONGEST_DRAFT, Ask, Draft, Judged, Reach, Round
from edgespec.core.verify import Coupled, Independent, Rule, Verdict, verify_block, verify_tokens
from edgespec.errors import FatalDecodeError, PromptTooLongError, SettingError
from edgespec.sampling.sampler import Sampler, Sampling, point_mass

GREEDY = Sampling(temperature=0)
USUAL = Sampling(temperature=0.8, top_p=0.95, min_p=0)
PUNISHING = Sampling(
    temperature=0.8, top_p=0.95, min_p=0.02, repeat_penalty=1.2, frequency_penalty=0.3, penalty_last_n=3
)
RULES = pytest.mark.parametrize("judge", [verify_block, verify_tokens])
DRAFTERS = ("model", *FREE, "all")


def earlier(n_vocab: int) -> TextPool:
    """Returns earlier texts, which have little to do with those to come: the same ones each time."""
    pool = TextPool(1 << 12)
    pool.add(np.random.default_rng(0).integers(0, n_vocab, 3000).astype(np.int32), 3000, pool)
    return pool


def drafter_named(name: str, s: Sampling, n_vocab: int, n_ctx: int = 512) -> Drafter:
    """Returns a drafter to whom a free guess seems at first a little likelier than one of the model."""
    if name == "none":
        return NoDrafter()
    places = Odds((0.6,) * BINS)
    model = DraftModel(
        Remembering(s, n_vocab), n_ctx=n_ctx, n_vocab=n_vocab, odds=proportional(0.0, 1.0), places=places
    )
    made = free_guessers(n_vocab, lambda token: b"\n    ")  # to who guesses from text, something to go by
    free = [one.of(earlier(n_vocab)) if isinstance(one, History) else one for one in made]
    for i, one in enumerate(free):
        one.odds = Odds((max(0.6, 0.7 - 0.05 * i),) * BINS)
    if name == "all":
        return Competition(free, model)
    only = [one for one in free if one.name == name]
    return Competition(only, None if only else model)


class Reciter:
    """A drafter that guesses what it is told to, as far as the limit allows."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self.limits: list[int] = []
        self.heard: list[Judged] = []

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule) -> Drafting:
        self.limits.append(limit)
        guess = self.tokens[:limit]
        return Draft(guess, tuple(map(point_mass, guess)), ("reciter",) * len(guess))
        yield

    def learn(self, judged: Judged) -> None:
        self.heard.append(judged)


class Script(fakes.OneSequence):
    """A target that says a given text, then again from its beginning: row i favours token i of the text."""

    def __init__(self, *text: int, n_vocab: int = 26) -> None:
        self.text, self.n_vocab = text, n_vocab
        self.evaluated = 0

    def missing(self, want: fakes.Want) -> int:
        return want.rows

    def score(self, wants: Sequence[fakes.Want]) -> list[fakes.Rows]:
        (want,) = wants
        self.evaluated += want.rows
        n = want.tokens.size + len(want.tail)
        rows = np.zeros((want.rows, self.n_vocab), np.float32)
        for i, position in enumerate(range(n - want.rows + 1, n + 1)):
            rows[i, self.text[(position - 1) % len(self.text)]] = 9  # after a prompt of one token
        return [rows]


def recite(script: Script, drafter: Drafter | None = None, **wanted: object) -> list[Round]:
    """Speaks a script greedily behind the one-token prompt 25."""
    arguments: dict[str, object] = {"pace": LONGEST_DRAFT, "max_tokens": 12} | wanted
    return speculate(
        script,  # type: ignore[arg-type]
        [25],
        sampler=Sampler(GREEDY, script.n_vocab),
        rule=Coupled(0),
        drafter=drafter,
        **arguments,  # type: ignore[arg-type]
    )


# --- the same text, exactly


@pytest.mark.sample(5)
@pytest.mark.parametrize("s", [GREEDY, Sampling(temperature=0, repeat_penalty=1.3, presence_penalty=0.4)])
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("prompts", [5, pytest.param(16, marks=pytest.mark.slow)])
def test_greedy_text_is_that_of_plain_decoding(prompts: int, name: str, s: Sampling) -> None:
    n = 7
    target = TableModel(n, seed=1, order=3)
    draft = TableModel(n, seed=2, near=target, spread=0.6)
    rng = np.random.default_rng(3)
    accepted = 0
    for i in range(prompts):
        prompt = rng.integers(0, n, rng.integers(1, 12)).tolist()
        text = list(prompt)
        while len(text) < len(prompt) + 20:  # the plainest decoding there is
            text.append(next(iter(fakes.reference(target.row(text), text, s).probs)))
        for k in (0, 1, 2, 4, 9):
            for judge in (verify_block, verify_tokens)[: 1 + i % 2]:
                rounds = speculate(
                    target, prompt, sampler=Remembering(s, n), rule=Independent(rng, judge),
                    drafter=drafter_named(name, s, n), draft=draft, pace=k,
                )  # fmt: skip
                assert tokens_of(rounds) == tuple(text[len(prompt) :])
                accepted += sum(r.accepted for r in rounds)
    assert accepted > 3 * prompts, "and drafts were of use"


@pytest.mark.parametrize(
    ("filled", "s"),
    [
        (False, PUNISHING),
        (True, USUAL),
        pytest.param(False, USUAL, marks=pytest.mark.slow),
        pytest.param(True, PUNISHING, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("seeds", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_coupled_text_is_the_seeds_alone_for_every_drafter_and_3_paces(
    s: Sampling, filled: bool, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if filled:
        fill_always(monkeypatch)
    n, prompt = 6, [1, 2, 0, 1, 2]
    target = TableModel(n, seed=4)
    draft = TableModel(n, seed=5, near=target, spread=0.7)
    texts, accepted = set(), 0
    for seed in range(seeds):
        plain = tokens_of(speculate(target, prompt, sampler=Remembering(s, n), rule=Coupled(seed)))
        for name in DRAFTERS:
            for pace in (1, 4, Restless(least=0.3)):
                rounds = speculate(
                    target, prompt, sampler=Remembering(s, n), rule=Coupled(seed),
                    drafter=drafter_named(name, s, n), draft=draft, pace=pace,
                )  # fmt: skip
                assert tokens_of(rounds) == plain
                accepted += sum(r.accepted for r in rounds)
        texts.add(plain)
    assert len(texts) == seeds and accepted > 50 * seeds


def test_coupled_texts_of_two_choices_differ() -> None:
    target = TableModel(6, seed=4)
    texts = {
        tokens_of(speculate(target, [1], sampler=Sampler(USUAL, 6), rule=Coupled(7, c))) for c in range(5)
    }
    assert len(texts) == 5


def test_coupled_text_does_not_depend_on_the_sampling_of_the_draft() -> None:
    target = TableModel(6, seed=4)
    plain = tokens_of(speculate(target, [1, 2], sampler=Sampler(USUAL, 6), rule=Coupled(3)))
    for s in (GREEDY, Sampling(temperature=2, top_p=1, min_p=0), Sampling(top_k=1)):
        rounds = speculate(
            target, [1, 2], sampler=Sampler(USUAL, 6), rule=Coupled(3), draft=TableModel(6, seed=9),
            drafter=drafter_named("model", s, 6),
        )  # fmt: skip
        assert tokens_of(rounds) == plain


# --- the same distribution: by enumeration of all that chance can do in whole generations


def exact_law(
    target: TableModel,
    prompt: Sequence[int],
    end: int,
    max_tokens: int,
    p: Callable[[np.ndarray, list[int]], dict[int, float]],
) -> dict[tuple[int, ...], float]:
    """Returns the probability of every text by the target alone. p: row, history -> probabilities."""
    found: dict[tuple[int, ...], float] = {}

    def go_on(text: tuple[int, ...], weight: float) -> None:
        if len(text) == max_tokens or end in text:
            found[text] = weight
            return
        history = [*prompt, *text]
        for token, share in p(target.row(history), history).items():
            go_on((*text, token), weight * share)

    go_on((), 1.0)
    return found


def emitted(rounds: Sequence[Round], end: int) -> tuple[int, ...]:
    """Returns the tokens, and the end token where it ended them."""
    return (*tokens_of(rounds), *([end] if rounds[-1].finish == "stop" else []))


def loop_error(
    judge: fakes.Judge, name: str, pace: Callable[[], Pace | int], s: Sampling, max_tokens: int = 5,
    drafter: Callable[[Sampler, int], Drafter] | None = None, prompt: Sequence[int] = (0, 1, 1, 0, 0, 1),
) -> float:  # fmt: skip
    """Returns how far the law of whole generations is from the target's, token 2 being the end."""
    n, end = 3, 2  # whether 0 or 1 comes first, something like it came before
    target, draft = TableModel(n, seed=6, spread=0.5), TableModel(n, seed=7, spread=0.8)
    sampler = Remembering(s, n)

    def run(world: fakes.World) -> tuple[int, ...]:
        rounds = speculate(
            target, prompt, sampler=sampler, rule=Independent(world, judge),  # type: ignore[arg-type]
            drafter=drafter(sampler, n) if drafter else drafter_named(name, s, n), draft=draft, pace=pace(),
            max_tokens=max_tokens, end=[end],
        )  # fmt: skip
        return emitted(rounds, end)

    def p(row: np.ndarray, history: list[int]) -> dict[int, float]:
        distribution = sampler(row, history)
        return dict(zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True))

    return fakes.distance(fakes.law(run), exact_law(target, prompt, end, max_tokens, p))


@pytest.mark.sample(3)
@RULES
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("s", [USUAL, pytest.param(PUNISHING, marks=pytest.mark.slow, id="punishing")])
def test_whole_generations_have_the_targets_distribution_exactly(
    judge: fakes.Judge, name: str, s: Sampling
) -> None:
    assert loop_error(judge, name, lambda: 2, s) < 1e-12


PICTURE = cells(b"picture", 3, 3).tolist()
WITH_PICTURES = {
    "within": [0, 1, *PICTURE, 1, 0, 0, 1],
    "behind what comes again": [0, 1, *PICTURE, 0, 1],
    "just before": [0, 1, 1, 0, *PICTURE, 1],
}


class Echo:
    """A guesser that says what came behind this token the last time, whatever that is."""

    name = "lookup"

    def __init__(self) -> None:
        self.odds = Odds((0.7,) * BINS)

    def for_text(self) -> Guesser:
        return self

    def offer(self, tokens: np.ndarray, limit: int) -> Offer:
        earlier = np.flatnonzero(tokens[:-1] == tokens[-1])
        start = int(earlier[-1]) + 1 if earlier.size else tokens.size
        guesses = tokens[start : start + limit].tolist()
        return offer(guesses, [0.5] * len(guesses), self.odds)

    def learn(self, judged: Judged) -> None:
        pass


@pytest.mark.sample(6)
@pytest.mark.parametrize("where", WITH_PICTURES)
@pytest.mark.parametrize("name", ["echo", *DRAFTERS])
def test_a_picture_among_the_tokens_leaves_the_distribution_exact(name: str, where: str) -> None:
    """A guesser that offered a picture's cell ended the answer with a sentence about a lost picture."""
    echo = (lambda sampler, n: Competition([Echo()], None)) if name == "echo" else None
    found = loop_error(verify_tokens, name, lambda: 2, USUAL, 4, echo, WITH_PICTURES[where])
    assert found < 1e-12


@pytest.mark.sample(2)
@RULES
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_pace_that_changes_from_round_to_round_leaves_the_distribution_exact(
    judge: fakes.Judge, name: str
) -> None:
    """The target may also be asked for fewer rows than were guessed: lookup guesses past what is granted."""
    assert loop_error(judge, name, lambda: Restless((2, 1, 0)), USUAL) < 1e-12


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", DRAFTERS)
def test_rows_that_are_thrown_away_leave_the_distribution_exact(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = fill_always(monkeypatch)
    assert loop_error(verify_block, name, lambda: Restless((2, 1, 0)), USUAL) < 1e-12
    assert sum(added) > 100


@pytest.mark.sample(1)
@RULES
@pytest.mark.parametrize("name", ["model", "all"])
@pytest.mark.parametrize("least", [0.35, 0.5])
def test_a_pace_that_goes_by_the_shape_of_what_is_to_be_drawn_leaves_the_distribution_exact(
    judge: fakes.Judge, name: str, least: float
) -> None:
    """As a controller does: it refuses a guess after the draft looked, before it is drawn, and then a free
    one may stand in its place. What it refuses changes as the odds are learned, within a generation too."""
    refused = granted = 0

    class Counting(Restless):
        def grants_step(self, ask: Ask, lag: int) -> bool:
            nonlocal refused, granted
            said = super().grants_step(ask, lag)
            if not ask.rows:
                refused, granted = refused + (not said), granted + said
            return said

    assert loop_error(judge, name, lambda: Counting((2, 3), 1, least), USUAL) < 1e-12
    assert refused > 20 and granted > 20


LONGER = [
    ("model", 1, 6),
    ("model", 2, 6),
    ("model", 3, 5),
    ("lookup", 5, 7),
    ("recycling", 4, 7),
    ("lookahead", 4, 7),
]
LONGER += [("all", 3, 6), ("all", 4, 6)]


@pytest.mark.slow
@RULES
@pytest.mark.parametrize(("name", "k", "max_tokens"), LONGER)
def test_longer_generations_have_the_targets_distribution_exactly(
    judge: fakes.Judge, name: str, k: int, max_tokens: int
) -> None:
    assert loop_error(judge, name, lambda: k, PUNISHING, max_tokens) < 1e-12


def by_index(draft: Draft, p: Callable[[int], fakes.Distribution], rng: np.random.Generator) -> Verdict:
    """Subtracts the i-th largest of q from the i-th largest of p."""
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        if rng.random() * q.prob(token) >= p(i).prob(token):
            order = np.argsort(-p(i).probs)
            rest, m = p(i).probs.copy(), min(p(i).ids.size, q.ids.size)
            rest[order[:m]] -= np.sort(q.probs)[::-1][:m]
            rest = np.maximum(rest, 0)
            left = fakes.Distribution(p(i).ids, rest) if rest.any() else p(i)
            return Verdict(i, fakes.verify.draw(left, rng.random()))
    return Verdict(len(draft.tokens), fakes.verify.draw(p(len(draft.tokens)), rng.random()))


class Discarding(DraftModel):
    """Throws the last guesses away where they turned out to be unlikely ones."""

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule, otherwise: Reach = ()) -> Drafting:
        guess = yield from super().draft(tokens, limit, rule, otherwise)
        kept = len(guess.tokens)
        while kept and guess.probs[kept - 1].prob(guess.tokens[kept - 1]) < 0.6:
            kept -= 1
        return guess.cut(kept)


MUTANTS = pytest.mark.parametrize("mutant", [flipped, without_residual, by_index])


@pytest.mark.sample(1)
@MUTANTS
def test_a_broken_rule_is_seen_in_whole_generations(mutant: fakes.Judge) -> None:
    assert loop_error(mutant, "model", lambda: 2, USUAL, max_tokens=4) > 1e-3


@pytest.mark.parametrize("judge", [verify_block, pytest.param(verify_tokens, marks=pytest.mark.slow)])
def test_a_drafter_that_discards_after_looking_is_seen_in_whole_generations(judge: fakes.Judge) -> None:
    trap = lambda sampler, n: Competition([], Discarding(sampler, n_ctx=99, n_vocab=n))  # noqa: E731
    assert loop_error(judge, "", lambda: 2, USUAL, drafter=trap, max_tokens=4) > 1e-3


# --- the same distribution: by chi-square, with a real generator, longer texts and more tokens


def counted(
    judge: fakes.Judge, name: str, pace: Pace | int, s: Sampling, times: int,
    drafter: Callable[[Sampler, int], Drafter] | None = None,
) -> tuple[dict[str, Counter[tuple[int, ...]]], dict[str, dict[tuple[int, ...], float]], float]:  # fmt: skip
    """Returns counts and exact probabilities of the first and of the last 3 tokens of 6, and the acceptance.

    Token 4 ends the text; what is missing behind it counts as no token.
    """
    n, prompt, end, length = 5, [0, 1, 2, 0, 3, 0, 1], 4, 6
    target = TableModel(n, seed=8, spread=1.2)
    draft = TableModel(n, seed=9, near=target, spread=0.8)
    sampler = Remembering(s, n)
    guesser = drafter(sampler, n) if drafter else drafter_named(name, s, n)
    rule = Independent(np.random.default_rng(10), judge)
    counts: dict[str, Counter[tuple[int, ...]]] = {"head": Counter(), "tail": Counter()}
    drafted = accepted = 0
    for _ in range(times):
        rounds = speculate(
            target, prompt, sampler=sampler, rule=rule, drafter=guesser, draft=draft, pace=pace,
            max_tokens=length, end=[end],
        )  # fmt: skip
        text = emitted(rounds, end)
        counts["head"][text[:3]] += 1
        counts["tail"][text[3:]] += 1
        drafted += sum(r.drafted for r in rounds)
        accepted += sum(r.accepted for r in rounds)
    wanted: dict[str, dict[tuple[int, ...], float]] = {"head": {}, "tail": {}}
    plain = lambda row, history: fakes.reference(row, history, s).probs  # noqa: E731
    for text, weight in exact_law(target, prompt, end, length, plain).items():
        for part, piece in (("head", text[:3]), ("tail", text[3:])):
            wanted[part][piece] = wanted[part].get(piece, 0.0) + weight
    return counts, wanted, accepted / max(drafted, 1)


def all_fit(*arguments: object, **more: object) -> bool:
    counts, wanted, acceptance = counted(*arguments, **more)  # type: ignore[arg-type]
    assert 0.1 < acceptance < 0.95, "guesses are both accepted and rejected"
    return all(fakes.fits(counts[part], wanted[part]) for part in counts)


CASES = [
    (verify_block, "model", 3, USUAL),
    (verify_tokens, "model", 5, USUAL),
    (verify_block, "lookup", 2, USUAL),
    (verify_tokens, "recycling", 3, USUAL),
    (verify_block, "lookahead", 4, USUAL),
    (verify_tokens, "all", 4, PUNISHING),
    (verify_block, "all", 1, PUNISHING),
    (verify_block, "all", 5, PUNISHING),
    (verify_block, "all", Restless((4, 2, 5), least=0.15), USUAL),
    *((verify_block, name, 4, USUAL) for name in FREE[3:]),  # each new one
]
SAMPLE = [case if case[1] in FREE[2:] else pytest.param(*case, marks=pytest.mark.slow) for case in CASES]


@pytest.mark.slow
@pytest.mark.parametrize(("judge", "name", "k", "s"), SAMPLE)
def test_generated_texts_are_distributed_as_the_targets(
    judge: fakes.Judge, name: str, k: Pace | int, s: Sampling
) -> None:
    """Chi-square over 6,000 texts of up to 6 tokens, first and last 3 apart."""
    assert all_fit(judge, name, k, s, 6000)


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("s", [USUAL, PUNISHING], ids=["usual", "punishing"])
def test_very_many_generated_texts_are_distributed_as_the_targets(
    judge: fakes.Judge, name: str, k: int, s: Sampling
) -> None:
    """Chi-square over 10,000 texts in each of 80 settings: 800,000 in all."""
    assert all_fit(judge, name, k, s, 10_000)


@pytest.mark.slow
@RULES
def test_a_hundred_thousand_texts_under_a_restless_pace_are_distributed_as_the_targets(
    judge: fakes.Judge,
) -> None:
    assert all_fit(judge, "all", Restless(least=0.2), PUNISHING, 100_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", [without_residual, *(pytest.param(of, marks=pytest.mark.slow) for of in (flipped, by_index))]
)
def test_the_chi_square_sees_a_broken_rule(mutant: fakes.Judge) -> None:
    """With fewer texts than the test of the sound rules has."""
    assert not all_fit(mutant, "model", 3, USUAL, 2500)


@pytest.mark.slow
@pytest.mark.parametrize("judge", [verify_block, pytest.param(verify_tokens, marks=pytest.mark.slow)])
def test_the_chi_square_sees_a_drafter_that_discards_after_looking(judge: fakes.Judge) -> None:
    trap = lambda sampler, n: Competition([], Discarding(sampler, n_ctx=99, n_vocab=n))  # noqa: E731
    assert not all_fit(judge, "", 3, USUAL, 2500, drafter=trap)


def test_the_chi_square_is_about_as_strict_as_it_says() -> None:
    """Sound counts pass; a shift of 3 % of the mass in 20,000 is seen; an impossible outcome always."""
    rng = np.random.default_rng(11)
    p = dict(enumerate(rng.dirichlet(np.ones(40)).tolist()))
    draws = lambda n: Counter(rng.choice(40, n, p=list(p.values())).tolist())  # noqa: E731
    statistics = [fakes.chi_square(draws(5000), p) for _ in range(300)]
    over = sum(statistic > fakes.chi_square_bound(freedom, 0.05) for statistic, freedom in statistics)
    assert 3 < over < 32, "5 % of 300 are 15 +- 3.8; 4.5 standard deviations"
    skewed = draws(19_400) + Counter({0: 600})
    assert not fakes.fits(skewed, p)
    assert not fakes.fits(Counter({1: 1000, 77: 1}), p)


# --- where generation ends


def test_the_number_of_tokens_wanted_is_never_passed() -> None:
    script = Script(*range(10))
    for wanted in (1, 2, 3, 7):
        rounds = recite(script, Reciter(1, 2, 3, 4, 5, 6, 7, 8), max_tokens=wanted)
        assert tokens_of(rounds) == tuple(range(wanted))
        assert [r.finish for r in rounds[:-1]] == [None] * (len(rounds) - 1)
        assert rounds[-1].finish == "length"


def test_a_full_context_ends_the_text() -> None:
    rounds = recite(Script(*range(10)), Reciter(1, 2, 3, 4, 5, 6), n_ctx=6, max_tokens=100)
    assert tokens_of(rounds) == (0, 1, 2, 3, 4) and rounds[-1].finish == "length"
    assert text_of(rounds) == "abcde"


def test_no_more_is_guessed_than_can_be_used() -> None:
    """The last place belongs to the token that verification adds; LONGEST_DRAFT bounds the rest."""
    reciter = Reciter()
    recite(Script(*range(10)), reciter, max_tokens=4)
    assert reciter.limits == [2, 1], "before the second and third token; before the fourth nothing is asked"
    reciter = Reciter()
    recite(Script(*range(10)), reciter, max_tokens=200)
    assert max(reciter.limits) == LONGEST_DRAFT


def test_an_end_token_inside_an_accepted_draft_ends_the_text_there() -> None:
    rounds = recite(Script(0, 1, 2, 9, 4, 5), Reciter(1, 2, 9, 4, 5), end=[9])
    assert tokens_of(rounds) == (0, 1, 2) and text_of(rounds) == "abc"
    assert rounds[-1] == Round((1, 2), "bc", 5, 5, ("reciter", "reciter"), "stop")


def test_an_end_token_as_bonus_or_recovered_token_ends_the_text() -> None:
    for guess in [(1, 2), (1, 7), ()]:
        rounds = recite(Script(0, 1, 2, 9, 4), Reciter(*guess), end=[3, 9])
        assert tokens_of(rounds) == (0, 1, 2) and rounds[-1].finish == "stop"


def test_an_end_token_at_once_gives_an_empty_text() -> None:
    assert recite(Script(9, 1), end=[9]) == [Round((), "", 0, 0, (), "stop")]


def test_a_stop_string_inside_an_accepted_draft_ends_the_text_before_it() -> None:
    rounds = recite(Script(0, 1, 2, 3, 4, 5), Reciter(1, 2, 3, 4, 5), stop=["cd"])
    assert text_of(rounds) == "ab" and rounds[-1].finish == "stop"
    assert tokens_of(rounds) == (0, 1, 2, 3), "the token that completes it is the last that counts"
    assert rounds[-1].sources == ("reciter",) * 3


def test_a_stop_string_across_rounds_is_found() -> None:
    rounds = recite(Script(0, 1, 2, 3, 4), stop=["bcd"])
    assert [r.text for r in rounds] == ["a", "", "", ""] and rounds[-1].finish == "stop"


def test_half_a_stop_string_at_the_end_is_shown() -> None:
    for end, wanted in (([], 3), ([3], 12)):
        rounds = recite(Script(0, 1, 2, 3), stop=["bcx"], end=end, max_tokens=wanted)
        assert text_of(rounds) == "abc"


def test_a_draft_gives_the_same_rounds_of_text_as_none_where_characters_are_split() -> None:
    pieces = [b"\xf0\x9f", b"\x91\xa9", b"e\xcc", b"\x81", b"!"]
    script = Script(0, 1, 2, 3, 4)
    for drafter in (None, Reciter(1, 2, 3, 4), Reciter(1, 2)):
        rounds = recite(script, drafter, piece=lambda t: pieces[t], max_tokens=5)
        assert text_of(rounds) == "👩e\u0301!"
        assert not any("\ufffd" in r.text for r in rounds)


# --- rounds


def test_a_round_tells_what_was_drafted_what_stayed_and_who_proposed_it() -> None:
    rounds = recite(Script(0, 1, 2, 3, 4, 5, 6, 7), Reciter(1, 2, 9, 9), max_tokens=6)
    assert rounds == [
        Round((0,), "a", 0, 0, ("target",), None),
        Round((1, 2, 3), "bcd", 4, 2, ("reciter", "reciter", "target"), None),
        Round((4,), "e", 1, 0, ("target",), None),
        Round((5,), "f", 0, 0, ("target",), "length"),
    ]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("sampled", [False, True])
def test_scores_are_those_of_the_row_that_each_token_was_drawn_from(name: str, sampled: bool) -> None:
    """Whoever guessed it, wherever in a draft it stood; and none where none were asked for."""
    target = TableModel(12, seed=5, padding=3)
    draft = TableModel(12, seed=6, near=target, spread=0.5)
    sampler = Sampler(PUNISHING, 12)
    settings = {"sampler": sampler, "rule": Coupled(4), "drafter": drafter_named(name, PUNISHING, 12)}
    rounds = speculate(target, [1, 2], draft=draft, max_tokens=200, scoring=Scoring(2, sampled), **settings)
    history = [1, 2]
    assert max(round_.accepted for round_ in rounds) > 0
    for round_ in rounds:
        for token, score in zip(round_.tokens, round_.scores, strict=True):
            row = target.row(history)[:12]
            exact = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
            if sampled:
                p = sampler(row, np.array(history))
                exact = p.on(np.arange(12))
            assert score.chosen.token == token
            assert np.exp(score.chosen.logprob) == pytest.approx(exact[token], rel=1e-5)
            assert np.exp(score.top[0].logprob) == pytest.approx(exact.max(), rel=1e-5)
            history.append(token)
    plain = speculate(target, [1, 2], sampler=sampler, rule=Coupled(4), max_tokens=5)
    assert not any(round_.scores for round_ in plain)


def test_the_first_token_is_not_kept_waiting_for_a_draft() -> None:
    asks = asks_of(Reciter(1, 2))
    assert (asks[0].model, asks[0].tail, asks[0].rows) == ("target", (), 1)
    assert (asks[1].model, asks[1].tail, asks[1].rows) == ("target", (1, 2), 3)


def asks_of(drafter: Drafter, rounds: int = 3) -> list[Ask]:
    """Returns the asks of the first rounds, answered by the text 0 1 2 3 ..."""
    script, asks = Script(*range(10)), []
    loop = generate(
        [25], drafter=drafter, sampler=Sampler(GREEDY, 26), rule=Coupled(0), text=TextRelease(fakes.letter),
        limits=Limits(20, 100),
    )  # fmt: skip
    answer = None
    while rounds:
        item = loop.send(answer)
        answer = None
        if isinstance(item, Round):
            rounds -= 1
        else:
            asks.append(item)
            answer = script.score([fakes.Want(item.tokens, item.tail, item.rows)])[0]
    loop.close()
    return asks


def test_an_answer_of_fewer_rows_cuts_the_draft() -> None:
    """A driver that serves many may have room for fewer rows than were guessed."""
    loop = generate(
        [25], drafter=Reciter(1, 2, 3), sampler=Sampler(GREEDY, 26), rule=Coupled(0),
        text=TextRelease(fakes.letter), limits=Limits(20, 100),
    )  # fmt: skip
    script = Script(*range(10))
    ask = next(loop)
    first = loop.send(script.score([fakes.Want(ask.tokens)])[0])
    assert isinstance(first, Round)
    ask = next(loop)
    round_ = loop.send(script.score([fakes.Want(ask.tokens, ask.tail[:1], 2)])[0])
    assert round_ == Round((1, 2), "bc", 1, 1, ("reciter", "target"), None)


def test_the_pace_is_reported_every_round_and_bounds_every_draft() -> None:
    told: list[Round] = []

    class Listening(Restless):
        def observe(self, round_: Round, seconds: float) -> float:
            told.append(round_)
            return super().observe(round_, seconds)

    target = TableModel(6, seed=12)
    rounds = speculate(
        target, [1, 2], sampler=Sampler(USUAL, 6), rule=Independent(np.random.default_rng(1)),
        drafter=drafter_named("model", USUAL, 6), draft=TableModel(6, seed=13), pace=Listening((0, 3, 1, 2)),
        max_tokens=40,
    )  # fmt: skip
    assert told == rounds
    for i, round_ in enumerate(rounds[1:-3], 1):
        assert round_.drafted == (0, 3, 1, 2)[i % 4]


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_round_is_charged_with_all_the_time_there_was_but_for_what_the_reader_took(name: str) -> None:
    now, charged = 0.0, []

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    class Listening(Restless):
        def read(self, seconds: float) -> None:
            charged[-1] += seconds

        def enter(self, load: BatchPlan, slot: int) -> None:
            load.weigh()
            self.began = now
            charged.append(0.0)

        def observe(self, round_: Round, seconds: float) -> float:
            took = now - self.began - charged[-1] if self.rounds else 0.0
            assert seconds == pytest.approx(took)
            return super().observe(round_, seconds)

    target = TableModel(6, seed=12)
    draft = TableModel(6, seed=13, near=target, spread=0.5)
    prompt = [1, 2, 3, 1, 2]
    loop = generate(
        prompt, drafter=drafter_named(name, USUAL, 6), sampler=Sampler(USUAL, 6), rule=Coupled(2),
        text=TextRelease(fakes.letter), limits=Limits(60, 512),
    )  # fmt: skip
    contexts = {"target": target, "draft": draft}
    slow = Costs(Settled({1: 1e9}), Settled({1: 1e9}))  # so that no step seems to have paused
    pace = Listening((1, 3, 0))
    rounds = list(fakes.rounds_of(loop, contexts, pace, prompt, costs=slow, clock=clock))
    assert pace.rounds == len(rounds) > 10


class Settled(CostTable):
    """Costs that nothing changes."""

    def learn(self, n: int, n_ctx: int, seconds: float, *, plain: bool = False) -> None:
        pass


class Windowed(FixedLength):
    """Lets the draft read no more than 6 tokens at once."""

    def window(self, lag: int) -> int:
        return min(lag, 6)


def test_a_draft_may_be_shown_the_end_of_a_text_alone() -> None:
    """And goes on from there, as far as that is near enough."""
    target = TableModel(6, seed=12)
    draft = TableModel(6, seed=13, near=target, spread=0.5)
    prompt = np.random.default_rng(1).integers(0, 6, 50).tolist()
    rounds = speculate(
        target, prompt, sampler=Sampler(USUAL, 6), rule=Coupled(2), draft=draft, pace=Windowed(3),
        drafter=drafter_named("model", USUAL, 6), max_tokens=40,
    )  # fmt: skip
    assert draft.decoded[0] == 6 and max(draft.decoded[1:]) <= 2
    plain = speculate(target, prompt, sampler=Sampler(USUAL, 6), rule=Coupled(2), max_tokens=40)
    assert tokens_of(rounds) == tokens_of(plain)
    assert sum(r.accepted for r in rounds) > 15


def test_a_pace_of_0_is_plain_decoding_and_leaves_the_draft_alone() -> None:
    target, draft = TableModel(6, seed=12), TableModel(6, seed=13)
    rounds = speculate(
        target, [1, 2], sampler=Sampler(USUAL, 6), rule=Coupled(1), draft=draft, pace=0,
        drafter=drafter_named("model", USUAL, 6),
    )  # fmt: skip
    assert draft.decoded == [] and all(r.drafted == 0 and len(r.tokens) == 1 for r in rounds)
    assert target.decoded == [2] + [1] * 19, "each token of plain decoding is one evaluation of one token"


# --- drivers and cancellation


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelling_between_rounds_keeps_what_was_generated(after: int) -> None:
    target, draft = TableModel(6, seed=14), TableModel(6, seed=15)
    whole = tokens_of(speculate(target, [1], sampler=Sampler(GREEDY, 6), rule=Coupled(0), max_tokens=30))
    seen: list[Round] = []
    loop = generate(
        [1], drafter=drafter_named("model", GREEDY, 6), sampler=Sampler(GREEDY, 6), rule=Coupled(0),
        text=TextRelease(fakes.letter), limits=Limits(30, 100),
    )  # fmt: skip
    contexts = {"target": target, "draft": draft}
    for round_ in fakes.rounds_of(loop, contexts, FixedLength(3), [1], cancelled=lambda: len(seen) >= after):
        seen.append(round_)
    assert len(seen) == after + 1 and seen[-1].finish == "cancelled"
    assert tokens_of(seen) == whole[: len(tokens_of(seen))]
    assert inspect.getgeneratorstate(loop) == inspect.GEN_CLOSED, "and nothing is left running"


def test_contexts_serve_the_next_generation_after_a_cancelled_one() -> None:
    """Caches are synced to token lists: what was cancelled, or edited, leaves no trace."""
    target, draft = TableModel(6, seed=14, order=None), TableModel(6, seed=15)
    drafter = drafter_named("all", GREEDY, 6)

    def generate_from(prompt: list[int], stop_after: int) -> tuple[int, ...]:
        seen: list[Round] = []
        loop = generate(
            prompt, drafter=drafter, sampler=Sampler(GREEDY, 6), rule=Coupled(0),
            text=TextRelease(fakes.letter), limits=Limits(12, 100),
        )  # fmt: skip
        contexts = {"target": target, "draft": draft}
        rounds = fakes.rounds_of(
            loop, contexts, FixedLength(3), prompt, cancelled=lambda: len(seen) >= stop_after
        )
        seen.extend(rounds)
        return tokens_of(seen)

    generate_from([1, 2, 3], 2)
    for prompt in ([1, 2, 3, 0], [1, 2], [4], [1, 2, 3]):
        fresh = TableModel(6, seed=14, order=None)
        wanted = tokens_of(
            speculate(fresh, prompt, sampler=Sampler(GREEDY, 6), rule=Coupled(0), max_tokens=12)
        )
        assert generate_from(prompt, 99) == wanted


def test_a_failure_of_a_model_reaches_the_caller() -> None:
    class Broken(TableModel):
        def score(self, wants: Sequence[fakes.Want]) -> list[fakes.Rows]:
            if len(self.decoded) == 2:
                raise FatalDecodeError("the model broke")
            return super().score(wants)

    heard: list[Round] = []
    with pytest.raises(FatalDecodeError, match="the model broke"):
        loop = generate(
            [1], drafter=NoDrafter(), sampler=Sampler(GREEDY, 6), rule=Coupled(0),
            text=TextRelease(fakes.letter), limits=Limits(9, 99),
        )  # fmt: skip
        for round_ in fakes.rounds_of(loop, {"target": Broken(6, seed=1)}, FixedLength(3), [1]):
            heard.append(round_)
    assert len(heard) == 2


# --- what is refused


def refused(prompt: Sequence[int], n_ctx: int = 10) -> Iterator[Round]:
    return iter(
        speculate(TableModel(6, seed=1), prompt, sampler=Sampler(GREEDY, 6), rule=Coupled(0), n_ctx=n_ctx)
    )


@pytest.mark.parametrize("n", [10, 11, 5000])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(n: int) -> None:
    with pytest.raises(
        PromptTooLongError, match=f"the prompt has {n:,} tokens and exceeds the available context size of 10:"
    ) as told:
        refused([1] * n)
    assert (told.value.n_prompt, told.value.n_ctx) == (n, 10)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([1, 6, 1], "token 6 of the prompt does not exist: the target has 6 tokens"),
        ([9, -1], "token 9 of the prompt does not exist"),
        ([1, -1, 2], "token -1 of the prompt does not exist"),
        ([1, *PICTURE, -2, 2], "token -2 of the prompt does not exist"),
        ([1, *PICTURE], "the prompt ends with a picture or sound: write something after it"),
        ([], "the prompt has no tokens: say something"),
    ],
)
def test_a_prompt_of_what_is_no_token_is_refused(prompt: list[int], reason: str) -> None:
    with pytest.raises(SettingError, match=f"^{reason}"):
        refused(prompt)


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    assert [len(r.tokens) for r in refused([1] * 9)] == [1]


@pytest.mark.parametrize("n", [0, -1, 1.5, "4"])
def test_a_number_of_tokens_that_makes_no_sense_is_refused(n: object) -> None:
    with pytest.raises(SettingError, match="number of tokens wanted is"):
        Limits(n, 10)  # type: ignore[arg-type]


# --- penalties


def test_each_position_is_judged_with_the_history_before_it() -> None:
    """Settled tokens and the guesses in front of it, no others: seen by a sampler that writes it down."""
    seen: list[tuple[int, ...]] = []

    class Writing(Sampler):
        def __call__(self, row: np.ndarray, history: Sequence[int] | np.ndarray = ()) -> fakes.Distribution:
            seen.append(tuple(int(t) for t in history))
            return super().__call__(row, history)

    speculate(
        Script(0, 1, 2, 3, 4, 5), [25], sampler=Writing(GREEDY, 26), rule=Coupled(0),  # type: ignore[arg-type]
        drafter=Reciter(1, 2, 7), max_tokens=5,
    )  # fmt: skip
    assert seen == [(25,), (25, 0), (25, 0, 1), (25, 0, 1, 2), (25, 0, 1, 2, 3)]
