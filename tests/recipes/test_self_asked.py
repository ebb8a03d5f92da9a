"""A chat model asks itself: each question once, none of those of reported figures."""

from itertools import islice

import numpy as np
import pytest

from edgespec_models.distill.heard import TOP, Heard
from edgespec_models.distill.saying import Saying
from recipes.heads.self_asked import LONGEST, SelfAsked, runs

USER, END = [900, 901], 999
APART = "Tell me which seven rivers flow through the city of Vienna and why they do."


def code(text):
    return [ord(c) for c in text]


def prompt(question):
    return [*USER, *code(question), END, 902] if len(question) < 120 else None


@pytest.fixture
def own():
    return SelfAsked(USER, lambda ids: "".join(map(chr, ids)), prompt, [APART], 50)


def heard(start, said):
    rows = np.zeros((len(said), TOP))
    ids = np.asarray([*start, *said])
    return Heard(ids, len(start), 1.0, np.zeros((len(ids) - 1, 3), np.float16), rows, rows)


def asks(own, question):
    """Return what comes of a question that the target said."""
    said = heard(USER, [*code(question), END])
    assert list(own.listen([said])) == [said]  # it is learned from as well
    return [own.waiting.popleft() for _ in range(len(own.waiting))]


def test_what_it_says_as_a_user_is_asked_and_its_answer_is_kept(own):
    (saying,) = asks(own, "How do I boil an egg?")
    assert saying.prompt == prompt("How do I boil an egg?") and saying.limit == 50
    answer = heard(saying.prompt, code("In water."))
    assert list(own.listen([answer])) == [answer] and not own.waiting


@pytest.mark.parametrize(
    "question",
    [
        "Why?",
        "A question <|im_start|> of pieces",
        "A letter \ufffd that is none",
        "why " * 40,
        "why " * LONGEST,
        APART.upper(),
        "Well: tell me which seven rivers flow through the city, please?",
    ],
    ids=["short", "control", "broken", "long prompt", "endless", "reported", "part of it"],
)
def test_what_is_no_question_or_kept_apart_is_not_asked(own, question):
    assert not asks(own, question)


def test_a_question_is_asked_once(own):
    assert asks(own, "How do I boil an egg?") and not asks(own, "how do I boil an egg? ")


def test_runs_of_words_are_found_whatever_stands_between_them():
    assert runs("One, two - three four; five six seven EIGHT nine") >= runs(
        "one two three four five six seven eight"
    )
    assert runs("one two") == {("one", "two")}


def test_of_the_answers_a_share_is_to_its_own_questions(own):
    others = iter(Saying([7], 0.0, 5) for _ in range(1000))
    counts = {"other": 0, "own": 0}
    for saying in islice(own.sayings(others, 0.75), 900):
        if saying.prompt == USER:
            question = f"Question number {own.made}, what is it?"
            list(own.listen([heard(USER, [*code(question), END])]))
        else:
            counts["other" if saying.prompt == [7] else "own"] += 1
    assert counts["own"] > 300 and counts["own"] / sum(counts.values()) == pytest.approx(0.75, abs=0.01)
