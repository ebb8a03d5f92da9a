"""Text under a grammar has exactly the target's distribution among the allowed texts, whoever guesses.

Vocabularies here are ambiguous: `ab` can be written as one token or as two. What may follow is found again
by trying all texts against Python's own `re`, so that nothing here depends on the library of the masks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import fakes
import numpy as np
import pytest
from fakes import Restless, TableModel, speculate, text_of, tokens_of

from edgespec.chat.conversation import Composed
from edgespec.chat.families.family import Family
from edgespec.chat.families.known import HARMONY, MUSE
from edgespec.core.drafters import Drafter, Drafting, NoDrafter
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.demanded import DemandedText
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.pace.odds import BINS, Odds, proportional
from edgespec.core.values import Draft, Round
from edgespec.core.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.errors import GrammarError, LogitsError
from edgespec.grammar.grammar import Grammar, grammar_text
from edgespec.grammar.lark_text import lark_of
from edgespec.grammar.matchers import REFUSED_S, REMEMBERED, Matchers
from edgespec.sampling.masks import Masks
from edgespec.sampling.sampler import Sampler, Sampling, point_mass
from edgespec.server.pair_session import behind_thoughts

PIECES = [b"a", b"b", b"ab", b"c", b"", b"ba", b""]  # 4 ends a text; 6 is a control token
END, SPARE, N = 4, 6, len(PIECES)
ENDS = frozenset({END})
PROMPT = [0, 1, 0, 1]
LONGEST = 11  # characters of the texts that are tried
EXPRESSIONS = ("ab", "abc?", "(ab)*c", "a*b|ba*c", "[ab]{2,4}", "(a|ab)(c|bc)", "abab", "b(ab|ba)+")
JUDGES = verify_block, verify_tokens
RULES = pytest.mark.parametrize("judge", JUDGES)
DRAFTERS = ("none", "model", "lookup", "demanded", "all")
WARM = Sampling(temperature=1.0, top_p=1.0, min_p=0.0)
CUT = Sampling(temperature=0.8, top_p=0.9, min_p=0.05, repeat_penalty=1.3, penalty_last_n=3)

matchers = Matchers(lambda shown: PIECES, ENDS, N)


def masks_of(expression: str, start: int = len(PROMPT)) -> Masks:
    return matchers.masks(Grammar("regex", expression), start)


@cache
def language(expression: str) -> frozenset[str]:
    """Returns all texts that match, up to a length."""
    letters = [("".join(text)) for n in range(LONGEST + 1) for text in itertools.product("abc", repeat=n)]
    return frozenset(text for text in letters if re.fullmatch(expression, text))


@cache
def may_follow(expression: str, tokens: tuple[int, ...]) -> frozenset[int]:
    """Returns the tokens behind which some text that matches is still possible, by trying all of them."""
    text = b"".join(PIECES[token] for token in tokens).decode()
    known = language(expression)
    follow = {
        token
        for token, piece in enumerate(PIECES)
        if piece and any(other.startswith(text + piece.decode()) for other in known)
    }
    return frozenset(follow | ({END} if text in known else set()))


# --- the masks


@pytest.mark.sample(4)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_mask_holds_every_token_of_every_way_to_write_an_allowed_text(expression: str) -> None:
    masks, tried = masks_of(expression, 0), 0

    def go_on(tokens: tuple[int, ...]) -> None:
        nonlocal tried
        allowed = masks.after(list(tokens))
        assert allowed and set(allowed.ids.tolist()) == may_follow(expression, tokens), tokens
        assert allowed.count == allowed.ids.size == int(allowed.flags.sum())
        tried += 1
        for token in allowed.ids.tolist():
            if token != END and len(tokens) < 4:
                go_on((*tokens, token))

    go_on(())
    assert tried > 3


def test_masks_follow_any_list_of_tokens_as_a_cache_does() -> None:
    """They go on, go back, and take another way, in any order, and are always those of the list."""
    expression, rng = "[ab]{2,4}c?", np.random.default_rng(1)
    masks = masks_of(expression)
    texts = [
        tokens
        for n in range(5)
        for tokens in itertools.product((0, 1, 2, 3, 5), repeat=n)
        if all(tokens[i] in may_follow(expression, tokens[:i]) for i in range(n))
    ]
    for i in rng.integers(0, len(texts), 300).tolist():
        allowed = masks.after(np.array([*PROMPT, *texts[i]], np.int32))
        assert allowed and set(allowed.ids.tolist()) == may_follow(expression, texts[i])


def test_behind_an_end_or_what_is_forbidden_there_is_no_mask() -> None:
    masks = masks_of("abc?")
    assert masks.after([*PROMPT, 2, END]) is None
    assert masks.after([*PROMPT, 3]) is None
    assert masks.after([*PROMPT, 2, 3, 0]) is None
    assert masks.after([*PROMPT, 2]) is not None, "and that did no harm"
    assert masks.fitting(PROMPT, [2, END, 0]) == 2
    assert masks.fitting(PROMPT, [0, END]) == 1, "the text may not end there"
    assert masks.fitting(PROMPT, [0, 1, 1]) == 2
    assert masks.fitting(PROMPT, [SPARE]) == 0


def test_a_token_is_forced_only_where_no_other_writes_the_text_on() -> None:
    masks = masks_of("abab")
    assert masks.only_text(PROMPT) == b"abab"
    assert masks.forced(PROMPT, 9) == [], "a and ab both begin it"
    assert masks.forced([*PROMPT, 0], 9) == [], "b and ba both go on"
    assert masks.forced([*PROMPT, 0, 1, 0], 9) == [1], "and the end is not forced, but the end"
    assert masks.forced([*PROMPT, 0, 1, 0], 0) == []
    assert masks.ended([*PROMPT, 2, 2]) and not masks.ended([*PROMPT, 2])


# --- the law of whole generations


def drafter_named(name: str, sampler: Sampler, masks: Masks | None) -> Drafter:
    if name == "none":
        return NoDrafter()
    model = DraftModel(sampler, n_ctx=99, n_vocab=N, odds=proportional(0.0, 1.0), places=Odds((0.6,) * BINS))
    lookup, recycling = SuffixLookup(Odds((0.7,) * BINS)), TokenRecycling(N, Odds((0.65,) * BINS))
    assert masks
    demanded = DemandedText(
        masks, lambda text: [{97: 0, 98: 1, 99: 3}[byte] for byte in text], Odds((0.8,) * BINS)
    )
    return {
        "model": Competition([], model, masks),
        "lookup": Competition([lookup], masks=masks),
        "demanded": Competition([demanded], masks=masks),
        "all": Competition([lookup, recycling, demanded], model, masks),
    }[name]


Make = Callable[[str, Sampler, Masks], Drafter]
TARGET = TableModel(N, seed=3, spread=0.7)
DRAFT = TableModel(N, seed=5, near=TARGET, spread=0.8)


def generation(
    expression: str,
    rule: Rule,
    name: str,
    s: Sampling,
    max_tokens: int,
    pace: object = 3,
    make: Make = drafter_named,
) -> list[Round]:
    masks = masks_of(expression)
    sampler = Sampler(s, N, masks)
    return speculate(
        TARGET, PROMPT, sampler=sampler, rule=rule, drafter=make(name, sampler, masks), draft=DRAFT,
        pace=pace, max_tokens=max_tokens, end=ENDS, piece=PIECES.__getitem__,  # type: ignore[arg-type]
    )  # fmt: skip


def wanted_law(expression: str, s: Sampling, max_tokens: int) -> dict[tuple[int, ...], float]:
    """Returns the probability of every text: the target's, among the tokens that may follow."""
    found: dict[tuple[int, ...], float] = {}

    def go_on(text: tuple[int, ...], weight: float) -> None:
        may = may_follow(expression, text)
        if len(text) == max_tokens or may == ENDS:
            found[text] = found.get(text, 0.0) + weight
            return
        history = [*PROMPT, *text]
        masked = fakes.reference(TARGET.row(history), history, s, only=may)
        for token, share in masked.probs.items():
            if token == END:
                found[text] = found.get(text, 0.0) + weight * share
            else:
                go_on((*text, token), weight * share)

    go_on((), 1.0)
    return found


def law_error(
    judge: fakes.Judge, expression: str, name: str, s: Sampling = WARM, max_tokens: int = 4,
    pace: Callable[[], object] = lambda: 3, make: Make = drafter_named,
) -> float:  # fmt: skip
    def run(world: fakes.World) -> tuple[int, ...]:
        rule = Independent(world, judge)  # type: ignore[arg-type]
        return tokens_of(generation(expression, rule, name, s, max_tokens, pace(), make))

    return fakes.distance(fakes.law(run), wanted_law(expression, s, max_tokens))


@pytest.mark.sample(15)
@RULES
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("expression", ["(ab)*c", "abab", "a*b|ba*c"])
def test_texts_under_a_grammar_have_the_targets_distribution_exactly(
    judge: fakes.Judge, name: str, expression: str
) -> None:
    assert law_error(judge, expression, name) < 1e-6


@RULES
@pytest.mark.parametrize("name", ["model", "all"])
def test_penalties_truncations_and_a_restless_pace_leave_it_exact(judge: fakes.Judge, name: str) -> None:
    assert law_error(judge, "b(ab|ba)+", name, CUT, pace=lambda: Restless((2, 1, 0, 3))) < 1e-6


@pytest.mark.slow
@RULES
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("s", [WARM, CUT], ids=["warm", "cut"])
def test_all_grammars_have_the_targets_distribution_exactly(
    judge: fakes.Judge, name: str, expression: str, s: Sampling
) -> None:
    assert law_error(judge, expression, name, s, max_tokens=3) < 1e-6


# --- what would be wrong is seen


def test_a_draft_that_no_mask_touches_is_only_slower() -> None:
    """q may be anything. Guesses that the grammar forbids are never accepted, and that is the waste."""

    def unmasked(name: str, sampler: Sampler, masks: Masks) -> Drafter:
        free = Sampler(sampler.sampling, N)
        return Competition([], DraftModel(free, n_ctx=99, n_vocab=N, places=Odds((0.6,) * BINS)))

    assert law_error(verify_block, "(ab)*c", "", max_tokens=3, pace=lambda: 2, make=unmasked) < 1e-6
    accepted = {}
    for make in (unmasked, drafter_named):
        rng = np.random.default_rng(1)
        texts = [generation("[ab]{2,4}", Independent(rng), "model", WARM, 5, 3, make) for _ in range(60)]
        rounds = list(itertools.chain.from_iterable(texts))
        accepted[make] = sum(r.accepted for r in rounds) / sum(r.drafted for r in rounds)
    assert accepted[drafter_named] > 1.3 * accepted[unmasked]


def test_a_mask_reported_to_the_draft_alone_is_seen() -> None:
    """The mutation: the target's rows are not masked, so that it says what the grammar forbids."""

    def unheard(name: str, sampler: Sampler, masks: Masks) -> Drafter:
        drafter = drafter_named(name, Sampler(sampler.sampling, N, masks), masks)
        sampler.masks = None
        return drafter

    assert law_error(verify_block, "(ab)*c", "model", max_tokens=3, make=unheard) > 1e-2


class Lying:
    """Says of guesses that were drawn with a mask that they were drawn without it: the wrong q."""

    def __init__(self, drafter: Drafter, sampler: Sampler) -> None:
        self._drafter, self._free = drafter, Sampler(sampler.sampling, N)

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule) -> Drafting:
        guess = yield from self._drafter.draft(tokens, limit, rule)
        generated = [*tokens.tolist(), *guess.tokens]
        probs = tuple(self._free(DRAFT.row(generated[: len(tokens) + i])) for i in range(len(guess.tokens)))
        return Draft(guess.tokens, probs, guess.sources, guess.confidence)

    def learn(self, judged: object) -> None:
        pass


@RULES
def test_a_guess_with_a_distribution_it_was_not_drawn_from_is_seen(judge: fakes.Judge) -> None:
    def lying(name: str, sampler: Sampler, masks: Masks) -> Drafter:
        return Lying(drafter_named(name, sampler, masks), sampler)

    assert law_error(judge, "[ab]{2,4}", "model", max_tokens=3, make=lying) > 1e-3


def test_the_usual_tokens_of_a_demanded_text_taken_unasked_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: `abab` can only go on as it does, so its usual tokens are said and never asked for."""
    usual = {b"abab": [2, 2], b"bab": [1, 2], b"ab": [2], b"b": [1]}
    monkeypatch.setattr(
        Masks, "forced", lambda self, history, room: usual.get(self.only_text(history), [])[:room]
    )
    assert law_error(verify_block, "abab", "none") > 1e-2
    assert law_error(verify_block, "abab", "model") > 1e-2


def test_the_librarys_own_forcing_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """llguidance masks away all but the usual tokens of a demanded text unless it is told not to."""

    class Usual:
        bos_token_id, eos_token_id, special_token_ids = None, END, ()
        tokens = PIECES

        def __call__(self, text: bytes) -> list[int]:
            return [2] * (len(text) // 2) if text == b"ab" * (len(text) // 2) else [0] * len(text)

    forcing = Matchers(lambda shown: PIECES, ENDS, N)
    monkeypatch.setattr("edgespec.grammar.matchers._Tokens", lambda pieces, end: Usual())
    monkeypatch.setattr("edgespec.grammar.lark_text.EXACT", "%llguidance {}\n")
    monkeypatch.setattr(f"{__name__}.matchers", forcing)
    assert law_error(verify_block, "abab", "none") > 1e-2


# --- coupled texts, ends and limits


@pytest.mark.parametrize("s", [WARM, CUT], ids=["warm", "cut"])
def test_a_seed_gives_the_same_text_whoever_guesses(s: Sampling) -> None:
    texts, accepted = set(), 0
    for seed in range(15):
        for expression in ("[ab]{2,4}c?", "(ab|ba|c)*"):
            plain = tokens_of(generation(expression, Coupled(seed), "none", s, 8))
            for name in DRAFTERS:
                rounds = generation(expression, Coupled(seed), name, s, 8, Restless((3, 1, 0, 2)))
                assert tokens_of(rounds) == plain
                accepted += sum(r.accepted for r in rounds)
            texts.add(plain)
    assert len(texts) > 10 and accepted > 50


def test_a_text_that_can_only_end_ends_without_another_evaluation() -> None:
    before = len(TARGET.asked)
    rounds = generation("a|b", Coupled(1), "none", WARM, 9)
    assert text_of(rounds) in "ab" and rounds[-1].finish == "stop" and len(rounds) == 1
    assert len(TARGET.asked) == before + 1
    assert rounds[0].sources == ("target",)


def test_forced_tokens_need_no_evaluation_and_are_reported_who_demanded_them() -> None:
    before = len(TARGET.decoded)
    rounds = generation("(a|b)cacacacac", Coupled(1), "none", WARM, 20)
    assert text_of(rounds)[1:] == "cacacacac" and rounds[-1].finish == "stop"
    assert len(rounds) == 1 and len(TARGET.decoded) == before + 1
    assert rounds[0].sources == ("target",) + ("grammar",) * 9
    rounds = generation("cacac(a|b)", Coupled(1), "none", WARM, 20)
    assert rounds[0].sources == ("grammar",) * 5 + ("target",), (
        "those at the beginning are read with the prompt"
    )
    assert len(rounds) == 1 and len(TARGET.decoded) == before + 2
    rounds = generation("(a|b)cacac(a|b)", Coupled(1), "none", WARM, 20)
    assert [len(round_.tokens) for round_ in rounds] == [6, 1]
    assert TARGET.decoded[-1] == 6, "the others are read with the next evaluation"


def test_a_limit_cuts_forced_tokens_too() -> None:
    for limit in range(1, 9):
        rounds = generation("cacacacac", Coupled(1), "all", WARM, limit)
        assert len(tokens_of(rounds)) == limit and rounds[-1].finish == "length"


def test_a_stop_string_ends_a_text_inside_forced_tokens() -> None:
    masks = masks_of("cacacaca")
    sampler = Sampler(WARM, N, masks)
    rounds = speculate(
        TARGET, PROMPT, sampler=sampler, rule=Coupled(1), stop=["acac"], max_tokens=20, end=ENDS,
        piece=PIECES.__getitem__,
    )  # fmt: skip
    assert text_of(rounds) == "c" and rounds[-1].finish == "stop"


def test_a_bias_against_all_that_is_allowed_changes_nothing_but_a_ban_is_reported() -> None:
    masks = masks_of("a+c")
    pushed = Sampler(Sampling(temperature=0, logit_bias={1: 1000.0}), N, masks)
    assert pushed(TARGET.row(PROMPT), PROMPT).likeliest()[0] == 0
    banned = Sampler(
        Sampling(temperature=0, logit_bias={0: -np.inf, 2: -np.inf, 5: -np.inf}), N, masks_of("[ab]+")
    )
    assert banned(TARGET.row(PROMPT), PROMPT).likeliest()[0] == 1
    nothing = Sampler(Sampling(temperature=0.5, logit_bias={0: -np.inf, 1: -np.inf}), N, masks_of("[ab]"))
    with pytest.raises(GrammarError, match="logit_bias bans every token that the grammar allows"):
        nothing(TARGET.row(PROMPT), PROMPT)


@pytest.mark.parametrize("samplers", [WARM.samplers, ("temperature", "top_p")])
def test_a_draft_that_knows_none_of_the_allowed_tokens_says_so(samplers: tuple[str, ...]) -> None:
    pieces = [b"x"] * 40 + [b"c", b""]
    masks = Matchers(lambda shown: pieces, frozenset({41}), 42).masks(Grammar("regex", "c"), len(PROMPT))
    draft = Sampler(replace(WARM, samplers=samplers), 40, masks)
    with pytest.raises(LogitsError, match="^the grammar allows no token that this model knows$"):
        draft(np.zeros(40, np.float32), PROMPT)


@pytest.mark.parametrize("drafter", ["none", "model", "all"])
@pytest.mark.parametrize("samplers", [(), ("temperature", "top_p")])
def test_banned_ends_fail_no_text_that_the_grammar_ends(drafter: str, samplers: tuple[str, ...]) -> None:
    """With a draft, the position behind the end was looked at, where nothing is left: 2 of 15 failed."""
    warm = replace(WARM, logit_bias={END: -np.inf}, samplers=samplers or WARM.samplers)
    for seed in range(15):
        rounds = generation("[abc]{4}", Coupled(seed), drafter, warm, 20)
        assert rounds[-1].finish == "stop" and len(text_of(rounds)) == 4
        assert tokens_of(rounds) == tokens_of(generation("[abc]{4}", Coupled(seed), "none", warm, 20))


def test_a_ban_holds_where_the_grammar_leaves_no_choice() -> None:
    """A token that is forced was written without a row, and the ban unseen."""
    masks = masks_of("a{6}")
    masks.banned = frozenset({0})
    assert masks.forced(PROMPT, 6) == [] and masks_of("a{6}").forced(PROMPT, 6) == [0] * 6


# --- what is wrong with a grammar is told


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (lambda: Grammar("regex", "a(b"), ("regular expression", "unclosed group")),
        (lambda: Grammar("regex", "(?=a)b"), ("look-around",)),
        (lambda: Grammar("json_schema", '{"type": "strin"}'), ("JSON schema", "strin")),
        (lambda: Grammar("json_schema", '{"uniqueItems": true}'), ("uniqueItems",)),
        (lambda: Grammar("json_schema", '{"$ref": "#/nowhere"}'), ("/nowhere",)),
        (lambda: Grammar("json_schema", "{"), ("not JSON",)),
        (lambda: Grammar("json_schema", "[1]"), ("must be an object",)),
        (lambda: Grammar("json_schema", "[" * 100_000), ("not JSON",)),
        (lambda: Grammar("json_schema", '{"items":' * 200 + "{}" + "}" * 200), ("64 levels",)),
        (lambda: Grammar("regex", "a" * 300_000), ("300,000 characters", "262,144")),
        (lambda: Grammar("regex", " "), ("empty",)),
        (lambda: Grammar("gbnf", "root ::= this is (not valid GBNF"), ("grammar",)),
        (lambda: Grammar("lark", "start: nobody"), ("nobody",)),
    ],
)
def test_a_wrong_grammar_is_reported_in_one_sentence(
    grammar: Callable[[], Grammar], words: Sequence[str]
) -> None:
    with pytest.raises(GrammarError) as caught:
        matchers.compile(grammar())
    told = str(caught.value)
    assert all(word in told for word in words), told
    assert "\n" not in told and len(told) < 400


def test_a_schema_may_ask_for_json_without_spaces() -> None:
    schema = '{"const": {"a": 1, "b": [2]}, "x-guidance": {"whitespace_flexible": false}}'
    for compact, text, right in (
        (True, b'{"a":1,"b":[2]}', True),
        (True, b'{"a": 1,"b":[2]}', False),
        (False, b'{"a": 1, "b": [2]}', True),
        (False, b'{"a":1,"b":[2]}', True),
        (False, b'{"a":  1,"b":[2]}', False),
    ):
        grammar = Grammar("json_schema", schema if compact else '{"const": {"a": 1, "b": [2]}}')
        assert is_text(grammar, text) == right, (compact, text)


def test_a_grammar_that_runs_out_of_its_fuel_while_it_is_followed_ends_its_text() -> None:
    masks = masks_of("((a{1,100}){1,100}){1,100}b", 0)
    with pytest.raises(GrammarError, match="too complex while it was followed"):
        for n in range(50):
            masks.after([0] * n)


def test_a_grammar_that_gave_up_on_one_text_is_followed_again_in_the_next() -> None:
    """All requests with it failed from then on, until sixteen other grammars had been asked for."""
    expression = "b+|((a{1,100}){1,100}){1,100}b"
    with pytest.raises(GrammarError, match="too complex while it was followed"):
        masks = masks_of(expression, 0)
        for n in range(50):
            masks.after([0] * n)
    again = masks_of(expression, 0)
    for n in range(3):
        allowed = again.after([1] * n)
        assert allowed and allowed.flags[1]


@pytest.mark.parametrize(
    "s", [WARM, CUT, Sampling(temperature=0), Sampling(top_k=2, min_p=0), Sampling(typical_p=0.6)]
)
def test_where_few_of_many_tokens_are_allowed_the_others_might_as_well_not_be(s: Sampling) -> None:
    """The few are sampled by themselves: as if the rest of the row were -inf."""
    n = 40 * len(PIECES)
    many = Matchers(lambda shown: [*PIECES, *[b"z"] * (n - len(PIECES))], ENDS, n)
    masks = many.masks(Grammar("regex", "[ab]+"), len(PROMPT))
    row = np.random.default_rng(6).normal(0, 1, n).astype(np.float32)
    allowed = masks.after(PROMPT)
    assert allowed and allowed.few and allowed.count == 4
    found = Sampler(s, n, masks)(row, PROMPT)
    rest = Sampler(s, n)(np.where(allowed.flags, row, np.float32(-np.inf)), PROMPT)
    assert found.ids.tolist() == rest.ids.tolist()
    assert found.probs == pytest.approx(rest.probs)


def test_a_grammar_whose_masks_take_too_long_ends_its_text() -> None:
    """A single slow mask is forgiven, slow ones again and again are not: others wait meanwhile."""
    now = itertools.count(0, 1)
    slow = Matchers(lambda shown: PIECES, ENDS, N, own_time=lambda: next(now) * 0.15)
    masks = slow.masks(Grammar("regex", "[ab]+"), 0)
    assert masks.after([]) and masks.after([0]) and masks.after([0, 0])
    with pytest.raises(GrammarError, match="too slow to follow"):
        for n in range(3, 9):
            masks.after([0] * n)


def test_a_grammar_that_was_refused_is_refused_again_at_once() -> None:
    """It was read and compiled anew each time: some seconds of a processor that others needed."""
    now, read = [0.0], []

    def lark(grammar: Grammar) -> str:
        read.append(grammar.text)
        return lark_of(grammar)

    matchers = Matchers(lambda shown: PIECES, ENDS, N, clock=lambda: now[0])
    matchers.lark = lark
    wrong = [Grammar("regex", "(" * n) for n in range(1, REMEMBERED + 2)]
    for _ in range(3):
        with pytest.raises(GrammarError, match="unclosed group"):
            matchers.compile(wrong[0])
    assert read == ["("] and matchers.knows(wrong[0])
    for grammar in wrong[1:]:
        with pytest.raises(GrammarError):
            matchers.compile(grammar)
    assert not matchers.knows(wrong[0]), "only so many are remembered"
    now[0] = REFUSED_S
    assert not matchers.knows(wrong[1])
    with pytest.raises(GrammarError):
        matchers.compile(wrong[1])
    assert len(read) == REMEMBERED + 2 and matchers.knows(wrong[1])


# --- behind a thought

BYTES = [bytes([i]) for i in range(1, 127)] + [b"</think>", b"<think>", b""]
SHOWN = Matchers(lambda shown: BYTES, frozenset({128}), 129)


def is_text(grammar: Grammar, text: bytes) -> bool:
    """True where a grammar allows a text, tags written as one token, and lets it end there."""
    masks, tokens = SHOWN.masks(grammar, 0), []
    for part in re.split(b"(</?think>)", text):
        tokens += [BYTES.index(part)] if part in BYTES[126:128] else [byte - 1 for byte in part]
    if masks.fitting([], tokens) < len(tokens):
        return False
    allowed = masks.after(tokens)
    return allowed is not None and bool(allowed.flags[128])


@pytest.mark.parametrize("kind", ["json_schema", "regex", "gbnf", "lark"])
def test_a_grammar_may_begin_behind_a_thought(kind: str) -> None:
    text = {"json_schema": '{"const": 12}', "regex": "12", "gbnf": 'root ::= "1" two\ntwo ::= "2"'}.get(kind)
    text = text or '%llguidance {}\nstart: "1" two\ntwo: "2"'
    opened = Grammar(kind, text, behind="</think>")  # type: ignore[arg-type]
    free = Grammar(kind, text, behind="</think>", opening="<think>")  # type: ignore[arg-type]
    for said, behind, maybe in (
        (b"well {3} </think>\n\n12", True, False),
        (b"</think>12", True, False),
        (b"12", False, True),
        (b"<think>\nso\n</think>\n\n12", True, True),
        (b"<think>12", False, False),
        (b"so </think>13", False, False),
        (b"so </think>12</think>", False, False),
    ):
        assert is_text(opened, said) == behind, said
        assert is_text(free, said) == maybe, said


@pytest.mark.parametrize(
    "form",
    [
        Grammar("gbnf", 'root ::= "(" root ")" | [a-z]'),
        Grammar("lark", 'start: "(" start ")" | /[a-z]/  // } start: root'),
        Grammar("lark", 'start: the_text\nthe_text: thought\nthought: "(" start ")" | /[a-z]/'),
        Grammar("lark", '%llguidance {}\n%ignore / /\n?start: "(" start ")" | /[a-z]/'),
    ],
    ids=lambda form: form.text[:24],
)
def test_a_grammar_holds_behind_a_thought_though_its_root_comes_again(form: Grammar) -> None:
    """The root led back to the rule for thoughts, behind which anything was allowed, and no end."""
    for behind, opening in (("</think>", ""), ("</think>", "<think>")):
        grammar = replace(form, behind=behind, opening=opening)
        for said, right in (
            (b"((a))", True),
            (b"b", True),
            (b"(%%%", False),
            (b"((a)", False),
            (b"()", False),
        ):
            assert is_text(grammar, opening.encode() + b"hm</think>" + said) == right, said


@pytest.mark.parametrize(
    "text",
    [
        'root ::= start\nstart ::= "yes" | "no"',
        'start ::= "no"\nroot ::= start | "yes" # start: root',
        'root ::= "yes" | "no"\n  start : ::= "x"'.replace("  start : ", "start"),
        '?start: "yes" | "no"',
        'start\t: "yes" | "no"',
        '!start: "yes" | "no"',
        '// root ::= "x"\nstart: answer\nanswer: "yes" | "no"',
        'root: "yes" | "no"\nstart: root',
    ],
)
def test_gbnf_and_lark_are_told_apart_by_trying_them(text: str) -> None:
    """A rule of GBNF that was named start made it Lark, and `?start:` or a tab made Lark GBNF."""
    for said, right in ((b"yes", True), (b"no", True), (b"ye", False), (b"x", False)):
        assert is_text(grammar_text(text), said) == right, said


@pytest.mark.parametrize(
    ("text", "words"),
    [("root ::= x", "'x' is not defined"), ("start: nobody", "nobody"), ("a b c", "::= is expected")],
)
def test_what_is_wrong_with_a_grammar_is_stated_in_its_own_format(text: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        matchers.compile(grammar_text(text))


def test_a_form_leaves_a_model_the_thought_that_its_prompt_opened() -> None:
    family = Family("thinking", thoughts=(("<think>", "</think>"),))
    form = Grammar("regex", "12")
    for prompt, opened, template, wanted in (
        ("x<think>\n", True, "<think>", ("</think>", "")),
        ("x", False, "<think>", ("</think>", "<think>")),
        ("x<think>\n\n</think>\n\n", False, "<think>", ("", "")),
        ("x", False, "<tool_call>", ("", "")),
    ):
        found = behind_thoughts(form, Composed(prompt, family, opened, {}), template)
        assert (found.behind, found.opening) == wanted
    for addressed in (HARMONY, MUSE):  # gpt-oss and Muse could not think before a form
        found = behind_thoughts(form, Composed("x<|start|>assistant", addressed, False, {}), "")
        thought = "<|channel|>analysis<|message|>hm 13<|end|><|start|>assistant"
        assert is_text(found, f"{thought}{addressed.final}12".encode())
        assert is_text(found, f"{addressed.final}12".encode()) and not is_text(found, b"12")


def test_a_lenient_schema_passes_over_what_cannot_be_kept_to() -> None:
    every_byte = Matchers(lambda shown: [bytes([i]) for i in range(1, 128)] + [b""], frozenset({127}), 128)
    every_byte.compile(Grammar("json_schema", '{"type": "array", "uniqueItems": true}', lenient=True))
    with pytest.raises(GrammarError, match="nothing fits"):  # no text can be written in this vocabulary
        matchers.compile(Grammar("json_schema", '{"type": "array"}'))


class Certain:
    """Guesses the text that is expected."""

    def draft(self, tokens: np.ndarray, limit: int, rule: Rule) -> Drafting:
        guess = (1, 0, 1, 0)[tokens.size - len(PROMPT) :][:limit]
        return Draft(guess, tuple(map(point_mass, guess)), ("x",) * len(guess))
        yield

    def learn(self, judged: object) -> None:
        pass


@pytest.mark.parametrize("rule", [Coupled(1), *(Independent(np.random.default_rng(1), j) for j in JUDGES)])
@pytest.mark.parametrize("banned", [True, False])
def test_what_stands_behind_a_stop_string_ends_no_text(rule: Rule, banned: bool) -> None:
    """Guesses behind it are judged before it is seen, and nothing may follow them: it was an error."""
    s = replace(WARM, temperature=0.0, logit_bias=dict.fromkeys((2, 5, 3 if banned else 5), -np.inf))

    def said(drafter: Drafter, *stop: str) -> list[Round]:
        masks = masks_of("babac" if banned else "babaz")  # no token writes z
        masks.banned = frozenset(s.logit_bias)
        return speculate(
            TARGET, PROMPT, sampler=Sampler(s, N, masks), rule=rule, drafter=drafter, max_tokens=9,
            end=ENDS, stop=stop, piece=PIECES.__getitem__,
        )  # fmt: skip

    for drafter in (NoDrafter(), Certain()):
        found = said(drafter, "bab")
        assert (tokens_of(found), text_of(found), found[-1].finish) == ((1, 0, 1), "", "stop")
        with pytest.raises(GrammarError):  # the text goes there, where it is not stopped
            said(drafter)


def test_an_end_that_the_draft_does_not_know_is_guessed_where_a_grammar_ends() -> None:
    """A text that its grammar ends needs no row for that: the draft was asked how sure it was of the end."""
    s = replace(WARM, logit_bias={0: 0.1})
    for seed in range(5):
        masks = masks_of("[ab]{2,3}")
        drafter = Competition([], DraftModel(Sampler(s, END, masks), n_ctx=99, n_vocab=END), masks)
        found = speculate(
            TARGET, PROMPT, sampler=Sampler(s, N, masks), rule=Coupled(seed), drafter=drafter,
            draft=TableModel(END, seed=5), pace=5, max_tokens=9, end=ENDS, piece=PIECES.__getitem__,
        )  # fmt: skip
        assert tokens_of(found) == tokens_of(generation("[ab]{2,3}", Coupled(seed), "none", s, 9))


def test_a_certain_guess_of_what_is_forbidden_is_never_accepted() -> None:
    class Forbidden:
        def draft(self, tokens: np.ndarray, limit: int, rule: Rule) -> Drafting:
            guess = (3, 3)[:limit]
            return Draft(guess, tuple(map(point_mass, guess)), ("x",) * len(guess))
            yield

        def learn(self, judged: object) -> None:
            pass

    for judge in (verify_block, verify_tokens):
        assert law_error(judge, "[ab]{2,4}", "", max_tokens=3, make=lambda *_: Forbidden()) < 1e-6
