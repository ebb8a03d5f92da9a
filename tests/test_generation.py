"""What `edgespec.generate` and `stream` return: the text and figures of the rounds, whole or as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec

PROMPT = "def main():"


@pytest.fixture(scope="module")
def pair(tiny_target: Path, tiny_draft: Path) -> Iterator[edgespec.Pair]:
    with edgespec.load(tiny_target, tiny_draft) as pair:
        yield pair


def test_an_answer_is_its_rounds(pair: edgespec.Pair) -> None:
    request = edgespec.Request(max_tokens=24, sampling=edgespec.Sampling(temperature=0))
    stream = edgespec.stream(pair, PROMPT, request)
    rounds = list(stream)
    assert stream.answer.text == "".join(round_.text for round_ in rounds)
    assert stream.answer.tokens == tuple(token for round_ in rounds for token in round_.tokens)
    whole = edgespec.generate(pair, PROMPT, request)
    assert (whole.text, whole.tokens, whole.finish) == (stream.answer.text, stream.answer.tokens, "length")
    assert whole.figures.n_tokens == 24 and whole.figures.prompt_tokens == pair.prompt_tokens(PROMPT).size


def test_a_conversation_is_put_into_words_by_the_template(pair: edgespec.Pair) -> None:
    question = [{"role": "user", "content": "What is EdgeSpec?"}]
    request = edgespec.Request(max_tokens=16, seed=3)
    drafted = edgespec.generate(pair, question, request)
    plain = edgespec.generate(pair, question, edgespec.Request(max_tokens=16, seed=3, drafter="none"))
    assert drafted.text == plain.text and plain.figures.drafted == 0
    assert drafted.figures.prompt_tokens == pair.chat_tokens(question).size


def test_a_cancelled_answer_keeps_what_was_generated(pair: edgespec.Pair) -> None:
    stream = edgespec.stream(pair, PROMPT, edgespec.Request(max_tokens=200))
    next(stream)
    stream.cancel()
    rest = list(stream)
    assert rest[-1].finish == "cancelled" and stream.answer.finish == "cancelled"
    assert 0 < len(stream.answer.tokens) < 200


def test_a_prompt_that_is_too_long_is_refused(pair: edgespec.Pair) -> None:
    with pytest.raises(edgespec.EdgeSpecError, match="tokens"):
        edgespec.generate(pair, "word " * 20_000)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"seed": 1.5}, "the seed is 1.5: it must be a whole number"),
        ({"choice": True}, "the choice is True: it must be a whole number"),
        ({"rng_seed": "1"}, "the rng_seed is '1': it must be a whole number"),
        ({"rng_seed": -1}, "the rng_seed is -1: it must be 0 or more"),
        ({"drafter": "x"}, "the drafter is 'x': it must be one of "),
        ({"rule": "x"}, "the acceptance rule is 'x': it must be block or token"),
        ({"draft_length": -1}, "the draft length is -1: "),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_name(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(edgespec.EdgeSpecError, match=f"^{reason}"):
        edgespec.Request(**fields)
