"""With the shipped pair: text under a schema fits it, with every drafter, and is the same text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, FormatChecker
from real.embedded import BYTE_IDENTICAL, pair_files
from real.random_schemas import random_schema

from edgespec.core.request import Request
from edgespec.core.values import DrafterName, Emitted, Failed
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.grammar.grammar import Grammar, any_json_object, json_schema
from edgespec.sampling.sampler import Sampling

SAMPLE, EVERY = 15, 300
LONGEST = 700  # tokens; texts that fit are shorter by far, so that a text that ends is one that fits
DRAFTERS: tuple[DrafterName, ...] = ("auto", "model", "lookup", "none")


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(*pair_files(), BYTE_IDENTICAL) as pair:
        yield pair


def written(
    pair: Pair, grammar: Grammar, words: str = "Describe it as JSON.", **wanted: Any
) -> tuple[str, str]:
    """Returns the text and why it ended."""
    prompt = pair.chat_tokens([{"role": "user", "content": words}])
    rounds = list(pair.generate(prompt, Request(max_tokens=LONGEST, grammar=grammar, **wanted)))
    return "".join(round_.text for round_ in rounds), str(rounds[-1].finish)


def check(pair: Pair, i: int) -> tuple[str, str]:
    """Writes a text for the i-th schema, and sees that it fits. Returns how it ended, and what was wrong."""
    rng = np.random.default_rng([2_026, i])
    schema = random_schema(rng)
    Draft202012Validator.check_schema(schema)
    how: dict[str, Any] = {
        "sampling": Sampling(temperature=float(rng.choice([0, 0.7, 1.0, 1.5])), top_p=0.95, min_p=0.0),
        "drafter": DRAFTERS[i % len(DRAFTERS)],
        "draft_length": [None, 4, 9][i % 3],
    }
    how |= {"seed": i} if i % 2 else {"rng_seed": i, "rule": ("block", "token")[i // 2 % 2]}
    text, finish = written(pair, json_schema(schema), **how)
    if finish != "stop":
        return finish, f"schema {i}: {finish} after {text[:80]!r}"
    try:
        value = json.loads(text)
    except ValueError as error:
        return finish, f"schema {i}: {error} in {text!r}"
    errors = [
        e.message for e in Draft202012Validator(schema, format_checker=FormatChecker()).iter_errors(value)
    ]
    return finish, f"schema {i} {schema}: {text!r}: {errors}" if errors else ""


def complaints(pair: Pair, schemas: range) -> list[str]:
    found = [check(pair, i) for i in schemas]
    assert sum(finish == "stop" for finish, _ in found) == len(found), [c for f, c in found if f != "stop"]
    return [complaint for _, complaint in found if complaint]


def test_texts_under_random_schemas_fit_them(pair: Pair) -> None:
    assert not complaints(pair, range(SAMPLE))


@pytest.mark.slow
def test_300_texts_under_random_schemas_fit_them(pair: Pair) -> None:
    assert not complaints(pair, range(EVERY))


def test_without_the_schema_no_such_text_fits(pair: Pair) -> None:
    """What the two tests above see would be worth nothing if this model wrote such JSON by itself."""
    prompt = pair.chat_tokens([{"role": "user", "content": "Describe it as JSON."}])
    rounds = pair.generate(prompt, Request(Sampling(temperature=0), 60))
    with pytest.raises(ValueError):
        json.loads("".join(round_.text for round_ in rounds))


def test_a_seed_gives_the_same_text_with_and_without_a_draft(pair: Pair) -> None:
    prompt, accepted = pair.chat_tokens([{"role": "user", "content": "Describe it as JSON."}]), 0
    ways: tuple[tuple[DrafterName, int | None], ...] = (
        ("none", None), ("auto", None), ("model", 4), ("auto", 8), ("lookup", 5),
    )  # fmt: skip
    for i in (3, 8):
        grammar, texts = json_schema(random_schema(np.random.default_rng([7, i]))), set()
        for drafter, length in ways:
            request = Request(
                Sampling(1.0), LONGEST, seed=i, drafter=drafter, draft_length=length, grammar=grammar
            )
            rounds = list(pair.generate(prompt, request))
            texts.add("".join(round_.text for round_ in rounds))
            accepted += sum(round_.accepted for round_ in rounds)
        assert len(texts) == 1
    assert accepted > 10


def test_greedy_text_under_a_grammar_is_that_of_plain_decoding(pair: Pair) -> None:
    cold = Sampling(temperature=0)
    for grammar in (
        any_json_object(),
        Grammar("regex", "[a-z ]{20,60}[.]"),
        Grammar("gbnf", 'root ::= ("ab" | "ba"){9,20}'),
    ):
        plain = written(pair, grammar, sampling=cold, drafter="none")
        for length in (4, 12):
            assert written(pair, grammar, sampling=cold, draft_length=length) == plain


def test_stop_strings_limits_and_biases_hold_under_a_grammar(pair: Pair) -> None:
    grammar = Grammar("regex", "(one|two|six)( (one|two|six)){30}")
    text, finish = written(pair, grammar, seed=1, stop=["two"])
    assert finish == "stop" and "two" not in text and set(text.split()) <= {"one", "six"}
    prompt = pair.chat_tokens([{"role": "user", "content": "Count"}])
    rounds = list(pair.generate(prompt, Request(max_tokens=7, grammar=grammar, seed=1)))
    assert sum(len(round_.tokens) for round_ in rounds) == 7 and rounds[-1].finish == "length"
    assert written(pair, grammar, seed=1)[1] == "stop"


def test_streams_next_to_each_other_keep_each_to_its_own_grammar(pair: Pair) -> None:
    target, draft = pair_files()
    with Pair(target, draft, replace(BYTE_IDENTICAL, slots=3, n_ctx=512)) as several:
        engine = Engine(several, slots=3)
        prompt = several.chat_tokens([{"role": "user", "content": "Describe a list"}])
        expressions = ["[0-9]{30}", "([a-c]x){12}", None, "(one|two|six)( (one|two|six)){9}", "[a-z ]{25}"]
        texts = dict.fromkeys(map(str, range(len(expressions))), "")
        for i, expression in enumerate(expressions):
            grammar = Grammar("regex", expression) if expression else None
            engine.submit(str(i), prompt, Request(Sampling(1.0), 80, rng_seed=i, grammar=grammar))
        while not engine.idle:
            for happening in engine.step():
                assert not isinstance(happening, Failed), happening
                if isinstance(happening, Emitted):
                    texts[happening.id] += happening.round.text
        for i, expression in enumerate(expressions):
            assert expression is None or re.fullmatch(expression, texts[str(i)]), (expression, texts[str(i)])
        alone = {}
        for drafter in DRAFTERS:  # the way of a stream, and not that of `generate`
            engine.submit(
                drafter, prompt, Request(Sampling(1.0), 80, seed=5, drafter=drafter, grammar=grammar)
            )
            while not engine.idle:
                for happening in engine.step():
                    if isinstance(happening, Emitted):
                        alone[drafter] = alone.get(drafter, "") + happening.round.text
        assert len(set(alone.values())) == 1 and len(alone) == len(DRAFTERS)
