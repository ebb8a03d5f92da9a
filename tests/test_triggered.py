"""A text is free until a tag begins a call; only calls follow the grammar."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.grammar.grammar import CONTROL, Grammar, Triggers
from edgespec.grammar.matchers import Matchers
from edgespec.sampling.masks import Masks

WORDS = [
    "<call>",
    "<ca",
    "ll>",
    "ll>b",
    "ll>a",
    "x<call>b",
    "x<call>a",
    "a",
    "b",
    "c",
    "</call>",
    "<think>",
    "</think>",
    " ",
]
PIECES = [*(word.encode() for word in WORDS), CONTROL + b"<odd>", b""]
ODD, END = len(PIECES) - 2, len(PIECES) - 1
FORM = 'start: "<call>" "a" "b"? "</call>"'
THOUGHTS = (("<think>", "</think>"),)


def masks_of(triggers: Triggers, form: str = FORM) -> Masks:
    matchers = Matchers(lambda _: PIECES, frozenset({END}), len(PIECES))
    return matchers.masks(Grammar("lark", form, triggers=triggers), 0)


def ids(text: str) -> list[int]:
    return [END if word == "$" else ODD if word == "?" else WORDS.index(word) for word in text.split()]


def allowed(masks: Masks, text: str) -> set[str] | None:
    found = masks.after(np.array(ids(text), np.int32))
    return None if found is None else {[*WORDS, "?", "$"][i] for i in found.ids}


def test_all_is_free_but_a_call() -> None:
    masks = masks_of(Triggers(("<call>",)))
    every = {*WORDS, "?", "$"}
    assert allowed(masks, "a") == every - {"x<call>b"}
    assert allowed(masks, "a <call>") == {"a"} and allowed(masks, "a <call> a") == {"b", "</call>"}
    assert allowed(masks, "a <ca") == every - {"x<call>b", "ll>b"}, "what would cross the tag wrongly"
    assert allowed(masks, "a <ca ll>a") == {"b", "</call>"}
    assert allowed(masks, "a <call> a </call>") == every - {"x<call>b"}
    assert allowed(masks, "? <ca a ll>") == every - {"x<call>b"}, "the tag was broken off"


def test_guesses_end_where_a_call_would_break() -> None:
    masks = masks_of(Triggers(("<call>",)))
    assert masks.fitting([], ids("c <call> a b </call> c <call> b")) == 7
    assert masks.fitting([], ids("c c $")) == 3 and masks.fitting([], ids("<call> $")) == 1
    assert masks.forced(ids("<call>"), 8) == ids("a")
    assert masks.only_text(ids("c <call> a b")) == b"</call>" and masks.only_text(ids("c")) == b""


def test_it_is_synced_to_any_text() -> None:
    """Rejected guesses are taken back, over the borders of calls."""
    rng, masks = np.random.default_rng(0), masks_of(Triggers(("<call>",), thoughts=THOUGHTS))
    for _ in range(80):
        text = [int(i) for i in rng.integers(0, END, rng.integers(0, 12))]
        while masks_of(Triggers(("<call>",), thoughts=THOUGHTS)).fitting([], text) < len(text):
            text.pop()
        fresh = masks_of(Triggers(("<call>",), thoughts=THOUGHTS)).after(text)
        found = masks.after(text)
        assert (found is None) == (fresh is None), text
        assert found is None or fresh is None or (found.flags == fresh.flags).all(), text


def test_a_call_in_reasoning_follows_the_form_too() -> None:
    """Reasoning that was never closed is known at its end, and the call in it, which was free, was parsed."""
    masks, free = masks_of(Triggers(("<call>",), ("ab",), THOUGHTS)), {*WORDS, "?", "$"} - {"x<call>b"}
    assert allowed(masks, "<think> <call>") == {"a"} and allowed(masks, "<think> c <ca ll>a b") == {"</call>"}
    assert allowed(masks, "<think> <call> a </call>") == allowed(masks, "<think> a b") == free
    for text in ("<think> c </think> <call>", "<think> <call> a </call> </think> <call>", "<think> c <call>"):
        assert allowed(masks, text) == {"a"}
    assert allowed(masks, "a <think> <call>") == {"a"}, "later, the tag is only spoken of"
    opened = masks_of(Triggers(("<call>",), thoughts=THOUGHTS, opened=True))
    assert allowed(opened, "c <call>") == allowed(opened, "</think> <call>") == {"a"}


def test_a_call_without_a_tag_is_one_only_at_the_beginning() -> None:
    masks = masks_of(Triggers((), ("ab",)), 'start: "ab" "c"')
    assert allowed(masks, "a b") == {"c"} and allowed(masks, "  a b".strip()) == {"c"}
    assert allowed(masks, "c a b") is None


@pytest.mark.parametrize("text", ["<call> a b </call>", "c", ""])
def test_nothing_is_masked_in_what_is_free(text: str) -> None:
    masks = masks_of(Triggers(("<think>",)), 'start: "<think>" "a"')
    assert allowed(masks, text) is None


def test_a_grammar_that_fails_twice_leaves_calls_free() -> None:
    """A client's tools are answered all the same."""
    masks = masks_of(Triggers(("<call>",)))
    matcher = masks._matcher
    matcher.begin_anew()
    assert matcher.takes(ids("<call>")[0]) and not matcher.takes(ids("b")[0])
    matcher.begin_anew()
    assert all(matcher.takes(token) for token in ids("<call> b x<call>b")) and matcher.mask() is None
