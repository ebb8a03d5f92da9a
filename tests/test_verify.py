"""Every acceptance rule emits exactly the target's distribution; broken rules are seen to be broken.

The laws are computed, not estimated: `fakes.law` takes the real functions through everything that chance can
do. The statistical tests (the noise of coupled mode) fail at a rate of 1e-6 each if all is well, and their
seeds are fixed.
"""

from __future__ import annotations

import math
from collections import Counter

import fakes
import numpy as np
import pytest
from wrong_rules import flipped, without_residual

from edgespec.core.values import Draft
from edgespec.core.verify import (
    Coupled,
    Independent,
    Target,
    Verdict,
    residual,
    uniforms,
    verify_block,
    verify_tokens,
)
from edgespec.errors import GrammarError
from edgespec.sampling.distribution import Few
from edgespec.sampling.sampler import Distribution, draw, point_mass

EXACT = 1e-12
RULES = pytest.mark.parametrize("judge", [verify_tokens, verify_block])


def error(judge: fakes.Judge, p: fakes.Tree, q: fakes.Tree, k: int) -> float:
    """The check of this file: how far what a round emits, continued by the target, is from the target."""
    found = fakes.completed(fakes.emitted(judge, p, q, k), p, k + 1)
    return fakes.distance(found, fakes.joint(p, k + 1))


# --- exactness, by enumeration


@pytest.mark.sample(24)
@RULES
@pytest.mark.parametrize("shape", fakes.SHAPES)
@pytest.mark.parametrize(
    ("n_vocab", "k", "cases"), [(2, 1, 20), (5, 1, 20), (3, 2, 10), (4, 2, 3), (2, 3, 6)]
)
def test_a_round_emits_the_targets_distribution(
    judge: fakes.Judge, shape: str, n_vocab: int, k: int, cases: int
) -> None:
    rng = np.random.default_rng([n_vocab, k])
    for _ in range(cases):
        p, q = fakes.random_pair(rng, n_vocab, shape)
        assert error(judge, p, q, k) < EXACT


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("shape", fakes.SHAPES)
@pytest.mark.parametrize(("n_vocab", "k", "cases"), [(3, 3, 25), (4, 3, 5), (2, 5, 10), (8, 2, 10)])
def test_a_round_emits_the_targets_distribution_at_length(
    judge: fakes.Judge, shape: str, n_vocab: int, k: int, cases: int
) -> None:
    test_a_round_emits_the_targets_distribution(judge, shape, n_vocab, k, cases)


@RULES
def test_a_draft_without_tokens_leaves_one_draw_from_the_target(judge: fakes.Judge) -> None:
    p, q = fakes.random_pair(np.random.default_rng(1), 6, "dense")
    assert fakes.emitted(judge, p, q, 0) == pytest.approx(fakes.joint(p, 1), abs=EXACT)


@RULES
def test_a_certain_guess_is_exact_too(judge: fakes.Judge) -> None:
    """Lookup and greedy drafts are point masses: accepted with p(x), else p without x."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        p, _ = fakes.random_pair(rng, 4, "dense")
        assert error(judge, p, lambda prefix: point_mass(len(prefix) % 4), 3) < EXACT


@RULES
def test_drafts_from_an_independent_and_a_deterministic_guesser_may_be_mixed(judge: fakes.Judge) -> None:
    p, q = fakes.random_pair(np.random.default_rng(3), 3, "dense")
    mixed = lambda prefix: point_mass(1) if len(prefix) == 1 else q(prefix)  # noqa: E731
    assert error(judge, p, mixed, 3) < EXACT


@RULES
def test_what_fails_behind_a_guess_fails_only_where_that_guess_stays(judge: fakes.Judge) -> None:
    """A grammar may lead to where a bias bans all; block verification raised that for guesses it rejects."""
    half = Distribution(np.arange(2), np.array([0.5, 0.5]))
    draft = Draft((0, 0), (point_mass(0), point_mass(0)))

    def p(i: int) -> Distribution:
        if i:
            raise GrammarError("nothing may follow")
        return half

    failed = 0
    for seed in range(400):
        try:
            assert judge(draft, p, np.random.default_rng(seed)) == Verdict(0, 1)
        except GrammarError:
            failed += 1
    assert abs(failed - 200) < 60  # 6 standard deviations


# --- how much is accepted


@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_block_verification_is_never_shorter_than_token_verification(shape: str) -> None:
    rng = np.random.default_rng(4)
    gains = []
    for k in (1, 2, 2, 2, 3):
        for _ in range(4):
            p, q = fakes.random_pair(rng, 3, shape)
            block, token = (
                fakes.mean_length(fakes.emitted(judge, p, q, k)) for judge in (verify_block, verify_tokens)
            )
            gains.append(block - token)
    assert min(gains) >= -EXACT
    if shape in ("dense", "peaked", "zeros"):
        assert max(gains) > 0.01, "and mostly it is longer"


def test_block_verification_accepts_the_example_of_its_paper() -> None:
    """Sun et al., section 2: p = (1/3, 2/3), q = (2/3, 1/3), k = 2: 11/9 tokens stay, against 10/9."""
    p, q = fakes.distribution_of([1, 2]), fakes.distribution_of([2, 1])
    lengths = [
        fakes.mean_length(fakes.emitted(judge, lambda _: p, lambda _: q, 2)) - 1
        for judge in (verify_tokens, verify_block)
    ]
    assert lengths == pytest.approx([10 / 9, 11 / 9], abs=EXACT)


@RULES
def test_one_guess_is_accepted_with_probability_one_minus_total_variation(judge: fakes.Judge) -> None:
    rng = np.random.default_rng(5)
    for shape in fakes.SHAPES:
        for _ in range(10):
            p, q = fakes.random_pair(rng, 5, shape)
            common = np.minimum(p(()).on(np.arange(5)), q(()).on(np.arange(5))).sum()
            accepted = fakes.mean_length(fakes.emitted(judge, p, q, 1)) - 1
            assert accepted == pytest.approx(common, abs=EXACT)


@RULES
def test_a_draft_equal_to_the_target_is_accepted_whole(judge: fakes.Judge) -> None:
    p, _ = fakes.random_pair(np.random.default_rng(6), 3, "dense")
    assert all(len(sequence) == 4 for sequence in fakes.emitted(judge, p, p, 3))


@RULES
def test_a_guess_the_target_excludes_never_stays(judge: fakes.Judge) -> None:
    p, q = fakes.random_pair(np.random.default_rng(7), 4, "disjoint")
    law = fakes.emitted(judge, p, q, 2)
    assert {len(sequence) for sequence in law} == {1}


def test_at_temperature_0_both_rules_keep_the_agreeing_prefix() -> None:
    """Point masses on both sides: no chance is left, and the verdict is the first disagreement."""
    rng = np.random.default_rng(8)
    for _ in range(100):
        guess, truth = rng.integers(0, 2, 5).tolist(), rng.integers(0, 2, 6).tolist()
        agreed = next((i for i in range(5) if guess[i] != truth[i]), 5)
        draft = Draft(tuple(guess), tuple(map(point_mass, guess)), ("fake",) * 5)
        for rule in (Independent(rng, verify_tokens), Independent(rng, verify_block), Coupled(3)):
            verdict = rule.verify(draft, lambda i, truth=truth: point_mass(truth[i]), 9)
            assert verdict == Verdict(agreed, truth[agreed])


@RULES
def test_nobody_looks_at_rows_behind_a_certain_rejection(judge: fakes.Judge) -> None:
    """Each row that is looked at costs sampling time."""
    p, q = fakes.random_pair(np.random.default_rng(9), 4, "disjoint")
    asked: list[int] = []

    def spied(i: int) -> Distribution:
        asked.append(i)
        return p(())

    tokens = (int(q(()).ids[0]),) * 4
    judge(Draft(tokens, (q(()),) * 4, ("fake",) * 4), spied, np.random.default_rng(0))
    assert max(asked) == 0


# --- mutations: the check above must see them


def subtracting_by_index(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Subtracts the i-th candidate of q from the i-th of p, whatever tokens they are."""
    for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        p_i = p(i)
        if rng.random() * q.prob(token) >= p_i.prob(token):
            rest = p_i.probs.copy()
            n = min(rest.size, q.probs.size)
            rest[:n] = np.maximum(rest[:n] - q.probs[:n], 0)
            left = Distribution(p_i.ids, rest) if rest.any() else p_i
            return Verdict(i, fakes.verify.draw(left, rng.random()))
    return Verdict(len(draft.tokens), fakes.verify.draw(p(len(draft.tokens)), rng.random()))


def block_without_carry(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
    """Block verification whose residual forgets P_i."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fakes.verify, "residual", lambda p, q, scale=1.0: residual(p, q))
        return verify_block(draft, p, rng)


@pytest.mark.parametrize(
    ("mutant", "k"),
    [(flipped, 1), (without_residual, 1), (subtracting_by_index, 1), (block_without_carry, 2)],
)
def test_a_broken_rule_is_seen_to_be_inexact(mutant: fakes.Judge, k: int) -> None:
    rng = np.random.default_rng(10)
    errors = [error(mutant, *fakes.random_pair(rng, 3, "zeros"), k) for _ in range(30)]
    assert max(errors) > 0.05
    assert sum(e > EXACT for e in errors) > 5


def test_a_rule_for_sampled_guesses_is_seen_to_be_wrong_for_the_likeliest_guess() -> None:
    """A negative test: proposes argmax q, accepts with p/q, subtracts by index."""
    rng = np.random.default_rng(11)

    def claiming(judge: fakes.Judge, q: Distribution) -> fakes.Judge:
        lie = lambda draft: Draft(draft.tokens, (q,) * len(draft.tokens), draft.sources)  # noqa: E731
        return lambda draft, p, world: judge(lie(draft), p, world)

    errors = []
    for _ in range(30):
        p, q = fakes.random_pair(rng, 3, "zeros")
        best = point_mass(int(q(()).ids[q(()).probs.argmax()]))
        errors.append(error(claiming(subtracting_by_index, q(())), p, lambda _, best=best: best, 1))
        assert error(verify_tokens, p, lambda _, best=best: best, 1) < EXACT, "said truly, it is exact"
    assert max(errors) > 0.2


@RULES
def test_discarding_a_guess_after_looking_at_it_is_seen_to_be_inexact(judge: fakes.Judge) -> None:
    """A trap: dropping an unlikely last token, so that the bonus row replaces it."""

    def discarding(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
        unlikely = draft.probs[-1].prob(draft.tokens[-1]) < 0.5
        return judge(draft.cut(len(draft.tokens) - unlikely), p, rng)

    rng = np.random.default_rng(12)
    errors = [error(discarding, *fakes.random_pair(rng, 3, "dense"), 1) for _ in range(30)]
    assert max(errors) > 0.05


@RULES
def test_cutting_a_draft_by_the_shape_of_its_distributions_is_exact(judge: fakes.Judge) -> None:
    def cutting(draft: Draft, p: Target, rng: np.random.Generator) -> Verdict:
        sharp = draft.probs[-1].probs.max() > 0.6
        return judge(draft.cut(len(draft.tokens) - (not sharp)), p, rng)

    rng = np.random.default_rng(13)
    errors = [error(cutting, *fakes.random_pair(rng, 3, "dense"), 2) for _ in range(30)]
    assert max(errors) < EXACT


# --- real randomness and wide distributions


@RULES
def test_the_same_generator_gives_the_same_verdict(judge: fakes.Judge) -> None:
    p, q = fakes.random_pair(np.random.default_rng(14), 5, "dense")
    draft = Draft((1, 2, 3), (q((0,)), q((1,)), q((2,))), ("fake",) * 3)
    first, again = (Independent(np.random.default_rng(7), judge) for _ in range(2))
    verdicts = [[rule.verify(draft, lambda i: p((i,)), 0) for _ in range(50)] for rule in (first, again)]
    assert verdicts[0] == verdicts[1]
    assert len(set(verdicts[0])) > 1


@RULES
def test_supports_of_a_whole_vocabulary_are_judged_alike(judge: fakes.Judge) -> None:
    """Past 4,096 tokens probabilities are float32: 1,500 rounds over 32 groups of ids, at rate 1e-6."""
    rng = np.random.default_rng(15)
    ids = np.arange(9000)
    weights = rng.gamma(0.5, size=(2, 9000)) + 1e-9
    weights[0] *= 1 + ids % 32 / 16  # p favours the upper groups
    p, q = (Distribution(ids, (w / w.sum()).astype(np.float32)) for w in weights)
    counts: Counter[int] = Counter()
    for _ in range(1500):
        guess = draw(q, rng.random())
        verdict = judge(Draft((guess,), (q,), ("fake",)), lambda _: p, rng)
        counts[(guess if verdict.accepted else verdict.token) % 32] += 1
    expected = {group: float(p.probs[group::32].sum(dtype=np.float64)) for group in range(32)}
    assert fakes.fits(counts, expected)
    swapped = {group: float(q.probs[group::32].sum(dtype=np.float64)) for group in range(32)}
    assert not fakes.fits(counts, swapped), "the check has the power to tell p from q"


# --- the noise of coupled mode


def test_the_noise_is_pinned() -> None:
    """A user's seed gives the same text in the next release: these numbers are a promise."""
    assert uniforms(0, 0, 0, np.arange(3)).tolist() == PINNED_ZERO
    assert uniforms(42, 1, 1000, np.array([5, 151_935])).tolist() == PINNED_SEED
    assert uniforms(-1, 0, 0, np.arange(3)).tolist() == uniforms(2**64 - 1, 0, 0, np.arange(3)).tolist()


PINNED_ZERO = [0.48543450371799335, 0.45040494346367044, 0.8356754543653645]
PINNED_SEED = [0.18117446431398732, 0.6911792428946469]


def test_the_noise_of_a_token_does_not_depend_on_which_others_are_asked_for() -> None:
    ids = np.array([3, 17, 500, 150_000])
    whole = uniforms(1, 2, 3, np.arange(150_001))
    assert np.array_equal(uniforms(1, 2, 3, ids), whole[ids])
    assert 0 < whole.min() and whole.max() < 1


NEIGHBOURS = {
    "seeds": lambda i, ids: uniforms(i, 0, 7, ids),
    "choices": lambda i, ids: uniforms(5, i, 7, ids),
    "positions": lambda i, ids: uniforms(5, 0, i, ids),
    "large seeds": lambda i, ids: uniforms(2**63 + i * 2**32, 0, 7, ids),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_the_noise_is_uniform_and_independent_of_its_neighbours(name: str) -> None:
    """Chi-square at rate 1e-6 each, on 256 x 512 numbers: single, beside the next id, beside the next key."""
    noise = np.stack([NEIGHBOURS[name](i, np.arange(512)) for i in range(256)])  # (256, 512)
    assert _flat(noise.ravel(), 256)
    assert _flat_in_pairs(noise[:, :-1], noise[:, 1:])
    assert _flat_in_pairs(noise[:-1], noise[1:])
    assert _flat_in_pairs(noise[:-1, :-1], noise[1:, 1:]) and _flat_in_pairs(noise[:-1, 1:], noise[1:, :-1])
    assert _flat((noise * 2**40).ravel() % 1, 256), "the bits that single precision would not show"


def _flat(values: np.ndarray, bins: int) -> bool:
    counts = np.bincount((values * bins).astype(int), minlength=bins)
    return fakes.fits(dict(enumerate(counts.tolist())), {i: 1 / bins for i in range(bins)})


def _flat_in_pairs(a: np.ndarray, b: np.ndarray) -> bool:
    return _flat(((a * 16).astype(int) * 16 + (b * 16).astype(int)).ravel() / 256, 256)


def test_the_check_of_the_noise_sees_a_weak_hash() -> None:
    """Noise that moves with the id is uniform alone and not beside its neighbour."""
    weak = (np.arange(256)[:, None] * 0.6180339887 + np.arange(512) * 0.7548776662) % 1
    assert not _flat_in_pairs(weak[:, :-1], weak[:, 1:])


def test_swapping_seed_choice_and_position_changes_the_noise() -> None:
    rows = [uniforms(*key, np.arange(32)) for key in [(1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2), (0, 0, 6)]]
    assert len({row.tobytes() for row in rows}) == len(rows)


@pytest.mark.sample(2)
@pytest.mark.parametrize("weights", [[5, 1, 3, 1], [1, 1], [1e-3, 1, 1e-3], [0, 2, 0, 7, 1]])
def test_coupled_draws_follow_the_distribution(weights: list[float]) -> None:
    """Chi-square over 6,000 seeds, at rate 1e-6."""
    p = fakes.distribution_of(weights)
    counts = Counter(Coupled(seed).draw(p, 11) for seed in range(6_000))
    assert fakes.fits(counts, dict(zip(p.ids.tolist(), p.probs.tolist(), strict=True)))


@pytest.mark.parametrize("vary", ["position", "choice"])
def test_coupled_draws_at_two_places_are_independent(vary: str) -> None:
    """Chi-square of pairs over 6,000 seeds, at rate 1e-6."""
    p = fakes.distribution_of([4, 3, 2, 1])
    second = (
        (lambda s: Coupled(s).draw(p, 12)) if vary == "position" else (lambda s: Coupled(s, 1).draw(p, 11))
    )
    counts = Counter((Coupled(seed).draw(p, 11), second(seed)) for seed in range(6_000))
    expected = {(a, b): p.prob(a) * p.prob(b) for a in range(4) for b in range(4)}
    assert fakes.fits(counts, expected)


def test_coupled_draws_agree_as_often_as_the_theory_says() -> None:
    """P(match) = sum_x 1 / sum_y max(p_y/p_x, q_y/q_x) >= (1 - TV)/(1 + TV); within 5 sigma, rate 6e-7."""
    rng = np.random.default_rng(16)
    for _ in range(3):
        p, q = (tree(()) for tree in fakes.random_pair(rng, 5, "dense"))
        ratios = np.maximum(p.probs / p.probs[:, None], q.probs / q.probs[:, None])
        wanted = float((1 / ratios.sum(axis=1)).sum())
        tv = float(np.abs(p.probs - q.probs).sum() / 2)
        n = 3000
        matches = sum(Coupled(s).draw(p, 3) == Coupled(s).draw(q, 3) for s in range(n))
        assert abs(matches / n - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / n)
        assert wanted >= (1 - tv) / (1 + tv)


def test_coupled_verdicts_spell_one_text_whatever_was_guessed() -> None:
    """Exactly: for any draft the emitted tokens are the text that the seed alone gives."""
    rng = np.random.default_rng(17)
    p, _ = fakes.random_pair(rng, 4, "dense")
    for seed in range(30):
        rule, text = Coupled(seed, choice=2), []
        for i in range(6):
            text.append(rule.draw(p(tuple(text)), 40 + i))
        for _ in range(20):
            k = int(rng.integers(0, 6))
            good = int(rng.integers(0, k + 1))
            guess = (*text[:good], *rng.integers(0, 4, k - good).tolist())
            draft = Draft(guess, tuple(map(point_mass, guess)), ("fake",) * k)
            verdict = rule.verify(draft, lambda i, guess=guess: p(guess[:i]), 40)
            said = [*guess[: verdict.accepted], verdict.token]
            assert said == text[: len(said)]
            assert verdict.accepted >= good, "what agrees is never rejected"


# --- the residual


@pytest.mark.parametrize(
    "p", [Distribution(np.array([1, 4, 7]), np.array([0.5, 0.3, 0.2])), Few([1, 4, 7], [0.5, 0.3, 0.2])]
)
def test_the_residual_is_what_the_draft_left_uncovered(p: Distribution) -> None:
    for q in (fakes.distribution_of([0, 0.25, 0, 0, 0.75]), Few([1, 4], [0.25, 0.75])):
        rest, mass = residual(p, q)
        assert rest.ids.tolist() == [1, 4, 7]
        assert rest.probs.tolist() == pytest.approx([0.25, 0, 0.2])
        assert mass == pytest.approx(0.45)
        assert residual(p, q, 0.5)[0].probs.tolist() == pytest.approx([0, 0, 0.1])


def test_probabilities_are_looked_up_by_token_and_0_elsewhere() -> None:
    for p in (Distribution(np.array([2, 5, 9]), np.array([0.2, 0.3, 0.5])), Few([2, 5, 9], [0.2, 0.3, 0.5])):
        assert [p.prob(t) for t in (0, 2, 3, 5, 9, 10)] == [0, 0.2, 0, 0.3, 0.5, 0]
        assert p.on(np.array([0, 2, 4, 5, 9, 12])).tolist() == [0, 0.2, 0, 0.3, 0.5, 0]
        many = p.on(np.array([0, 2, *range(5, 5000), 9000]))
        assert (many[1], many[2], many[6], many.size, many.sum()) == (0.2, 0.3, 0.5, 4998, 1)


def test_certain_tokens_are_drawn_without_chance() -> None:
    """A generator between two evaluations costs more than a greedy verdict."""

    class Untouched:
        def random(self) -> float:
            raise AssertionError("chance was asked for where nothing is uncertain")

    rule = Independent(Untouched())  # type: ignore[arg-type]
    assert [rule.draw(point_mass(t), 5) for t in (4, 2)] == [4, 2]
    assert rule.verify(Draft(), lambda _: point_mass(9), 5) == Verdict(0, 9)
